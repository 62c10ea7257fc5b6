"""The simulated Macs: what they are asked over ssh they answer as recorded, each for itself."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.hosts import cabling
from tests.hosts.macs import Macs

pytestmark = pytest.mark.hosts


def asked(name: str, command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ssh", "-o", "BatchMode=yes", name, command], capture_output=True, text=True, timeout=120)


def test_a_mac_answers_as_itself_over_ssh(macs4: Macs) -> None:
    macs4.become(cabling.TWO_CABLES)
    assert macs4.names == ["mac1", "mac2"]
    told = asked("mac2", "uname; uname -m; rdma_ctl status; ipconfig getifaddr en0; echo ~; sysctl -n hw.model")
    home = str(macs4.home("mac2"))
    assert told.stdout.split() == ["Darwin", "arm64", "enabled", macs4.address("mac2"), home, "Mac15,14"]
    buses = json.loads(asked("mac1", "system_profiler SPThunderboltDataType -json").stdout)["SPThunderboltDataType"]
    ports = {bus["receptacle_1_tag"]["receptacle_id_key"]: bus for bus in buses}
    mac2 = cabling.TWO_CABLES["mac2"]
    assert ports["3"]["_items"][0]["domain_uuid_key"] == mac2.domain(5)
    assert ports["3"]["receptacle_1_tag"]["current_speed_key"] == "80 Gb/s"
    assert "_items" not in ports["1"] and ports["1"]["receptacle_1_tag"]["link_status_key"] == "0x100"
    assert asked("mac1", "pmset -g nonsense").returncode == 64
    macs4.stand_ins["mac1"].says("pmset -g", "sleep 0\n", code=3, err="odd\n")
    said = asked("mac1", "pmset -g")
    assert (said.stdout, said.stderr, said.returncode) == ("sleep 0\n", "odd\n", 3)


def test_what_sudo_changes_is_seen_afterwards(macs4: Macs) -> None:
    macs4.become(cabling.BRIDGE_UP)
    assert "bridge0: flags=8863<UP," in asked("mac1", "ifconfig bridge0").stdout
    refused = asked("mac1", "ifconfig bridge0 down")
    assert refused.returncode == 1 and "not permitted" in refused.stderr
    set_up = "sudo ifconfig bridge0 down; sudo ifconfig en3 inet 192.168.0.5 netmask 255.255.255.252"
    done = asked("mac1", f"{set_up}; sudo route change 192.168.0.6 -interface en3")
    assert (done.stdout, done.stderr) == ("change host 192.168.0.6: gateway en3\n", "")
    bridge = asked("mac1", "ifconfig bridge0").stdout
    assert "UP" not in bridge and "status: inactive" in bridge
    assert "\tinet 192.168.0.5 netmask 0xfffffffc broadcast 192.168.0.7\n\tmedia" in asked("mac1", "ifconfig").stdout
    assert asked("mac1", "ipconfig getifaddr en3").stdout == "192.168.0.5\n"
    assert macs4.ran("mac1")[0] == "ifconfig bridge0 down" and macs4.ran("mac2") == []
    assert asked("mac2", "ifconfig en99").returncode == 1


def test_sudo_may_want_a_password(macs4: Macs) -> None:
    macs4.become(cabling.Cabling(cabling.macs(2, sudo=False), ()))
    refused = asked("mac1", "sudo ifconfig bridge0 down")
    assert refused.returncode == 1 and "password is required" in refused.stderr
