"""The doctor holds a hostfile's RDMA devices against the cables that the Macs report."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allranks_backends.doctor import Asked, Finding, HostFacts, examine
from allranks_backends.doctor.wires import planned, wires
from allranks_backends.hostfile import read_hostfile
from allranks_backends.plan import Host
from allranks_backends.thunderbolt import addressing, proposal
from allranks_backends.thunderbolt.cables import layout_of
from allranks_backends.thunderbolt.thunderbolt_ports import Mac
from tests.hosts import cabling
from tests.hosts.cabling import Cable, Cabling

from .test_thunderbolt import read

pytestmark = pytest.mark.usefixtures("mlx")
THREE = Cabling(
    cabling.macs(3),
    (*cabling.joined("mac", [(1, 2), (1, 3), (2, 3)]), Cable("mac1", 5, "mac2", 5)),
)


def discovered(macs: list[Mac]) -> tuple[Host, ...]:
    """The ranks of the hostfile that `discover` writes for them."""
    layout = layout_of(macs)
    proposed = proposal.over_thunderbolt(macs, layout, addressing.addressing(macs, layout))
    assert proposed is not None
    return read_hostfile(json.dumps(proposed.hostfile)).hosts


def found(macs: list[Mac], ranks: tuple[Host, ...]) -> list[Finding]:
    facts = [HostFacts(mac.name, False, system="Darwin", mac=mac) for mac in macs]
    return list(wires(facts, Asked("jaccl", ranks=ranks)))


def changed(host: Host, **entries: Any) -> Host:
    """With other devices in some places, ``to1=("rdma_en2",)``."""
    row = tuple(entries.get(f"to{rank}", entry) for rank, entry in enumerate(host.rdma))
    return replace(host, rdma=row)


@pytest.mark.parametrize("described", [cabling.MESH_OF_FOUR, cabling.RING_OF_FOUR, cabling.TWO_CABLES, THREE])
def test_what_discover_writes_is_right(described: Cabling) -> None:
    macs = read(described)
    assert found(macs, discovered(macs)) == []


@given(st.integers(2, 5), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_discover_proposes_of_any_cables_is_a_world_that_up_can_plan(count: int, data: st.DataObject) -> None:
    free = {mac: list(range(1, 7)) for mac in range(1, count + 1)}
    connected = []
    for pair in data.draw(st.lists(st.sampled_from([*combinations(free, 2)]), max_size=12)):
        if all(free[mac] for mac in pair):
            one, other = (free[mac].pop(data.draw(st.integers(0, len(free[mac]) - 1))) for mac in pair)
            connected.append(Cable(f"mac{pair[0]}", one, f"mac{pair[1]}", other))
    macs = read(Cabling(cabling.macs(count, rdma=data.draw(st.booleans())), tuple(connected)))
    layout = layout_of(macs)
    proposed = proposal.over_thunderbolt(macs, layout, addressing.addressing(macs, layout))
    if proposed is not None:
        ranks = read_hostfile(json.dumps(proposed.hostfile)).hosts
        assert list(planned([], Asked(proposed.backend or "ring", ranks=ranks))) == []
        if proposed.backend and proposed.backend != "ring":
            assert found(macs, ranks) == []


def test_two_cables_in_another_order_at_one_end_are_found() -> None:
    """exo #2160: transfers stop."""
    macs = read(cabling.TWO_CABLES)
    first, second = discovered(macs)
    assert second.rdma[0] == ("rdma_en6", "rdma_en3")
    (finding,) = found(macs, (first, changed(second, to0=("rdma_en3", "rdma_en6"))))
    assert finding.severity == "error" and finding.source == "exo #2160"
    assert "Between ranks 0 and 1 the hostfile lists rdma_en4 and rdma_en3 at the same place" in finding.what
    assert finding.fix == "%distributed discover --hosts mac1,mac2 --output F"


def test_a_device_that_leads_elsewhere_is_found() -> None:
    macs = read(cabling.MESH_OF_FOUR)
    ranks = list(discovered(macs))
    row = ranks[0].rdma
    ranks[0] = changed(ranks[0], to1=row[2], to2=row[1])
    one, other = found(macs, tuple(ranks))
    assert f"{row[2][0]} is joined to {ranks[2].rdma[0][0]} of mac3" in one.what
    assert "Between ranks 0 and 2" in other.what


def test_a_port_without_a_cable_is_found() -> None:
    macs = read(cabling.TWO_CABLES)
    first, second = discovered(macs)
    (finding,) = found(macs, (changed(first, to1=("rdma_en3",)), changed(second, to0=("rdma_en6",))))
    assert "pairs rdma_en3 with rdma_en6 of mac2, and rdma_en3 leads nowhere" in finding.what


def test_a_device_that_is_gone_is_found() -> None:
    macs = read(cabling.TWO_CABLES)
    first, second = discovered(macs)
    (finding,) = found(macs, (changed(first, to1=("rdma_en4", "rdma_en14")), second))
    assert finding.host == "mac1" and "lists rdma_en14 for rank 0" in finding.what and "restart" in finding.what


def test_what_up_would_refuse_of_the_devices_is_an_error() -> None:
    """One device for two Macs, a cable listed at one end, a mesh with a gap, wires of a ring that differ in number."""
    ranks = discovered(read(cabling.MESH_OF_FOUR))
    one = changed(ranks[0], to1=ranks[0].rdma[2])
    gap = changed(ranks[0], to1=()), changed(ranks[1], to0=())
    two = changed(ranks[0], to1=("a", "b")), changed(ranks[1], to0=("c", "d"))
    for backend, first, second, said in (
        ("jaccl", one, ranks[1], "each device is one port"),
        ("jaccl", gap[0], ranks[1], "both ends of a cable must be listed"),
        ("jaccl-ring", gap[0], ranks[1], "both ends of a cable must be listed"),
        ("jaccl", *gap, "a mesh needs every pair joined by a cable"),
        ("jaccl-ring", *gap, "a ring needs both neighbours joined by a cable"),
        ("jaccl-ring", *two, "needs the same number of devices between all neighbours"),
        ("jaccl", Host("mac1"), ranks[1], "No RDMA devices are known for rank 0 (mac1)"),
    ):
        (finding,) = planned([], Asked(backend, ranks=(first, second, *ranks[2:])))
        assert finding.severity == "error" and "mac1, mac2" in finding.host, finding
        assert said in f"{finding.what} {finding.fix}", finding
    assert list(planned([], Asked("jaccl", ranks=ranks))) == []


def test_wires_that_stay_idle_are_a_note() -> None:
    macs = read(THREE)
    ranks = list(discovered(macs))
    assert ranks[0].rdma[1] == ("rdma_en3",)
    ranks[0], ranks[1] = (
        changed(ranks[0], to1=("rdma_en3", "rdma_en6")),
        changed(ranks[1], to0=("rdma_en3", "rdma_en6")),
    )
    (finding,) = found(macs, tuple(ranks))
    assert finding.severity == "note" and finding.host == "mac1, mac2"
    assert "more devices between ranks 0-1 than elsewhere: 1 of them is used" in finding.what


def test_it_is_asked_of_hostfiles_with_devices_alone() -> None:
    macs = read(cabling.TWO_CABLES)
    facts = [HostFacts(mac.name, False, system="Darwin", mac=mac) for mac in macs]
    looks_at = "the hostfile's RDMA devices against the cables"
    assert looks_at in examine(facts, Asked("jaccl", ranks=discovered(macs)))[1]
    assert looks_at not in examine(facts, Asked("jaccl", ranks=(Host("mac1"), Host("mac2"))))[1]
