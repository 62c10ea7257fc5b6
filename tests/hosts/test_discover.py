"""Discovery over real ssh: simulated Macs set against ``mlx.distributed_config``, and Linux hosts."""

from __future__ import annotations

import argparse
import builtins
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import allranks
from allranks.discovery import discover
from allranks.errors import HostUnreachable, UsageError
from allranks_backends.hostfile import read_hostfile
from tests.hosts import cabling
from tests.hosts.cabling import Cabling
from tests.hosts.lab import Hosts
from tests.hosts.macs import Macs
from tests.hosts.standins import StandIns
from tests.jupyter import Notebook

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]

SUCCEED = {
    "mesh": cabling.MESH_OF_FOUR,
    "mesh less one": cabling.MESH_LESS_ONE,
    "ring": cabling.RING_OF_FOUR,
    "two cables": cabling.TWO_CABLES,
    "Thunderbolt 4": cabling.THUNDERBOLT_4,
    "bridge up": replace(
        cabling.BRIDGE_UP, macs=cabling.BRIDGE_UP.macs[:3], cables=cabling.MESH[:2] + cabling.MESH[3:4]
    ),
    "RDMA off": Cabling(cabling.macs(3, rdma=False), cabling.joined("mac", [(1, 2), (2, 3), (3, 1)])),
}
FAIL = {
    "open ring": (cabling.OPEN_RING, "connect mac1 port 3 with mac4 port 3"),
    "hub": (cabling.HUB, "connect mac1 port 3 with mac2 port 2 directly: CalDigit TS5 Plus is between them now"),
}


def by_mlx(names: list[str], file: Path, over: str = "thunderbolt") -> subprocess.CompletedProcess[str]:
    """``mlx.distributed_config``, which sets up the addresses too, since it otherwise wants a person at a terminal."""
    program = Path(sys.executable).with_name("mlx.distributed_config")
    options = ["--over", over, "--auto-setup", "--output-hostfile", str(file)]
    return subprocess.run(
        [str(program), "--hosts", ",".join(names), *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize("described", SUCCEED.values(), ids=SUCCEED)
def test_the_hostfile_and_the_setup_are_those_of_mlx(macs4: Macs, tmp_path: Path, described: Cabling) -> None:
    macs4.become(described)
    before = [macs4.logins(name) for name in macs4.names]
    found = allranks.discover(macs4.names)
    assert [macs4.logins(name) - was for name, was in zip(macs4.names, before, strict=True)] == [1] * len(before)
    found.write(tmp_path / "ours.json")
    done = by_mlx(macs4.names, tmp_path / "mlx.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "ours.json").read_text()) == json.loads((tmp_path / "mlx.json").read_text())
    bridge = "ifconfig bridge0 down"
    for name in macs4.names:
        theirs = [line for line in macs4.ran(name) if line not in ("ls", bridge)]
        ours = [line.removeprefix("sudo ").partition(" || ")[0] for line in found.todo[name]]
        assert [line for line in ours if line != bridge] == theirs
        assert (bridge in ours) == (found.macs[0].bridge == "up")
    assert read_hostfile(tmp_path / "ours.json").backend == found.backend


@pytest.mark.parametrize(("described", "cable"), FAIL.values(), ids=FAIL)
def test_where_mlx_fails_the_cable_is_named(macs4: Macs, tmp_path: Path, described: Cabling, cable: str) -> None:
    macs4.become(described)
    done = by_mlx(macs4.names, tmp_path / "mlx.json")
    assert done.returncode == 1 and not (tmp_path / "mlx.json").exists()
    found = allranks.discover(macs4.names)
    assert found.hostfile is None and found.missing == (cable,)
    assert cable in repr(found) and cable in found._repr_html_()
    with pytest.raises(ValueError, match=cable):
        found.write(tmp_path / "ours.json")


def test_over_ethernet_it_is_mlx_s_hostfile_too(macs4: Macs, tmp_path: Path) -> None:
    macs4.become(cabling.TWO_CABLES)
    names = [macs4.address("mac1"), "mac2"]
    assert by_mlx(names, tmp_path / "mlx.json", "ethernet").returncode == 0
    found = allranks.discover(names, over="ethernet")
    assert found.hostfile == json.loads((tmp_path / "mlx.json").read_text())


def test_setup_is_run_checked_and_seen(macs4: Macs) -> None:
    macs4.become(replace(cabling.TWO_CABLES, macs=cabling.macs(2, bridge="up")))
    found = allranks.discover(macs4.names)
    assert [len(found.todo[name]) for name in macs4.names] == [5, 5]
    after = found.setup()
    assert after.todo == {} and [mac.bridge for mac in after.macs] == ["down", "down"]
    assert [str(cable.other_port.address) for cable in after.cables] == ["192.168.0.2/30", "192.168.0.6/30"]
    assert not any("bridge" in note for note in after.notes) and "to be set" not in repr(after)


def test_setup_without_the_right_to_is_told_with_the_line_that_failed(macs4: Macs) -> None:
    macs4.become(replace(cabling.TWO_CABLES, macs=(cabling.Mac("mac1"), cabling.Mac("mac2", sudo=False))))
    with pytest.raises(HostUnreachable, match=r"mac2: sudo ifconfig en6 inet 192.168.0.2 .*password is required"):
        allranks.discover(macs4.names).setup()
    assert len(macs4.ran("mac1")) == 4 and macs4.ran("mac2") == []


def test_the_verb_asks_before_it_runs_anything(
    macs4: Macs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    macs4.become(cabling.TWO_CABLES)
    parser = argparse.ArgumentParser()
    discover.add_arguments(parser)
    options = parser.parse_args(["--hosts", "mac1,mac2", "--setup"])
    assert discover.run(options, print, "%distributed discover")
    assert "Nothing was run: no interactive input here" in capsys.readouterr().out, "pytest has no keyboard"
    for answer, told in (("", "Nothing was run."), ("y", "Set up mac1, mac2; it lasts until the next restart.")):
        monkeypatch.setattr(builtins, "input", lambda _question, answer=answer: answer)
        assert discover.run(options, print, "%distributed discover")
        said = capsys.readouterr().out
        assert "on mac1:\n  sudo ifconfig en4 inet 192.168.0.1 netmask 255.255.255.252" in said and told in said
        assert len(macs4.ran("mac1")) == (4 if answer else 0)
    assert said.endswith("Next: %distributed discover --hosts mac1,mac2 --output cluster.json\n")


def test_in_a_notebook_it_is_drawn_and_said(macs4: Macs, new_notebook: Callable[..., Notebook], tmp_path: Path) -> None:
    macs4.become(cabling.RDMA_OFF)
    notebook = new_notebook(PATH=macs4.path)
    try:
        notebook.ok("%load_ext allranks")
        hosts = f"%distributed discover --hosts {','.join(macs4.names)}"
        cell = notebook.ok(f"{hosts} --output {tmp_path / 'cluster.json'}")
        assert cell.stdout.endswith(f"Next: %distributed up --hostfile {tmp_path / 'cluster.json'}\n")
        assert cell.mime("application/vnd.jupyter.widget-view+json")
        (said,) = cell.mime("text/html")
        assert "RDMA is off on mac1, mac2, mac3 and mac4" in said and "<script" not in said
        refused = notebook.run(f"{hosts} --yes")
        assert refused.error == "UsageError: --yes needs --setup."
    finally:
        notebook.close()


def test_from_a_shell(macs4: Macs, tmp_path: Path) -> None:
    macs4.become(cabling.TWO_CABLES)
    command = [sys.executable, "-m", "allranks", "discover", "--hosts", "mac1,mac2"]
    file = tmp_path / "cluster.json"
    done = subprocess.run([*command, "--output", str(file)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 Macs, 2 Thunderbolt cables between them: jaccl")
    assert done.stdout.endswith(f"wrote {file}. Next: %distributed up --hostfile {file}\n")
    assert json.loads(file.read_text())["backend"] == "jaccl"
    macs4.become(cabling.HUB)
    done = subprocess.run(
        [*command, "--output", str(tmp_path / "no.json")], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1 and "was not written" in done.stdout and not (tmp_path / "no.json").exists()
    done = subprocess.run([*command[:-1], "mac1,nohost"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and "nohost: unknown host name" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_slip_is_a_sentence(macs4: Macs) -> None:
    with pytest.raises(UsageError, match="mac1 twice"):
        allranks.discover(["mac1", "mac1"])
    with pytest.raises(UsageError, match="localhost: not a Mac; MLX uses Thunderbolt between Macs only"):
        allranks.discover(["mac1", "localhost"], over="thunderbolt")


def test_the_picture_has_the_cables(macs4: Macs) -> None:
    macs4.become(cabling.RING_OF_FOUR)
    drawn = allranks.discover(macs4.names).snapshot()
    assert [(rank.host, rank.state) for rank in drawn.ranks] == [(name, "planned") for name in macs4.names]
    ways = {(view.link.source, view.link.target): (view.link.kind, view.link.interface) for view in drawn.links}
    assert len(ways) == 8 and ways[0, 1] == ("rdma", "rdma_en3") and ways[0, 3] == ("rdma", "rdma_en4")
    assert {view.nominal for view in drawn.links} == {80e9}
    assert (drawn.hosts[0].model, drawn.hosts[0].memory) == ("Mac Studio", 512 << 30)


def test_linux_hosts_by_their_addresses_and_gpus(hosts3: Hosts, tmp_path: Path) -> None:
    names = hosts3.names[:2]
    found = allranks.discover(names)
    assert (found.over, found.backend) == ("ethernet", "ring")
    assert found.hostfile is not None
    assert [each["ips"] for each in found.hostfile["hosts"]] == [[hosts3.address(name)] for name in names]
    assert [each.speed for each in found.servers[0].interfaces if each.name == "eth0"] == [10e9], "veth says 10 Gbit/s"
    found.write(tmp_path / "ring.json")
    with allranks.Cluster(hostfile=tmp_path / "ring.json") as cluster:
        sums = cluster.run("mx.distributed.all_sum(mx.ones(10))[0].item()", timeout=60).check()
        assert [rank.value for rank in sums.values()] == [2.0, 2.0]
    with_gpus = [StandIns(hosts3.home(name)) for name in names]
    try:
        for stand_in in with_gpus:
            stand_in.says("nvidia-smi -L", "".join(f"GPU {at}: NVIDIA L4 (UUID: GPU-{at})\n" for at in (0, 1)))
            head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
            rows = "GPU0\t X \tPHB\t0-47\t0\t\tN/A\nGPU1\tPHB\t X \t0-47\t0\t\tN/A\n"
            stand_in.says("nvidia-smi topo -m", head + rows)
        found = allranks.discover(names)
    finally:
        for stand_in in with_gpus:
            stand_in.forget()
    assert found.backend == "nccl" and "2 × NVIDIA L4" in repr(found) and "PCIe (PHB)" in repr(found)
    found.write(tmp_path / "cluster.json")
    assert [host.name for host in read_hostfile(tmp_path / "cluster.json").hosts] == [names[0]] * 2 + [names[1]] * 2
    kinds = {(view.link.source, view.link.target): view.link.kind for view in found.snapshot().links}
    assert kinds[0, 1] == "gpu" and kinds[1, 2] == "ethernet"
