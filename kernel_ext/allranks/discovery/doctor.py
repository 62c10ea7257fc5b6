"""Collect the facts that the doctor needs from the hosts, and show its findings."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from allranks.check_arguments import parse_size
from allranks.errors import CellInterrupted, HostCause
from allranks.hosts.ssh.interpreter import Interpreter, interpreter_of, path_for_sh
from allranks.hosts.ssh.ssh_command import destination
from allranks.hosts_from_options import hosts_of
from allranks.machine.describe_host import versions
from allranks_backends.doctor import COMMANDS, Asked, Finding, HostFacts, abort_checks, examine, facts_of
from allranks_backends.doctor.finding import sentence_and_fix
from allranks_backends.doctor.host_facts import Reach, version_in
from allranks_backends.registry import get_backend
from allranks_backends.runtimes.mpi import MPI, find_mpirun
from allranks_backends.runtimes.placement_checks import bare_name
from allranks_widgets.table import html_table

from .survey import COMMANDS_WITHIN, Surveyed, survey
from .try_hosts import TrialStart, try_up

PATIENCE = 20.0
"""Timeout, in seconds, for a run of ``mpirun`` on this machine."""
WITHOUT_PYTHON = 1
"""Timeout, in seconds, for all commands on a host whose Python hangs: its Python commands would never end."""
MCA = "OMPI_MCA_"
SIGNS = {"error": "✗", "warning": "!", "note": "·"}


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's findings, the most severe first."""

    findings: tuple[Finding, ...]
    hosts: tuple[str, ...]
    looked_at: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no finding keeps a world from running as requested."""
        return all(finding.severity != "error" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join([*map(_text, self.findings), self._summary, self._checked])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            (f"{SIGNS[each.severity]} {each.severity}", each.host, _said(each), _fix(each)) for each in self.findings
        ]
        table = html_table(("", "host", "problem", "fix"), rows) if rows else ""
        return f"{table}<div><b>{escape(self._summary)}</b></div><div>{escape(self._checked)}</div>"

    @property
    def _summary(self) -> str:
        counts: Counter[str] = Counter(finding.severity for finding in self.findings)
        if not counts:
            return f"No problems found on {', '.join(self.hosts)}."
        parts = [f"{counts[kind]} {kind}{'s' * (counts[kind] > 1)}" for kind in SIGNS if counts[kind]]
        return f"{', '.join(parts)} on {', '.join(self.hosts)}."

    @property
    def _checked(self) -> str:
        return f"Checked: {'; '.join(self.looked_at)}."


def doctor(
    n: int | None = None,
    *,
    hosts: Sequence[str] | None = None,
    hostfile: str | Path | None = None,
    ranks_per_host: int = 1,
    python: str | None = None,
    backend: str = "auto",
    memory: int | None = None,
    cwd: str | Path | None = None,
) -> Diagnosis:
    """Diagnose hosts, or this machine, before `Cluster.up`, and suggest fixes.

    The arguments are the same as for `Cluster`; `memory` is the number of bytes that each rank will load. Starts a few
    ranks on each host as `up` does, and ends them. Raises UsageError for invalid arguments, and CellInterrupted on
    Ctrl-C, once everything that was started has ended.
    """
    try:
        return _diagnosed(n, hosts, hostfile, ranks_per_host, python, backend, memory, cwd)
    except KeyboardInterrupt:
        raise CellInterrupted("doctor cancelled; all that it started has ended") from None


def _diagnosed(
    n: int | None,
    hosts: Sequence[str] | None,
    hostfile: str | Path | None,
    ranks_per_host: int,
    python: str | None,
    backend: str,
    memory: int | None,
    cwd: str | Path | None,
) -> Diagnosis:
    """Do the work of `doctor`; on Ctrl-C, raises KeyboardInterrupt."""
    placed, named, env = hosts_of(n, hosts, hostfile, ranks_per_host)
    distinct = list({host.name: host for host in placed}.values())
    backend = named if backend == "auto" and named else backend
    trial = try_up(placed, backend=backend, python=python, cwd=cwd, env=env)
    by_mpirun = Asked(backend).by_mpirun
    asked = Asked(
        backend=backend,
        python=python or sys.executable,
        python_named=python is not None,
        cwd=str(cwd or ""),
        ranks_per_host=max(Counter(host.name for host in placed).values()),
        memory=memory,
        ranks=tuple(placed),
        versions=versions(),
        **(_open_mpi() if by_mpirun else {}),
    )
    names = [bare_name(host.name) for host in distinct if not host.local]
    here = Interpreter(next((host.python for host in distinct if host.local and host.python), python) or sys.executable)
    called = {host.name: here if host.local else interpreter_of(host.python or python) for host in distinct}
    pythons = {name: shlex.join(each.words()) for name, each in called.items()}
    away = trial.not_logged_in
    told = survey(
        [host for host in distinct if host.name not in away],
        lambda host: _commands(asked, pythons[host.name], names, asked.folder_of(host.name)),
        lambda host: WITHOUT_PYTHON if host.name in trial.hanging else COMMANDS_WITHIN,
    )
    known = {each.host.name: _facts(each, trial) for each in told}
    facts = [known[host.name] if host.name in known else _unreached(away[host.name]) for host in distinct]
    findings, looked_at = examine(facts, asked)
    findings = _as_tried(findings, trial, [host.name for host in distinct])
    return Diagnosis(tuple(findings), tuple(host.name for host in distinct), (_tried(trial), *looked_at))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `doctor`, for the magic and the shell."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-n", type=int, help="ranks on this machine")
    where.add_argument("--hosts", metavar="A,B", help="as for up: host names for ssh")
    where.add_argument("--hostfile", metavar="F", help="as for up")
    parser.add_argument("--ranks-per-host", type=int, default=1, metavar="N", help="as for up")
    parser.add_argument("--backend", default="auto", metavar="B", help="backend to check for; adds its own checks")
    parser.add_argument("--python", metavar="P", help="as for up")
    parser.add_argument("--cwd", help="as for up")
    parser.add_argument("--memory", metavar="SIZE", help="memory each rank will need, e.g. 40G")


def asked_by(options: argparse.Namespace) -> Diagnosis:
    """Run `doctor` with the options that `add_arguments` declares. Raises UsageError and CellInterrupted."""
    return doctor(
        options.n,
        hosts=options.hosts.split(",") if options.hosts is not None else None,
        hostfile=options.hostfile,
        ranks_per_host=options.ranks_per_host,
        python=options.python,
        backend=options.backend,
        cwd=options.cwd,
        memory=parse_size(options.memory) if options.memory else None,
    )


def _as_tried(findings: Sequence[Finding], trial: TrialStart, hosts: Sequence[str]) -> list[Finding]:
    """Adjust findings to the trial. If it formed the world, errors become warnings, except `Finding.later` ones.

    Otherwise the trial's errors are added for hosts without an error.
    """
    if trial.formed:
        return [
            each if each.later else replace(each, severity="warning") if each.severity == "error" else each
            for each in findings
        ]
    found = [_of_trial(cause.host, cause.why) for cause in trial.causes]
    known = {host for each in findings if each.severity == "error" for host in each.host.split(", ")}
    errors = [each for each in found if each.host not in known]
    if trial.refused and not errors and not known:
        errors = [_of_trial(", ".join(hosts), trial.refused)]
    return sorted([*errors, *findings], key=lambda each: [*SIGNS].index(each.severity))


def _of_trial(host: str, why: str) -> Finding:
    """Convert an error message of `up` to a finding: its first sentence is the problem, the rest the fix."""
    what, fix = sentence_and_fix(" ".join(why.split()))
    return Finding("error", host, what, "", fix)


def _tried(trial: TrialStart) -> str:
    started = "a start as by up: logins, host processes, versions, working folders, ranks"
    return f"{started}, the world" if trial.formed else started


def _commands(asked: Asked, python: str, names: Sequence[str], folder: str) -> dict[str, str]:
    fill = {
        "{python}": python,
        "{probe}": shlex.quote(_probe()),
        "{names}": shlex.join(names),
        "{folder}": path_for_sh(folder or "."),
        "{prted}": shlex.quote(asked.prted),
        "{mpirun}": shlex.quote(asked.mpirun),
        "{abortable}": _abortable(asked, python),
    }
    commands = dict(COMMANDS)
    for name, command in COMMANDS.items():
        for slot, value in fill.items():
            command = command.replace(slot, value)
        commands[name] = command
    if not asked.prted:
        del commands["daemon"]
    return commands


def _abortable(asked: Asked, python: str) -> str:
    """A command that reports whether a host can abort collectives; ``true`` if the check does not apply."""
    if not abort_checks.applies((), asked):
        return "true"
    backend = get_backend(asked.backend)
    env = MPI().rank_env(asked.mpirun) if asked.by_mpirun and asked.mpirun else {}
    settings = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join([*settings, python, "-m", "allranks.rank.probe.abortable", backend.init_name])


def _open_mpi() -> dict[str, Any]:
    """The fields of `Asked` about the notebook's mpirun; empty if there is none."""
    mpirun = find_mpirun()
    if mpirun is None:
        return {}
    environment = {**os.environ, **MPI().launcher_env(as_root=os.geteuid() == 0)}
    started = _run([mpirun, "-n", "1", "true"], environment)
    said = _run([mpirun, "--version"], environment).stdout
    return {
        "mpirun": mpirun,
        "mpirun_fails": "" if started.returncode == 0 else started.stderr or started.stdout or "no error message",
        "prted": str(Path(mpirun).parent / "prted"),
        "open_mpi": version_in(said) if "Open MPI" in said or "OpenRTE" in said else "",
        "mca": {name.removeprefix(MCA): value for name, value in os.environ.items() if name.startswith(MCA)},
    }


def _run(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _probe() -> str:
    return (files("allranks_backends.doctor") / "probe_python.py").read_text(encoding="utf-8")


def _unreached(cause: HostCause) -> HostFacts:
    why = cause.why.rstrip(".")
    known_hosts, has_agent = _known_hosts(cause.host), _has_agent()
    return HostFacts(cause.host, False, why, cause.said, known_hosts=known_hosts, has_agent=has_agent)


def _facts(told: Surveyed, trial: TrialStart) -> HostFacts:
    host = told.host
    if told.trouble:
        met = next((cause.why.rstrip(".") for cause in trial.causes if cause.host == host.name), told.trouble)
        return HostFacts(host.name, host.local, met, told.said, known_hosts=_known_hosts(host.name))

    def complained(name: str) -> str:
        answer = told.answers.get(name)
        return "" if answer is None or answer.ok else answer.err or answer.out or "timed out"

    known = facts_of(host.name, host.local, told.out, complained, told.between)
    connection = known["environment"].get("SSH_CONNECTION", "").split()
    used = trial.addresses.get(host.name) or next(iter(connection[2:3]), "")
    addresses = (used,) if used else () if host.local else host.addresses
    return HostFacts(**known, addresses=addresses, reaches=_reaches(host.name, trial))


def _reaches(host: str, trial: TrialStart) -> dict[str, Reach]:
    """For each host that `host` had to reach: its address, and the error if it could not be reached."""
    found = {other: Reach(trial.addresses.get(other, "")) for one, other in trial.reached if one == host}
    return found | {each.other: Reach(each.address, _errno(each.why)) for each in trial.apart if each.one == host}


def _errno(why: str) -> str:
    """The name (``ECONNREFUSED``, say) of the system error with the message `why`; `why` itself if there is none."""
    return next((name for number, name in errno.errorcode.items() if os.strerror(number).lower() == why), why)


def _known_hosts(name: str) -> str:
    """The file in which this machine's ssh keeps the host's key."""
    try:
        line = ["ssh", "-G", *destination(name)]
        told = subprocess.run(line, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        told = ""
    settings = dict(line.split(" ", 1) for line in told.splitlines() if " " in line)
    return str(Path(settings.get("userknownhostsfile", "~/.ssh/known_hosts").split(" ")[0]).expanduser())


def _has_agent() -> bool:
    try:
        return subprocess.run(["ssh-add", "-l"], capture_output=True, timeout=10).returncode != 2
    except (OSError, subprocess.TimeoutExpired):
        return False


def _said(finding: Finding) -> str:
    source = f" (reported in {finding.source})" if finding.source else ""
    seen = f" Seen: {finding.evidence.rstrip('.')}." if finding.evidence else ""
    return f"{finding.what}{seen}{source}"


def _fix(finding: Finding) -> str:
    where = {"": "", "here": "here: "}.get(finding.at, f"on {finding.at}: ")
    return f"{where}{finding.fix}"


def _text(finding: Finding) -> str:
    lines = [f"{SIGNS[finding.severity]} {finding.host}: {_said(finding)}"]
    return "\n".join([*lines, *([f"    {_fix(finding)}"] if finding.fix else [])])
