"""Find and end the clusters that run on this machine and on other hosts, whichever notebook started them.

Hosts are asked, not the clusters' own processes, so this also works if the notebook, a host process or ranks hang or
have ended.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from allranks.errors import NoCluster, UsageError
from allranks.head.world.detached_cluster_file import (
    Detached,
    detached_clusters,
    detached_file,
    other_version,
)
from allranks.hosts.ssh.interpreter import Interpreter, interpreter_of
from allranks.hosts.ssh.ssh_failures import explained
from allranks.hosts_from_options import named_hosts
from allranks.machine.describe_host import installed
from allranks.machine.hosted_clusters import HOST_PROCESS, HostedCluster
from allranks.units import duration_text, ranks_text
from allranks_backends.hostfile import host_named
from allranks_backends.plan import Host

from .survey import survey

HERE = "localhost"
ENOUGH_OF_AN_ID = 4
MODULE = "allranks.host_process.clusters_here"


@dataclass(frozen=True)
class OnHost:
    """One host's part of a cluster."""

    cluster: HostedCluster
    running: list[str]
    """Names of the cluster's processes that run on the host."""
    asked: str = HERE
    """The name by which the host was asked."""

    @property
    def ranks(self) -> int:
        """Number of ranks that run on the host."""
        return sum(name.startswith("rank ") for name in self.running)

    @property
    def attached(self) -> bool:
        """Whether the notebook is attached, as far as the host process knows."""
        return self.cluster.away_since is None and HOST_PROCESS in self.running


@dataclass(frozen=True)
class RunningCluster:
    """A cluster, as far as the hosts that were asked know it."""

    parts: Sequence[OnHost]

    @property
    def cluster(self) -> HostedCluster:
        """One host's description of the cluster, for the fields that are equal on all hosts."""
        return self.parts[0].cluster

    @property
    def attached(self) -> bool:
        """Whether a notebook is attached.

        The host process on the notebook's machine decides, if it was asked and runs: it notices at once that the
        notebook is gone, other host processes only after some seconds of silence.
        """
        own = [part for part in self.parts if part.cluster.host == HERE and HOST_PROCESS in part.running]
        return any(part.attached for part in own or self.parts)

    @property
    def ends_in(self) -> float | None:
        """Seconds until the ranks' lease expires if no cell runs; None for never. Valid while the notebook is away."""
        parts = [part for part in self.parts if part.ranks] or self.parts
        if any(part.cluster.lease is None for part in parts):
            return None
        begun = max(max(part.cluster.away_since or 0.0, part.cluster.busy_at) for part in parts)
        return max(0.0, begun + min(part.cluster.lease or 0.0 for part in parts) - time.time())

    @property
    def notebook(self) -> str:
        """Describe where the notebook is, or for how long it has been gone and when the ranks end."""
        if self.attached:
            return self.cluster.notebook
        away = [part.cluster.away_since for part in self.parts if part.cluster.away_since is not None]
        said = [f"gone for {duration_text(time.time() - min(away))}" if away else "gone"]
        if any(part.cluster.runs_a_cell for part in self.parts):
            said.append("a cell runs")
        elif self.ends_in is None:
            said.append("ranks stay until they are ended")
        elif away:
            said.append(f"ranks end in {duration_text(self.ends_in)}" if self.ends_in else "its lease has ended")
        lost = [part.asked for part in self.parts if HOST_PROCESS not in part.running]
        return "; ".join([*said, *(f"no host process on {name}" for name in lost)])

    @property
    def beside(self) -> str:
        """A message that this cluster shares hosts with one that has just started, and how to end this cluster."""
        told = self.cluster
        asked = {part.asked: part.cluster.python for part in self.parts}
        command = command_to_end(told.cluster, {**told.logins, **asked})
        return (
            f"{told.name} also runs on {', '.join(asked)}: {ranks_text(told.size, told.backend)} of {told.notebook}, "
            f"{self.notebook}. To end it: {command}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the cluster's data for other programs: durations in seconds, times as in `time.time`."""
        told = self.cluster
        return {
            "name": told.name,
            "id": told.cluster,
            "backend": told.backend,
            "size": told.size,
            "hosts": told.hosts,
            "since": min(part.cluster.since for part in self.parts),
            "notebook": told.notebook,
            "attached": self.attached,
            "runs_a_cell": None if self.attached else any(part.cluster.runs_a_cell for part in self.parts),
            "ends_in": None if self.attached else self.ends_in,
            "running": {part.asked: part.running for part in self.parts},
        }


@dataclass(frozen=True)
class Search:
    """The clusters that a search found on all hosts."""

    clusters: Sequence[RunningCluster]
    unreached: Mapping[str, str]
    """Hosts that could not be asked, and why."""
    unreadable: Sequence[str]
    """A sentence about each cluster that this version of allranks cannot read, since another version started it."""


@dataclass(frozen=True)
class Ending:
    """The result of ending a cluster."""

    name: str
    id: str
    ended: Mapping[str, int]
    """Number of ranks that were ended, by host."""
    unreached: Mapping[str, str]
    """Hosts that were not or could not be asked, and why; ranks of the cluster may still run there."""
    pythons: Mapping[str, str] = field(default_factory=dict)
    """The Python that has allranks, for each host in `unreached`."""

    def __str__(self) -> str:
        each = [f"{ranks_text(count)} on {host}" for host, count in self.ended.items() if count]
        return f"{self.name} has ended: {', '.join(each) or 'no rank was running'}."


def command_to_end(key: str, pythons: Mapping[str, str]) -> str:
    """The shell command that ends the cluster with id `key`; `pythons` names each host's Python that has allranks."""
    if len(each := set(pythons.values())) == 1:
        return shlex.join(["allranks", "down", key, "--hosts", ",".join(pythons), "--python", *each])
    hosts = ",".join(f"{host} python={shlex.quote(python)}" for host, python in pythons.items())
    return shlex.join(["allranks", "down", key, "--hosts", hosts])


def running_clusters(hosts: Sequence[str] = (), python: str | None = None) -> Search:
    """Find this user's clusters that have a process on this machine or on one of `hosts`.

    `python` is the path of the Python that has allranks on `hosts`; None means the environment that `setup` made there,
    or else the path of this Python. Raises UsageError for an invalid host.
    """
    parts, unreached, unreadable = _ask(_pythons(hosts, python))
    return Search(_clusters(part for part in parts if part.running), unreached, unreadable)


def end_cluster(name: str, hosts: Sequence[str] = (), python: str | None = None, *, force: bool = False) -> Ending:
    """End a cluster on this machine, on `hosts`, and on the cluster's other hosts as far as this machine knows them.

    `name` is the cluster's name, its id, or the beginning of its id; for `python` see `running_clusters`. Raises
    NoCluster if there is no such cluster, and UsageError if several match, if a notebook is attached and `force` is not
    set, or for an invalid host.
    """
    asked = _pythons(hosts, python)
    parts, unreached, unreadable = _ask(asked)
    detached = detached_clusters()
    name = _whole_id(name, [part.cluster for part in parts], detached)
    ids = {kept.cluster for each, kept in detached.items() if name in (each, kept.cluster)} | {name}
    mine = [part for part in parts if part.cluster.cluster in ids or part.cluster.name == name]
    ids |= {part.cluster.cluster for part in mine}
    elsewhere = _elsewhere(python, mine, [kept for kept in detached.values() if kept.cluster in ids])
    asked |= (more_hosts := {host: each for host, each in elsewhere.items() if host not in asked})
    more, silent, _ = _ask(more_hosts)
    unreached |= silent
    mine += [part for part in more if part.cluster.cluster in ids]
    if run := {part.cluster.cluster for part in mine if part.running}:  # the other matches are leftover files
        mine = [part for part in mine if part.cluster.cluster in run]
    found = {part.cluster.cluster: part.cluster for part in mine}
    if not found:
        raise NoCluster(_no_such(name, parts, unreached, unreadable))
    if len(run) > 1:
        each = ", ".join(f"{key} ({cluster.notebook})" for key, cluster in found.items())
        raise UsageError(f"{len(found)} clusters are named {name!r}. Choose one by its id: {each}.")
    key, cluster = max(found.items(), key=lambda each: each[1].since)
    if not force and RunningCluster(mine).attached:
        where = cluster.notebook
        raise UsageError(
            f"a notebook is attached to {name!r}: {where}. End it there with %distributed down, or here with --force."
        )
    pythons = {part.asked: asked[part.asked] for part in mine}
    answers, silent = _run(pythons, key)
    for leftover in found.keys() - {key}:  # files of older clusters whose processes have all ended
        silent |= _run(pythons, leftover)[1]
    ended = {host: sum(str(each).startswith("rank ") for each in names) for host, names in answers.items()}
    unreached |= silent | _not_asked(mine, asked)
    for each, kept in detached.items():
        if kept.cluster in found and not unreached:
            detached_file(each).unlink(missing_ok=True)
    known = {host: each.path for host, each in asked.items()} | cluster.logins
    return Ending(cluster.name, key, ended, unreached, {host: known[host] for host in unreached})


def _clusters(parts: Iterable[OnHost]) -> list[RunningCluster]:
    by_id: dict[str, list[OnHost]] = {}
    for part in parts:
        by_id.setdefault(part.cluster.cluster, []).append(part)
    return [RunningCluster(each) for each in by_id.values()]


def _whole_id(name: str, hosted: Sequence[HostedCluster], detached: Mapping[str, Detached]) -> str:
    """Return the id that begins with `name`, or `name` itself if a cluster has that name or no id begins with it.

    A `name` shorter than `ENOUGH_OF_AN_ID` is returned unchanged. Raises UsageError if several ids begin with `name`.
    """
    if name in detached or any(name == cluster.name for cluster in hosted) or len(name) < ENOUGH_OF_AN_ID:
        return name
    known = {cluster.cluster for cluster in hosted} | {kept.cluster for kept in detached.values()}
    ids = {key for key in known if key.startswith(name)}
    if len(ids) > 1:
        raise UsageError(f"{len(ids)} clusters have an id that begins with {name!r}: {', '.join(sorted(ids))}.")
    return next(iter(ids), name)


def _pythons(hosts: Sequence[str], python: str | None) -> dict[str, Interpreter]:
    """The Python that has allranks, for this machine and each of `hosts`. Raises UsageError."""
    named = {host.name: interpreter_of(host.python or python) for host in named_hosts(hosts) if not host.local}
    return {HERE: Interpreter(sys.executable), **named}


def _elsewhere(python: str | None, mine: Sequence[OnHost], detached: Sequence[Detached]) -> dict[str, Interpreter]:
    """The other hosts of clusters whose notebook was on this machine, and the Python that has allranks there."""
    found: dict[str, str] = {}
    for kept in detached:
        found |= {host: str(saved.get("python")) for host, saved in kept.logins.items()}
    for part in mine:
        if part.cluster.host == part.asked == HERE:
            found |= part.cluster.logins
    return {host: Interpreter(python or there) for host, there in found.items()}


def _not_asked(mine: Sequence[OnHost], asked: Collection[str]) -> dict[str, str]:
    """The cluster's hosts that were not asked, by their names in the cluster, and why."""
    covered = {part.cluster.host for part in mine}
    missing = [host for host in mine[0].cluster.logins if host not in covered and host not in asked]
    return dict.fromkeys(missing, "it was not named with --hosts")


def _no_such(name: str, parts: Sequence[OnHost], unreached: Mapping[str, str], unreadable: Sequence[str]) -> str:
    others = ", ".join(sorted({part.cluster.name for part in parts if part.running}))
    said = f"no cluster named {name!r} was found. " + (f"Available: {others}. " if others else "")
    if unreached or unreadable:
        return said + " ".join(
            [*unreadable, *(f"{host} could not be asked: {why}." for host, why in unreached.items())]
        )
    return said + "To look on other hosts, too: --hosts A,B."


def left_behind_on(answers: Mapping[str, Sequence[object]]) -> list[RunningCluster]:
    """The clusters whose notebook is gone, as hosts reported at login, without clusters that can be attached here."""
    known = {kept.cluster for kept in detached_clusters().values()}
    parts = [part for part in _parts(answers)[0] if part.cluster.cluster not in known]
    return _clusters(parts)


def _ask(pythons: Mapping[str, Interpreter]) -> tuple[list[OnHost], dict[str, str], list[str]]:
    """Ask hosts for their parts of all clusters; also returns unreached hosts, and a sentence per unreadable cluster.

    `pythons`: the Python that has allranks on each host.
    """
    answers, unreached = _run(pythons, "list")
    parts, unreadable = _parts(answers)
    return parts, unreached, unreadable


def _parts(answers: Mapping[str, Sequence[object]]) -> tuple[list[OnHost], list[str]]:
    """Parse what `hosted_clusters.listed` printed on hosts; also returns a sentence on each unreadable cluster."""
    parts: dict[tuple[str, str], OnHost] = {}
    unreadable = []
    for name, told in answers.items():
        for each in told:
            try:
                part = msgspec.convert(each, OnHost)
            except msgspec.ValidationError:
                if isinstance(each, dict) and each.get("running"):  # else only the cluster's files are left
                    unreadable.append(_unreadable(name, each.get("cluster")))
            else:
                # A machine may have been asked under several names.
                parts.setdefault((part.cluster.node, part.cluster.folders[0]), replace(part, asked=name))
    return [*parts.values()], unreadable


def _unreadable(host: str, told: object) -> str:
    """A sentence on a cluster described by another version of allranks, from the fields that can be read."""
    cluster, here = told if isinstance(told, dict) else {}, installed("allranks")
    name, version, python = (cluster.get(field) for field in ("name", "version", "python"))
    there = f" There: {shlex.quote(python)} -m allranks list" if isinstance(python, str) else ""
    which = f"{other_version(version)}, which this one ({here}) cannot read."
    return f"{name or 'A cluster'} on {host} runs with {which}{there}"


def _run(pythons: Mapping[str, Interpreter], what: str) -> tuple[dict[str, list[object]], dict[str, str]]:
    """Run `MODULE` on hosts; returns each host's answer, and why hosts without an answer could not be asked.

    `what` is ``list``, or the id of the cluster to end.
    """
    folders = [kept.directory for kept in detached_clusters().values()]

    def command(host: Host) -> dict[str, str]:
        more = folders if host.local else []
        return {"clusters": shlex.join([*pythons[host.name].words(), "-m", MODULE, what, *more])}

    answers: dict[str, list[object]] = {}
    unreached = {}
    for told in survey([host_named(name) for name in pythons], command):
        name, answer = told.host.name, told.answers.get("clusters")
        if told.trouble or answer is None:
            unreached[name] = told.trouble
            continue
        try:
            answers[name] = msgspec.json.decode(answer.out, type=list[object])
        except msgspec.DecodeError:
            said = answer.err.splitlines() or ["it did not answer in time"]
            unreached[name] = explained(said, name, pythons[name].path)
    return answers, unreached
