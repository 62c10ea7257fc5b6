"""JACCL is wired as mlx.launch wires it, and a device matrix that cannot work is refused with its mistake."""

from __future__ import annotations

import pytest

from allranks_backends.plan import Host, Link, Platform
from allranks_backends.protocol import BackendError
from allranks_backends.runtimes.jaccl import Jaccl

MESH, RING = Jaccl(), Jaccl(ring=True)
MAC = Platform("Darwin", "26.2", {"ring": True, "jaccl": True}, mlx="0.32.4")

MESH_OF_3 = [[None, "a1", "a2"], ["b0", None, "b2"], ["c0", "c1", None]]
RING_OF_4 = [
    [None, ["a1", "a1+"], None, ["a3", "a3+"]],
    [["b0", "b0+"], None, ["b2", "b2+"], None],
    [None, ["c1", "c1+"], None, ["c3", "c3+"]],
    [["d0", "d0+"], None, ["d2", "d2+"], None],
]
"""Each device leads from its rank, a letter, to another, a number."""


def hosts(matrix, addresses=("127.0.0.1",)):
    """Ranks of one host name, as mlx.launch needs for local ones; names become the tuples Host.rdma holds."""

    def names(entry):
        return () if entry is None else tuple(entry) if isinstance(entry, list) else (entry,)

    return [Host("localhost", True, addresses, tuple(names(entry) for entry in row)) for row in matrix]


@pytest.mark.parametrize(("backend", "matrix"), [(MESH, MESH_OF_3), (RING, MESH_OF_3), (RING, RING_OF_4)])
def test_it_is_wired_as_mlx_launch_does(launch_env, placements, seen, backend, matrix):
    hostfile = [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"], "rdma": row} for row in matrix]
    theirs = launch_env("--backend", backend.name, hosts=hostfile)
    plan = backend.plan(placements(hosts(matrix), 1))
    assert [seen(backend.wiring(plan, rank)) for rank in range(len(matrix))] == theirs


def test_null_may_be_written_either_way(placements):
    none = [Host("localhost", rdma=((None,), ("en2",))), Host("localhost", rdma=(("en3",), (None,)))]
    plan = MESH.plan(placements(none, 1))
    assert list(MESH.wiring(plan, 0).files.values()) == ['[[null, "en2"], ["en3", null]]']


def test_links_name_their_devices(placements):
    mesh = MESH.plan(placements(hosts(MESH_OF_3), 1))
    assert Link(0, 2, "rdma", "a2") in MESH.links(mesh)
    assert len(MESH.links(mesh)) == 6
    ring = RING.plan(placements(hosts(RING_OF_4), 1))
    assert [link.interface for link in RING.links(ring) if (link.source, link.target) == (0, 3)] == ["a3", "a3+"]
    assert len(RING.links(ring)) == 16


def test_a_mesh_uses_as_many_wires_as_the_pair_with_the_fewest_has(placements):
    two = [
        [None, ["a1", "a1+"], ["a2", "a2+"]],
        [["b0", "b0+"], None, ["b2", "b2+"]],
        [["c0", "c0+"], ["c1", "c1+"], None],
    ]
    mesh = MESH.plan(placements(hosts(two), 1))
    assert len(MESH.links(mesh)) == 12 and Link(2, 1, "rdma", "c1+") in MESH.links(mesh)
    fewer = changed(changed(two, 1, 2, "b2"), 2, 1, "c1")
    of_all = {link.interface for link in MESH.links(MESH.plan(placements(hosts(fewer), 1)))}
    assert of_all == {"a1", "a2", "b0", "b2", "c0", "c1"}
    smaller = MESH.plan(placements(hosts(fewer)[:2], 1))
    assert {link.interface for link in MESH.links(smaller)} == {"a1", "a1+", "b0", "b0+"}


def changed(matrix, row, column, entry):
    copy = [list(line) for line in matrix]
    copy[row][column] = entry
    return copy


@pytest.mark.parametrize(
    ("backend", "matrix", "message"),
    [
        (MESH, [[], []], r"No RDMA devices are known for rank 0 \(localhost\).*%distributed discover"),
        (MESH, [[None, "en2"], ["en2"]], r"rank 1 \(localhost\) has 1 entries, and the world has 2 ranks"),
        (MESH, changed(MESH_OF_3, 1, 1, "en9"), r"rank 1 \(localhost\) lists en9 at its own place, entry 1"),
        (MESH, changed(MESH_OF_3, 2, 0, None), r"rank 0 .* lists a2 to rank 2 .* lists nothing back"),
        (MESH, RING_OF_4, r"listed from rank 0 .* to rank 2 .* 1 more.*form a ring: --backend jaccl-ring"),
        (RING, changed(changed(RING_OF_4, 0, 3, None), 3, 0, None), r"rank 3 .* to rank 0 .*needs both neighbours"),
        (RING, changed(changed(RING_OF_4, 0, 3, "a3"), 3, 0, "d0"), "same number of devices between all neighbours"),
        (RING, [[None, ["a"] * 5], [["a"] * 5, None]], "at most 4 devices a direction"),
        (MESH, changed(MESH_OF_3, 2, 1, "c0"), r"rank 2 .* lists c0 both to rank 0 .* and to rank 1 .*jaccl-ring$"),
        (RING, changed(MESH_OF_3, 2, 1, "c0"), r"rank 2 .* lists c0 both to rank .*hostfile\.$"),
        (MESH, [[None, ["a", "a"]], [["b", "c"], None]], r"rank 0 .* lists a twice to rank 1 .*%distributed discover"),
        (
            MESH,
            changed(MESH_OF_3, 2, 0, "a1"),
            r"2 connections of jaccl would use a1 .*ranks 0, 2.* 128 memory regions",
        ),
        (MESH, [[None]], "at least two ranks"),
        (MESH, [[None if i == j else "en2" for j in range(9)] for i in range(9)], "at most 8 ranks.*jaccl-ring"),
    ],
)
def test_a_matrix_that_cannot_work_is_refused_with_its_place(placements, backend, matrix, message):
    with pytest.raises(BackendError, match=message):
        backend.plan(placements(hosts(matrix), 1))


def test_the_coordinator_needs_an_address_others_reach(placements):
    first, second = hosts([[None, "en2"], ["en3", None]])
    far = Host("mac2", False, (), second.rdma)
    with pytest.raises(BackendError, match=r"rank 0 \(localhost\) is at 127.0.0.1, where mac2 cannot reach it"):
        MESH.plan(placements([first, far], 1))
    with pytest.raises(BackendError, match="offers 0 free TCP ports"):
        MESH.plan(placements([first, second], 0))


def test_connections_are_refused(placements):
    with pytest.raises(BackendError, match="jaccl has no --connections"):
        MESH.plan(placements(hosts(MESH_OF_3), 1), connections=2)


@pytest.mark.parametrize(
    ("platform", "size", "why"),
    [
        (MAC, 4, None),
        (Platform("Darwin", "27.0", {"jaccl": True}), 8, None),
        # What a Python built with an older SDK is told on macOS 26.
        (Platform("Darwin", "16.0", {"jaccl": True}), 4, None),
        (Platform("Darwin", "26.1", {"jaccl": False}), 4, "and this is macOS 26.1"),
        (Platform("Darwin", "15.7.1", {"jaccl": False}), 4, "and this is macOS 15.7.1"),
        (Platform("Darwin", "26.2", {"jaccl": False}, mlx="0.32.4"), 4, "cannot load librdma.dylib"),
        (Platform("Linux", "6.1", {"jaccl": False}), 4, "and this is Linux"),
        (MAC, 1, "at least two ranks"),
        (MAC, 9, "at most 8 ranks in a mesh, not 9"),
    ],
)
def test_where_it_can_run(platform, size, why):
    said = MESH.why_not(platform, size)
    assert said is None if why is None else why in str(said)


def test_the_ring_takes_more_than_eight():
    assert RING.why_not(MAC, 9) is None
