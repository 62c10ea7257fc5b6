"""Interfaces, as ``ifconfig`` and ``ip -j addr`` tell them."""

from __future__ import annotations

from ipaddress import IPv4Interface

from allranks_backends.interfaces import interfaces_of

IFCONFIG = """\
lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\tether 1c:1d:d3:00:00:01
\tinet6 fe80::1%en0 prefixlen 64 secured scopeid 0xb
\tinet 192.168.1.20 netmask 0xffffff00 broadcast 192.168.1.255
bridge0: flags=8822<BROADCAST,SMART,SIMPLEX,MULTICAST> mtu 1500
"""


def test_the_interfaces_of_a_mac() -> None:
    en0, bridge0 = interfaces_of(IFCONFIG)
    assert (en0.name, en0.up, en0.mtu, en0.addresses) == ("en0", True, 1500, (IPv4Interface("192.168.1.20/24"),))
    assert (bridge0.name, bridge0.up, bridge0.addresses) == ("bridge0", False, ())


def test_the_interfaces_of_a_linux_host() -> None:
    told = """[
        {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536,
         "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
        {"ifname": "eth0", "flags": ["BROADCAST", "UP"], "mtu": 9000,
         "addr_info": [{"family": "inet", "local": "10.0.0.3", "prefixlen": 24},
                       {"family": "inet6", "local": "fe80::1", "prefixlen": 64}]}]"""
    (eth0,) = interfaces_of(told)
    assert (eth0.name, eth0.up, eth0.mtu, eth0.addresses) == ("eth0", True, 9000, (IPv4Interface("10.0.0.3/24"),))
