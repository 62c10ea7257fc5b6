"""``%distributed discover``: what the hosts are joined by, the hostfile for it, and the addresses of the cables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from allranks_backends import addressing, cables, servers, thunderbolt, thunderbolt_notes
from allranks_backends._backend import BackendError
from allranks_backends.hostfile import host_named
from allranks_backends.proposal import over_ethernet, over_thunderbolt
from allranks_backends.thunderbolt import Mac

from . import _discovered_words
from ._discovery import Discovery
from ._survey import Surveyed, survey
from .errors import HostUnreachable, UsageError

SYSTEM, STEPS = "system", "steps"
COMMANDS = {SYSTEM: "uname -s", **thunderbolt.COMMANDS, **servers.COMMANDS}


def discover(hosts: Sequence[str] = ("localhost",), *, over: str | None = None) -> Discovery:
    """Find out what joins `hosts` (names for ssh), over ``thunderbolt`` or ``ethernet``; None for Thunderbolt between
    Macs and Ethernet for all else. One login each. Raises HostUnreachable, naming each host that cannot be asked."""
    names = [name for name in hosts if name]
    if not names:
        raise UsageError("--hosts: no host is named.")
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--hosts names {', '.join(sorted(twice))} twice: each host is asked once.")
    if over not in (None, "thunderbolt", "ethernet"):
        raise UsageError(f"--over {over}: thunderbolt or ethernet.")
    found = survey([host_named(name) for name in names], COMMANDS)
    if troubles := [f"{name}: {each.trouble}." for name, each in zip(names, found, strict=True) if each.trouble]:
        raise HostUnreachable("\n".join(troubles))
    systems = {name: each.out(SYSTEM).strip() for name, each in zip(names, found, strict=True)}
    others = [name for name, system in systems.items() if system != "Darwin"]
    if over == "thunderbolt" and others:
        raise UsageError(f"{', '.join(others)}: no Mac, and MLX uses Thunderbolt between Macs only. --over ethernet")
    try:
        if over == "ethernet" or others:
            return _over_ethernet(names, found)
        return _over_thunderbolt(names, found)
    except BackendError as error:
        raise HostUnreachable(str(error)) from None


def set_up(discovery: Discovery) -> Discovery:
    """Run what is left to do on each host, and look again. Raises HostUnreachable with what failed and where."""
    todo = discovery.todo
    if not todo:
        return discovery
    hosts = {name: host_named(name) for name in todo}
    lines = {hosts[name]: todo[name] for name in todo}
    done = survey([*lines], lambda host: {STEPS: _in_order(lines[host])})
    failures = [said for name, each in zip(todo, done, strict=True) if (said := _failed(name, todo[name], each))]
    if failures:
        raise HostUnreachable("\n".join(failures))
    return discover(discovery.names, over=discovery.over)


def _over_thunderbolt(names: Sequence[str], found: Sequence[Surveyed]) -> Discovery:
    macs = [_mac(name, each) for name, each in zip(names, found, strict=True)]
    joined = cables.find_cables(macs)
    layout = cables.layout_of(macs)
    addresses = addressing.addressing(macs, layout)
    proposal = over_thunderbolt(macs, layout, addresses)
    wanted = cables.missing_in_ring(macs, joined) if proposal is None else []
    rdma = all(mac.has_rdma for mac in macs)
    more = cables.missing_in_mesh(macs, joined) if rdma and not layout.mesh else []
    return Discovery(
        tuple(names),
        "thunderbolt",
        macs=tuple(macs),
        cables=joined,
        addresses=addresses,
        proposal=proposal,
        missing=tuple(cables.proposals(macs, joined, wanted)),
        for_mesh=tuple(cables.proposals(macs, joined, more)),
        notes=tuple(map(str, thunderbolt_notes.notes(macs, joined, addresses))),
        todo=addressing.commands(macs, addresses) if proposal is not None else {},
    )


def _over_ethernet(names: Sequence[str], found: Sequence[Surveyed]) -> Discovery:
    both = list(zip(names, found, strict=True))
    macs = [_mac(name, each) for name, each in both if each.out(SYSTEM).strip() == "Darwin"]
    if len(macs) == len(names):
        silent = [f"{mac.name} has no address on en0 or en1." for mac in macs if not mac.address]
        return Discovery(tuple(names), "ethernet", macs=tuple(macs), proposal=over_ethernet(macs), notes=tuple(silent))
    known = {mac.name: servers.server_of(mac) for mac in macs}
    hosts = [known.get(name) or servers.server_from(name, _answers(each)) for name, each in both]
    return Discovery(
        tuple(names),
        "ethernet",
        servers=tuple(hosts),
        proposal=servers.over_network(hosts),
        notes=tuple(servers.notes(hosts)),
    )


def _mac(name: str, found: Surveyed) -> Mac:
    try:
        return thunderbolt.mac_from(name, _answers(found))
    except ValueError as error:
        raise HostUnreachable(f"{name}: {error}.") from None


def _answers(found: Surveyed) -> dict[str, str]:
    return {name: found.out(name) for name in COMMANDS}


def _in_order(lines: Sequence[str]) -> str:
    """Until one fails; each that went well says so."""
    return " && ".join(f"{{ {line.replace('sudo ', 'sudo -n ')}; }} && echo {STEPS}" for line in lines)


def _failed(name: str, lines: Sequence[str], there: Surveyed) -> str:
    """Which line failed on a host, and what it said; empty if all went well."""
    if there.trouble:
        return f"{name}: {there.trouble}."
    answer = there.answers[STEPS]
    if answer.ok:
        return ""
    line = lines[answer.out.split().count(STEPS)]
    said = (answer.err.strip() or f"exit code {answer.code}").splitlines()[-1]
    hint = " Run its lines there yourself, or let sudo ask for no password." if "password" in said else ""
    return f"{name}: {line}: {said}.{hint}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb, for the magic and for the shell."""
    parser.add_argument("--hosts", metavar="A,B", default="localhost", help="as for up (default: this machine)")
    parser.add_argument("--over", choices=["thunderbolt", "ethernet"], help="default: Thunderbolt between Macs")
    parser.add_argument("--output", metavar="F", help="write the hostfile")
    parser.add_argument("--setup", action="store_true", help="show the addresses to be given to the cables, and ask")
    parser.add_argument("--yes", action="store_true", help="with --setup: do not ask")


def run(options: argparse.Namespace, show: Callable[[Discovery], None], verb: str) -> bool:
    """The verb: look, show, write the hostfile, set up, and say the next line. Returns whether a world can be formed.
    `verb` is how this was called, for messages."""
    if options.yes and not options.setup:
        raise UsageError("--yes goes with --setup.")
    found = discover([name.strip() for name in options.hosts.split(",")], over=options.over)
    show(found)
    if options.setup:
        found = _asked_set_up(found, options.yes)
    if options.output and found.proposal is not None:
        try:
            found.write(options.output)
        except OSError as error:
            raise UsageError(f"--output {options.output}: {error.strerror}.") from None
        print(f"wrote {options.output}. Next: %distributed up --hostfile {options.output}")
    elif found.proposal is not None and len(found.names) > 1:
        print(f"Next: {verb} --hosts {','.join(found.names)} --output cluster.json")
    elif options.output:
        print(f"{options.output} is not written: the cables join the hosts neither in a ring nor in a mesh.")
    return found.proposal is not None


def _asked_set_up(found: Discovery, yes: bool) -> Discovery:
    if not found.todo:
        print("There is nothing to set up.")
        return found
    print(_discovered_words.setup(found))
    if not yes and not _agreed():
        return found
    after = set_up(found)
    left = f" Left to do on {', '.join(after.todo)}." if after.todo else ""
    print(f"Set up {', '.join(found.todo)}; it lasts until the next restart.{left}")
    return after


def _agreed() -> bool:
    try:
        answer = input("Run this on the hosts? [y/N] ")
    except (EOFError, OSError, NotImplementedError):  # no terminal, or a notebook run by a program
        print("Nothing was run: nobody can be asked here. With --yes it is run without asking.")
        return False
    if answer.strip().lower() in ("y", "yes"):
        return True
    print("Nothing was run.")
    return False
