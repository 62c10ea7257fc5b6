"""mlx's private code for distributed_config, as it is installed: what is used of it is there and does what it did."""

from __future__ import annotations

import dataclasses
import inspect
from types import ModuleType

import pytest

from allranks_backends.protocol import BackendError
from allranks_backends.thunderbolt import mlx_config
from allranks_backends.thunderbolt.mlx_config import Wired, hardware_ports, hostfile, layout, named_addresses


@pytest.fixture
def config(mlx: None) -> ModuleType:
    from mlx._distributed_utils import config

    return config


def test_everything_that_is_used_is_there_and_takes_what_it_is_given(config: ModuleType) -> None:
    assert [name for name in mlx_config.USED if not hasattr(config, name)] == []
    arguments = {name: [*inspect.signature(getattr(config, name)).parameters] for name in mlx_config.USED}
    assert arguments == {
        "IPConfigurator": ["hosts", "tb_hosts", "uuid_reverse_index"],
        "ThunderboltHost": ["name", "ports"],
        "ThunderboltPort": ["iface", "uuid", "connected_to"],
        "check_valid_mesh": ["hosts", "connectivity", "strict"],
        "extract_rings": ["connectivity"],
        "make_connectivity_matrix": ["tb_hosts", "uuid_reverse_index"],
        "parse_hardware_ports": ["ports_string"],
    }
    assert [field.name for field in dataclasses.fields(config.Host)] == ["rank", "ssh_hostname", "ips", "rdma"]


def test_hardware_ports_by_name(mlx: None) -> None:
    told = (
        "\nHardware Port: Ethernet\nDevice: en0\nEthernet Address: 36:e3\n\nHardware Port: Thunderbolt 1\nDevice: en2\n"
    )
    assert hardware_ports(told) == {"Ethernet": "en0", "Thunderbolt 1": "en2"}


def test_three_hosts_in_a_line_and_then_in_a_ring(mlx: None) -> None:
    line = [
        ("a", [Wired("en2", "A2", "B2")]),
        ("b", [Wired("en2", "B2", "A2"), Wired("en3", "B3", "C2")]),
        ("c", [Wired("en2", "C2", "B3")]),
    ]
    found = layout(line)
    assert not found.mesh and not found.whole_ring(3)
    assert found.addresses[0, 1] == (("en2", "192.168.0.1"),) and found.addresses[1, 0] == (("en2", "192.168.0.2"),)
    assert found.addresses[1, 2] == (("en3", "192.168.0.5"),)
    line[0][1].append(Wired("en3", "A3", "C3"))
    line[2][1].append(Wired("en3", "C3", "A3"))
    whole = layout(line)
    assert whole.mesh and whole.whole_ring(3) and (whole.ring, whole.ring_cables) == ((0, 1, 2), 1)


def test_the_hostfile_has_mlx_s_form(mlx: None) -> None:
    made = hostfile([("a", ["10.0.0.1"], [None, "rdma_en3"]), ("b", [], [["rdma_en3", "rdma_en4"], None])], "jaccl")
    assert made == {
        "backend": "jaccl",
        "envs": [],
        "hosts": [
            {"ssh": "a", "ips": ["10.0.0.1"], "rdma": [None, "rdma_en3"]},
            {"ssh": "b", "ips": [], "rdma": [["rdma_en3", "rdma_en4"], None]},
        ],
    }
    assert named_addresses("10.0.0.1") == ["10.0.0.1"] and named_addresses("mac1") == []


def test_an_mlx_that_is_built_otherwise_is_named_in_a_sentence(
    config: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(config, "extract_rings")
    with pytest.raises(BackendError, match="not where it was: it has no extract_rings"):
        layout([])
