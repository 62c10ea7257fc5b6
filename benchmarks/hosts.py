"""Three ranks on three hosts over ssh, from `up` to the first all_sum, against three ranks on this machine.

The hosts are network namespaces on this machine (tests/hosts/lab.py): they have an sshd and an address each and share
its cores, so that the logins and imports of three hosts take turns here, which on three machines they would not. So
three times `ssh HOST python -c "import ..."` of what a rank needs, at once, is measured, too. Each sample is a new
Python process that has imported allranks and then types `up`; a login counts when the host's sshd accepted it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time

from allranks.hosts.ssh.ssh_command import SSH_OPTIONS, destination
from allranks_backends.machines.platform import this_platform
from allranks_backends.registry import get_backend
from tests.hosts.lab import Hosts, forbidden, made, missing

from ._table import Bar, Row, Table

SIZE = 3
WITHIN = 120.0
MOST_LOGINS = 2
IMPORTS = "from allranks.rank.process.import_engine import import_engine; import_engine()"


def measure(repeat: int | None, *, quick: bool = False) -> Table:
    """Rounds of both in turn; ring, then MPI."""
    table = Table("hosts", f"{SIZE} ranks on {SIZE} hosts over ssh, from `up` to the first all_sum; lower is better")
    if reason := missing() or forbidden():
        table.notes.append(f"Not measured here: {reason}.")
        return table
    rounds, platform = repeat or (2 if quick else 5), this_platform()
    with made(SIZE) as hosts:
        for backend in ("ring",) if quick else ("ring", "mpi"):
            if reason := get_backend(backend).why_not(platform, SIZE):
                table.notes.append(f"{backend} was not measured: {reason}.")
                continue
            _round(backend, hosts)  # reads the packages from disk
            samples = [_round(backend, hosts) for _ in range(rounds)]
            ours, theirs, least, logins = ([sample[each] for sample in samples] for each in range(4))
            bar = Bar("at most", 2.0) if backend == "ring" else None
            table.rows.append(Row(backend, "s", ours, theirs, "as many ranks here", bar))
            table.rows.append(Row(backend, "s", ours, least, "ssh to each host, and the imports of a rank"))
            limit = Bar("at most", MOST_LOGINS, "ours")
            table.rows.append(Row(f"{backend}, logins to a host", "", logins, bar=limit))
    return table


def _round(backend: str, hosts: Hosts) -> tuple[float, float, float, float]:
    """Seconds over ssh, seconds here, seconds of the logins and imports alone, and the most logins to one host."""
    before = {name: hosts.logins(name) for name in hosts.names}
    away = _sample(backend, hosts.names)
    logins = max(hosts.logins(name) - before[name] for name in hosts.names)
    return away, _sample(backend, []), _logins_and_imports(hosts.names), float(logins)


def _logins_and_imports(names: list[str]) -> float:
    command = shlex.join([sys.executable, "-c", IMPORTS])
    began = time.monotonic()
    nothing = subprocess.DEVNULL
    logins = [
        subprocess.Popen(["ssh", *SSH_OPTIONS, *destination(name), command], stdin=nothing, stdout=nothing)
        for name in names
    ]
    try:
        codes = [login.wait(max(0.0, began + WITHIN - time.monotonic())) for login in logins]
    finally:
        for login in logins:
            login.kill()
    if any(codes):
        raise SystemExit(f"ssh to the hosts, and the imports there, ended with {codes}")
    return time.monotonic() - began


def _sample(backend: str, names: list[str]) -> float:
    command = [sys.executable, "-m", "benchmarks.hosts", backend, *names]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN)
    if done.returncode:
        raise SystemExit(f"{backend}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def _child(backend: str, names: list[str]) -> None:
    """In the new process."""
    from allranks import Cluster

    began = time.monotonic()
    with Cluster(None if names else SIZE, hosts=names or None, backend=backend) as cluster:
        result = cluster.run("mx.distributed.all_sum(mx.ones(10))[0].item()")
        seconds = time.monotonic() - began
        assert [result[rank].value for rank in range(SIZE)] == [SIZE] * SIZE
    print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2:])
