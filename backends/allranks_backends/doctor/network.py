"""Checks on host names, TCP ports and network interfaces."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Interface, IPv4Network, ip_address

from allranks_backends.interfaces import Interface
from allranks_backends.runtimes.placement_checks import bare_name

from .finding import Finding
from .host_facts import Asked, HostFacts

REFUSED = ("ECONNREFUSED",)
NO_WAY = ("EHOSTUNREACH", "ENETUNREACH", "EACCES", "EINVAL", "EPERM")


def names(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    told = {host.name: host.python["names"] for host in hosts if host.python is not None}
    for host in hosts:
        if len(hosts) < 2 or host.python is None or host.local:
            continue
        own = str(host.python["hostname"])
        found = host.python["names"].get(own, [])
        if found and all(ip_address(each).is_loopback for each in found):
            yield Finding(
                "warning",
                host.name,
                f"Its own name, {own}, resolves to loopback there: programs that look it up by name (Open MPI and"
                " NCCL may) get an address that no other host can reach.",
                f"{own} is {', '.join(found)}",
                *_entry(host, own, host.addresses),
            )
    for name in dict.fromkeys(name for known in told.values() for name in known):
        seen = {host: tuple(known[name]) for host, known in told.items() if known.get(name)}
        seen = {host: found for host, found in seen.items() if not any(ip_address(each).is_loopback for each in found)}
        if len(set(seen.values())) > 1:
            yield from _differently(hosts, name, seen)


def _differently(hosts: Sequence[HostFacts], name: str, seen: Mapping[str, tuple[str, ...]]) -> Iterator[Finding]:
    true = next((host.addresses for host in hosts if bare_name(host.name) == name and host.addresses), ())
    usual = true if true in seen.values() else Counter(seen.values()).most_common(1)[0][0]
    for host in hosts:
        if host.name in seen and seen[host.name] != usual:
            yield Finding(
                "warning",
                host.name,
                f"{name} is {', '.join(seen[host.name])} there, but {', '.join(usual)} on other hosts.",
                "; ".join(f"{each}: {', '.join(found)}" for each, found in seen.items()),
                *_entry(host, name, usual),
            )


def _entry(host: HostFacts, name: str, addresses: Sequence[str]) -> tuple[str, str]:
    """Return the command that gives `name` these addresses in /etc/hosts, and the host to run it on.

    If no command can be given, returns advice in words and "". The command writes to the same file, since /etc/hosts
    may be a mount. It keeps other names on the same line: many systems have ``127.0.0.1 localhost host1``.
    """
    if not addresses or not re.fullmatch(r"[\w.-]+", name):  # a host name may contain any character
        return f"give {name} its address in /etc/hosts", ""
    bare = name.replace(".", r"\.")
    without = shlex.quote(rf"/^#/!s/[[:space:]]+{bare}([[:space:]]|$)/\1/g; /^[^#[:space:]]+[[:space:]]*$/d")
    lines = "; ".join(f"echo {address} {name}" for address in addresses)
    keep = f"{{ {lines}; sed -E {without} /etc/hosts; }}"
    return f't=$(mktemp) && {keep} >"$t" && sudo cp "$t" /etc/hosts && rm "$t"', host.name


def ports(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    by_name = {host.name: host for host in hosts}
    for host in hosts:
        for other, reach in host.reaches.items():
            if not reach.error or other not in by_name:
                continue
            yield _unreachable(host, by_name[other], reach.address, reach.error)


def _unreachable(host: HostFacts, other: HostFacts, address: str, error: str) -> Finding:
    evidence = f"{host.name} to {address}: {error}"
    silent = error == "ETIMEDOUT" or error.startswith("no answer")
    if host.is_mac and (silent or error == "EHOSTUNREACH"):
        return Finding(
            "error",
            host.name,
            f"It cannot open TCP connections to {other.name}, though ssh works: macOS keeps programs off the local"
            " network until they are allowed.",
            evidence,
            "System Settings, Privacy & Security, Local Network: allow the terminal or sshd-keygen-wrapper",
            source="#3755, #2540",
        )
    if error in NO_WAY:
        return Finding(
            "error",
            host.name,
            f"It has no route to {other.name} at {address}.",
            evidence,
            f"ip route get {address}" if not host.is_mac else f"route get {address}",
            host.name,
        )
    sees_as = host.addresses[0] if host.addresses else host.name
    how = "get no answer" if silent else "are refused" if error in REFUSED else f"fail ({error})"
    return Finding(
        "error",
        other.name,
        f"TCP connections from {host.name} {how}: a firewall {'blocks' if silent else 'rejects'} them.",
        evidence,
        "System Settings, Network, Firewall: off, or allow incoming connections for python"
        if other.is_mac
        else f"sudo iptables -I INPUT -s {sees_as} -j ACCEPT",
        "" if other.is_mac else other.name,
        "#2540",
    )


def interfaces(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    used = {host.name: interface for host in hosts for interface in host.interfaces if _has(interface, host.addresses)}
    usual = Counter(interface.mtu for interface in used.values()).most_common(1)
    for host in hosts:
        interface = used.get(host.name)
        if interface is not None and len(hosts) > 1 and interface.mtu != usual[0][0]:
            command = f"ifconfig {interface.name} mtu" if host.is_mac else f"ip link set {interface.name} mtu"
            yield Finding(
                "warning",
                host.name,
                f"The MTU of its {interface.name} is {interface.mtu}, but {usual[0][0]} elsewhere: large messages may"
                " be lost silently.",
                f"{interface.name} mtu {interface.mtu}",
                f"sudo {command} {usual[0][0]}",
                host.name,
            )
        yield from _doubled(host)


def _doubled(host: HostFacts) -> Iterator[Finding]:
    """Report two interfaces with addresses in one network, since replies leave through only one of them."""
    seen: dict[IPv4Network, tuple[str, IPv4Interface]] = {}
    for interface in host.interfaces:
        for address in interface.addresses:
            network = address.network
            if not interface.up or network.prefixlen == 32 or address.ip.is_link_local:
                continue
            if network in seen and seen[network][0] != interface.name:
                spare = address if str(address.ip) not in host.addresses else seen[network][1]
                device = interface.name if spare == address else seen[network][0]
                remove = f"ifconfig {device} -alias {spare.ip}" if host.is_mac else f"ip addr del {spare} dev {device}"
                yield Finding(
                    "warning",
                    host.name,
                    f"Its interfaces {seen[network][0]} and {interface.name} are both in the network {network}: replies"
                    " leave through only one of them.",
                    f"{seen[network][1]}, {address}",
                    f"sudo {remove}",
                    host.name,
                )
            seen.setdefault(network, (interface.name, address))


def _has(interface: Interface, addresses: Sequence[str]) -> bool:
    return any(str(each.ip) in addresses for each in interface.addresses)
