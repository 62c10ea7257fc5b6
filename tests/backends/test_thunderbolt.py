"""What Macs say, read; cables found, missing and odd; addresses for them. The words come from `tests.hosts.darwin`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from ipaddress import IPv4Interface
from itertools import combinations

import pytest

from allranks_backends.doctor.finding import Finding
from allranks_backends.doctor.host_facts import Asked, HostFacts
from allranks_backends.doctor.macs import thunderbolt
from allranks_backends.protocol import BackendError
from allranks_backends.thunderbolt import addressing, cables, notes, proposal
from allranks_backends.thunderbolt.cables import find_cables, layout_of, missing_in_mesh, missing_in_ring, proposals
from allranks_backends.thunderbolt.thunderbolt_ports import Mac, mac_from
from tests.hosts import cabling, darwin
from tests.hosts.cabling import Cable, Cabling

pytestmark = pytest.mark.usefixtures("mlx")


def read(described: Cabling, en0: str = "10.77.1.{}") -> list[Mac]:
    """The Macs as they would be found, with addresses 10.77.1.11 and on."""
    return [_read(described, mac, en0.format(11 + number)) for number, mac in enumerate(described.macs)]


def _read(described: Cabling, mac: cabling.Mac, address: str) -> Mac:
    answers = {
        "thunderbolt": darwin.system_profiler(described, mac),
        "hardware ports": darwin.networksetup(mac),
        "rdma devices": darwin.ibv_devices(mac),
        "rdma": "enabled\n" if mac.rdma else "disabled\n",
        "ifconfig": "".join(darwin.ifconfig(described, mac, address).values()),
        "en0": f"{address}\n",
        "macos": f"{mac.macos}\n",
        "memory": str(mac.model.memory),
    }
    return mac_from(mac.name, answers)


def said(described: Cabling, en0: str = "10.77.1.{}") -> list[str]:
    macs = read(described, en0)
    found = find_cables(macs)
    return [str(note) for note in notes.notes(macs, found, addressing.addressing(macs, layout_of(macs)))]


def wanted(described: Cabling, mesh: bool = False) -> list[str]:
    macs = read(described)
    found = find_cables(macs)
    return proposals(macs, found, (missing_in_mesh if mesh else missing_in_ring)(macs, found))


def test_a_mac_is_what_it_says() -> None:
    mac = read(cabling.RING_OF_FOUR)[0]
    assert (mac.model, mac.macos, mac.memory, mac.generation) == ("Mac Studio", "26.2", 512 << 30, 5)
    assert (mac.address, mac.bridge, mac.rdma_status, len(mac.rdma_devices)) == ("10.77.1.11", "down", "enabled", 6)
    assert [port.number for port in mac.ports] == ["1", "2", "3", "4", "5", "6"]
    second, last = mac.ports[1], mac.ports[5]
    assert (second.interface, second.speed, second.plugged, second.rdma) == ("en3", 80.0, True, True)
    assert second.peer is not None and second.peer.domain == cabling.RING_OF_FOUR["mac2"].domain(2)
    assert last.device == "Studio Display" and last.plugged and not last.macs, "a display is no Mac"


def test_a_mac_that_answers_nothing_has_no_ports_and_nonsense_is_named() -> None:
    assert mac_from("mac1", {}) == Mac("mac1")
    with pytest.raises(ValueError, match="system_profiler did not answer as it should: 'usage'"):
        mac_from("mac1", {"thunderbolt": "usage"})


def test_a_mac_without_ports_is_told() -> None:
    (note,) = notes.notes([Mac("mac1")], (), addressing.Addressing({}))
    assert str(note) == "system_profiler SPThunderboltDataType lists no Thunderbolt port on mac1."


def test_a_bus_without_a_domain_is_no_port() -> None:
    told = json.loads(darwin.system_profiler(cabling.TWO_CABLES, cabling.TWO_CABLES["mac1"]))
    del told["SPThunderboltDataType"][0]["domain_uuid_key"]
    assert len(mac_from("mac1", {"thunderbolt": json.dumps(told)}).ports) == 5


@pytest.mark.parametrize(
    ("described", "backend", "count"),
    [
        (cabling.MESH_OF_FOUR, "jaccl", 6),
        (cabling.MESH_LESS_ONE, "jaccl-ring", 5),
        (cabling.RING_OF_FOUR, "jaccl-ring", 4),
        (cabling.TWO_CABLES, "jaccl", 2),
        (cabling.THUNDERBOLT_4, "ring", 1),
        (cabling.RDMA_OFF, "ring", 6),
    ],
)
def test_cables_and_what_they_allow(described: Cabling, backend: str, count: int) -> None:
    macs = read(described)
    found = find_cables(macs)
    assert len(found) == count and all(cable.usable for cable in found)
    layout = layout_of(macs)
    proposed = proposal.over_thunderbolt(macs, layout, addressing.addressing(macs, layout))
    assert proposed is not None and proposed.backend == proposed.hostfile["backend"] == backend
    assert len(proposed.hostfile["hosts"]) == len(macs)


def test_both_ends_list_two_cables_in_the_same_order() -> None:
    """exo #2160: transfers stop where they do not."""
    macs = read(cabling.TWO_CABLES)
    layout = layout_of(macs)
    proposed = proposal.over_thunderbolt(macs, layout, addressing.addressing(macs, layout))
    assert proposed is not None
    there, back = (host["rdma"][1 - rank] for rank, host in enumerate(proposed.hostfile["hosts"]))
    assert (there, back) == (["rdma_en4", "rdma_en5"], ["rdma_en6", "rdma_en3"])
    assert any("2 cables (en4 to en6, en5 to en3)" in note for note in said(cabling.TWO_CABLES))


def test_the_cable_that_is_missing_is_named_with_free_ports() -> None:
    assert wanted(cabling.OPEN_RING) == ["connect mac1 port 3 with mac4 port 3"]
    assert wanted(cabling.MESH_LESS_ONE) == []
    assert wanted(cabling.MESH_LESS_ONE, mesh=True) == ["connect mac2 port 4 with mac4 port 3"]
    assert wanted(Cabling(cabling.macs(2), ())) == ["connect mac1 port 2 with mac2 port 2"], "port 1 has no RDMA"
    assert wanted(Cabling(cabling.macs(3), cabling.joined("mac", [(1, 2)]))) == [
        "connect mac1 port 3 with mac3 port 2",
        "connect mac2 port 3 with mac3 port 3",
    ]


def test_nine_macs_get_a_ring_too() -> None:
    nine = Cabling(cabling.macs(9), cabling.joined("mac", [(at, at + 1) for at in range(1, 9)]))
    assert wanted(nine) == ["connect mac1 port 3 with mac9 port 3"]
    assert wanted(nine, mesh=True) == [], "a mesh takes eight"


def test_macs_without_free_ports_are_told_what_is_in_them() -> None:
    full = tuple(Cable("mac1", port, f"Drive {port}") for port in (1, 2, 3))
    (told,) = wanted(Cabling(cabling.macs(2, cabling.M4_PRO), full))
    assert told.startswith(
        "connect mac1 with mac2, for which a Thunderbolt port must be freed on mac1 (port 1: Drive 1"
    )


def test_a_hub_between_two_macs_is_named() -> None:
    assert wanted(cabling.HUB) == [
        "connect mac1 port 3 with mac2 port 2 directly: CalDigit TS5 Plus is between them now"
    ]
    (cable,) = find_cables(read(cabling.HUB))
    assert cable.behind == ("CalDigit TS5 Plus",) and not cable.usable


def test_a_cable_that_one_end_alone_sees_is_to_be_plugged_in_again() -> None:
    macs = read(Cabling(cabling.macs(2), (Cable("mac1", 3, "mac2", 5),)))
    blind = replace(macs[1], ports=tuple(replace(port, macs=()) for port in macs[1].ports))
    found = find_cables([macs[0], blind])
    assert found[0].seen_by == 0
    told = proposals([macs[0], blind], found, [(0, 1)])
    assert told == ["unplug the cable at mac2 port 5 and plug it in again: mac2 does not see the other end"]


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (cabling.BRIDGE_UP, r"bridge0\) is up on mac1, mac2, mac3 and mac4.*--setup takes it down"),
        (cabling.RDMA_OFF, r"RDMA is off on mac1, mac2, mac3 and mac4: start the Mac in Recovery.*System Settings"),
        (cabling.THUNDERBOLT_4, r"mac1 and mac2 have Thunderbolt 4, which never has RDMA"),
        (cabling.HUB, r"mac1 port 3 and mac2 port 2 are joined through CalDigit TS5 Plus"),
        (Cabling(cabling.macs(2, rdma=False, macos="26.1"), ()), r"mac1 runs macOS 26.1; .* came with 26.2: update"),
        (
            Cabling(cabling.macs(2), (Cable("mac1", 3, "mac2", 3, speed=40),)),
            r"mac1 port 3 and mac2 port 3 runs at 40 Gb/s, and both Macs have Thunderbolt 5",
        ),
        (
            Cabling(cabling.macs(2), (Cable("mac1", 1, "mac2", 3),)),
            r"mac1 port 1 \(en2\) is the one beside Ethernet, which has no RDMA",
        ),
    ],
)
def test_what_is_odd_is_said(described: Cabling, words: str) -> None:
    assert any(re.search(words, note) for note in said(described)), said(described)


def test_thunderbolt_4_is_never_sent_to_recovery_and_health_says_nothing() -> None:
    assert not any("Recovery" in note for note in said(cabling.THUNDERBOLT_4))
    assert said(cabling.MESH_OF_FOUR) == []


def test_a_mac_that_was_not_asked_is_seen() -> None:
    macs = read(cabling.RING_OF_FOUR)[:3]
    told = [*map(str, notes.notes(macs, find_cables(macs), addressing.Addressing({})))]
    assert any("mac1 port 3 is joined to a Mac Studio that is not among these hosts" in note for note in told)


def test_a_device_that_is_not_listed_is_told() -> None:
    macs = read(Cabling(cabling.macs(2), (Cable("mac1", 3, "mac2", 3),)))
    ports = tuple(replace(port, rdma=port.number != "3") for port in macs[0].ports)
    some = [replace(macs[0], ports=ports), macs[1]]
    told = [*map(str, notes.notes(some, find_cables(some), addressing.Addressing({})))]
    assert "mac1 port 3 (en4) has no RDMA device: move its cable to another port." in told


def test_addresses_and_commands_are_those_of_mlx() -> None:
    macs = read(cabling.TWO_CABLES)
    todo = addressing.commands(macs, addressing.addressing(macs, layout_of(macs)))
    assert todo["mac2"] == [
        "sudo ifconfig en6 inet 192.168.0.2 netmask 255.255.255.252",
        "sudo route change 192.168.0.1 -interface en6 || sudo route add 192.168.0.1 -interface en6",
        "sudo ifconfig en3 inet 192.168.0.6 netmask 255.255.255.252",
        "sudo route change 192.168.0.5 -interface en3 || sudo route add 192.168.0.5 -interface en3",
    ]
    bridged = read(Cabling(cabling.macs(2, bridge="up"), cabling.TWO_CABLES.cables))
    assert addressing.commands(bridged, addressing.Addressing({})) == {
        name: ["sudo ifconfig bridge0 down"] for name in ("mac1", "mac2")
    }


def test_what_is_set_already_is_not_set_again() -> None:
    macs = read(replace(cabling.TWO_CABLES, addressed=True))
    assert addressing.commands(macs, addressing.addressing(macs, layout_of(macs))) == {}


def test_a_network_that_a_host_is_in_is_left_alone_and_said() -> None:
    macs = read(cabling.TWO_CABLES, en0="192.168.0.{}")
    given = addressing.addressing(macs, layout_of(macs))
    assert given.ends[0, 1] == (("en4", "192.168.64.1"), ("en5", "192.168.64.5"))
    assert given.ends[1, 0] == (("en6", "192.168.64.2"), ("en3", "192.168.64.6"))
    assert "mac1 has 192.168.0.0/24 on en0" in given.moved and "from 192.168.64.0 on" in given.moved
    assert given.moved in map(str, notes.notes(macs, find_cables(macs), given))


def test_all_private_networks_taken() -> None:
    macs = read(cabling.TWO_CABLES)
    every = tuple((f"en{at}", IPv4Interface(net)) for at, net in ((8, "192.168.0.1/16"), (9, "172.16.0.1/12")))
    taken = replace(macs[0], networks=(*every, ("en10", IPv4Interface("10.0.0.1/8"))))
    with pytest.raises(BackendError, match="no private network is left"):
        addressing.addressing([taken, macs[1]], layout_of(macs))


def test_the_fewest_cables_close_a_ring() -> None:
    """Whatever four Macs are joined by, the proposed cables make a ring, and none of them could be left out."""
    pairs = [*combinations(range(1, 5), 2)]
    for chosen in (pairs[:1], pairs[:2], pairs[1:4], [pairs[0], pairs[5]], pairs[:3]):
        macs = read(Cabling(cabling.macs(4), cabling.joined("mac", chosen)))
        lacking = missing_in_ring(macs, find_cables(macs))
        after = [*chosen, *((one + 1, other + 1) for one, other in lacking)]
        assert layout_of(read(Cabling(cabling.macs(4), cabling.joined("mac", after)))).whole_ring(4)
        for left_out in lacking:
            fewer = [pair for pair in after if pair != (left_out[0] + 1, left_out[1] + 1)]
            assert not layout_of(read(Cabling(cabling.macs(4), cabling.joined("mac", fewer)))).whole_ring(4)
    assert cables.can_mesh(macs)


def test_the_doctor_names_the_address_that_a_port_has_and_the_one_proposed() -> None:
    def found(held: str) -> list[Finding]:
        macs = read(replace(cabling.TWO_CABLES, addressed=True))
        address = IPv4Interface(held) if held else None
        ports = tuple(replace(port, address=address) if port.interface == "en6" else port for port in macs[1].ports)
        hosts = [HostFacts(mac.name, mac=mac) for mac in (macs[0], replace(macs[1], ports=ports))]
        return [each for each in thunderbolt(hosts, Asked(backend="jaccl")) if each.severity != "note"]

    assert found("192.168.0.2/30") == []
    [other] = found("169.254.7.7/16")
    assert (other.severity, other.host) == ("warning", "mac2")
    assert other.what.startswith("Other addresses than proposed: en6 has 169.254.7.7/16 instead of 192.168.0.2/30.")
    [none] = found("")
    assert (none.severity, none.host) == ("error", "mac2") and "no IPv4 address" in none.what
