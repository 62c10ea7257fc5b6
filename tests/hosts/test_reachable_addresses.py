"""At which addresses hosts meet: on a network they share, by preference the one that ssh used."""

from __future__ import annotations

from allranks.hosts.reachable_addresses import HostNetwork, reachable_addresses


def test_the_network_that_ssh_used_is_preferred() -> None:
    hosts = {
        "mac1": HostNetwork(["192.168.9.1/24", "10.0.0.1/24"], "10.0.0.1"),
        "mac2": HostNetwork(["192.168.9.2/24", "10.0.0.2/24"], "10.0.0.2"),
    }
    assert reachable_addresses(hosts) == {"mac1": "10.0.0.1", "mac2": "10.0.0.2"}


def test_a_shared_network_where_ssh_came_over_ipv6_or_a_proxy() -> None:
    hosts = {
        "mac1": HostNetwork(["172.20.0.5/16", "10.0.0.1/24"], "fd00::1"),
        "mac2": HostNetwork(["10.0.0.2/24"], "127.0.0.1"),
        "mac3": HostNetwork(["10.0.0.3/24", "192.168.1.9/24"], None),
    }
    assert reachable_addresses(hosts) == {"mac1": "10.0.0.1", "mac2": "10.0.0.2", "mac3": "10.0.0.3"}


def test_a_network_on_which_all_have_the_same_address_joins_nobody() -> None:
    hosts = {
        "gpu1": HostNetwork(["172.17.0.1/16", "10.0.0.1/24"], "10.0.0.1"),
        "gpu2": HostNetwork(["172.17.0.1/16", "10.0.0.2/24"], "10.0.0.2"),
    }
    assert reachable_addresses(hosts) == {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2"}


def test_without_a_shared_network_each_keeps_what_ssh_used() -> None:
    hosts = {
        "near": HostNetwork(["10.1.0.1/24", "10.2.0.1/24"], "10.2.0.1"),
        "far": HostNetwork(["10.3.0.1/24"], "203.0.113.9"),
        "bare": HostNetwork([], None),
    }
    assert reachable_addresses(hosts) == {"near": "10.2.0.1", "far": "10.3.0.1"}


def test_of_two_addresses_on_the_shared_network_the_one_that_ssh_used() -> None:
    hosts = {"a": HostNetwork(["10.0.0.1/24", "10.0.0.7/24"], "10.0.0.7"), "b": HostNetwork(["10.0.0.2/24"], None)}
    assert reachable_addresses(hosts) == {"a": "10.0.0.7", "b": "10.0.0.2"}
