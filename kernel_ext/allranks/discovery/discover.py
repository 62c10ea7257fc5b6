"""``%distributed discover``: how hosts are connected, a hostfile for them, and addresses for the cables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from allranks.errors import HostUnreachable, UsageError
from allranks_backends.hostfile import host_named
from allranks_backends.machines import ethernet_hosts as servers
from allranks_backends.protocol import BackendError
from allranks_backends.thunderbolt import addressing, cables, notes, thunderbolt_ports
from allranks_backends.thunderbolt.proposal import over_ethernet, over_thunderbolt
from allranks_backends.thunderbolt.thunderbolt_ports import Mac

from .discovery_result import Discovery, setup_text
from .survey import Surveyed, survey

SYSTEM, STEPS = "system", "steps"
COMMANDS = {SYSTEM: "uname -s", **thunderbolt_ports.COMMANDS, **servers.COMMANDS}


def discover(hosts: Sequence[str] = ("localhost",), *, over: str | None = None) -> Discovery:
    """Find how `hosts` (ssh names) are connected. Logs in to each host once.

    `over` is ``thunderbolt`` or ``ethernet``; None means Thunderbolt if all hosts are Macs, and Ethernet otherwise.
    Raises UsageError for invalid arguments, and HostUnreachable, which names all hosts that cannot be reached, or a
    host whose answers cannot be understood.
    """
    names = [name for name in hosts if name]
    if not names:
        raise UsageError("--hosts: no hosts given.")
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--hosts names {', '.join(sorted(twice))} twice: name each host once.")
    if over not in (None, "thunderbolt", "ethernet"):
        raise UsageError(f"invalid --over {over}: use thunderbolt or ethernet.")
    found = survey([host_named(name) for name in names], COMMANDS)
    if troubles := [f"{name}: {each.trouble}." for name, each in zip(names, found, strict=True) if each.trouble]:
        raise HostUnreachable("\n".join(troubles))
    systems = {name: each.out(SYSTEM).strip() for name, each in zip(names, found, strict=True)}
    others = [name for name, system in systems.items() if system != "Darwin"]
    if over == "thunderbolt" and others:
        raise UsageError(f"{', '.join(others)}: not a Mac; MLX uses Thunderbolt between Macs only. Use --over ethernet")
    try:
        if over == "ethernet" or others:
            return _over_ethernet(names, found)
        return _over_thunderbolt(names, found)
    except BackendError as error:
        raise HostUnreachable(str(error)) from None


def set_up(discovery: Discovery) -> Discovery:
    """Run the pending commands on each host, and discover again. Raises HostUnreachable with each host's failure."""
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
        notes=tuple(map(str, notes.notes(macs, joined, addresses))),
        todo=addressing.commands(macs, addresses) if proposal is not None else {},
        set_up=set_up,
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
        return thunderbolt_ports.mac_from(name, _answers(found))
    except ValueError as error:
        raise HostUnreachable(f"{name}: {error}.") from None


def _answers(found: Surveyed) -> dict[str, str]:
    return {name: found.out(name) for name in COMMANDS}


def _in_order(lines: Sequence[str]) -> str:
    """A shell command that runs `lines` in order until one fails, and prints `STEPS` after each that succeeds.

    Its sudo fails instead of asking for a password.
    """
    return " && ".join(f"{{ {line.replace('sudo ', 'sudo -n ')}; }} && echo {STEPS}" for line in lines)


def _failed(name: str, lines: Sequence[str], there: Surveyed) -> str:
    """Describe which line failed on a host, with its error; empty if all succeeded."""
    if there.trouble:
        return f"{name}: {there.trouble}."
    answer = there.answers[STEPS]
    if answer.ok:
        return ""
    line = lines[answer.out.split().count(STEPS)]
    said = (answer.err.strip() or f"exit code {answer.code}").splitlines()[-1]
    hint = " Run the commands there yourself, or configure sudo to ask for no password." if "password" in said else ""
    return f"{name}: {line}: {said}.{hint}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``discover``, for the magic and for the shell."""
    parser.add_argument("--hosts", metavar="A,B", default="localhost", help="as for up (default: this machine)")
    parser.add_argument("--over", choices=["thunderbolt", "ethernet"], help="default: Thunderbolt between Macs")
    parser.add_argument("--output", metavar="F", help="write the hostfile")
    parser.add_argument("--setup", action="store_true", help="show the addresses for the cables, and ask to set them")
    parser.add_argument("--yes", action="store_true", help="with --setup: do not ask")


def run(options: argparse.Namespace, show: Callable[[Discovery], None], verb: str) -> bool:
    """Run ``discover``: show the result, set up addresses, write the hostfile, and print the next command.

    Returns whether a world can be formed. `verb` is the command as it was typed, for messages. Raises UsageError and
    HostUnreachable.
    """
    if options.yes and not options.setup:
        raise UsageError("--yes needs --setup.")
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
        print(f"{options.output} was not written: the cables form neither a ring nor a mesh.")
    return found.proposal is not None


def _asked_set_up(found: Discovery, yes: bool) -> Discovery:
    if not found.todo:
        print("Nothing to set up.")
        return found
    print(setup_text(found))
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
        print("Nothing was run: no interactive input here. Use --yes to run it without asking.")
        return False
    if answer.strip().lower() in ("y", "yes"):
        return True
    print("Nothing was run.")
    return False
