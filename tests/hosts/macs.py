"""Simulated Macs: hosts of the lab on whose PATH stand the commands of macOS, which say what real ones said.

A fixture makes the lab once (`macs4` in conftest: mac1 to mac4); a test says what it is to be::

    def test_something(macs4: Macs) -> None:
        macs4.become(cabling.RING_OF_FOUR)                   # or any Cabling: see tests/hosts/cabling.py
        macs4.stand_ins["mac2"].says("pmset -g", "...")      # another answer of one command on one of them

From then on ``ssh mac1 ifconfig`` prints what a Mac would. `become` begins anew: earlier answers are forgotten.
``Macs.names`` are those of the Cabling, in its order. What a command changes on a real Mac it changes here too, as far
as discovery and the doctor can see: ``sudo ifconfig bridge0 down``, ``sudo ifconfig en3 inet 192.168.0.1 netmask
255.255.255.252`` (then in ``ifconfig`` and ``ipconfig getifaddr en3``), ``sudo route change PEER -interface en3``. All
of that wants sudo, which wants a password where ``Mac(sudo=False)``. `ran` has what was run under sudo.

Answered: ``system_profiler SPThunderboltDataType -json``, ``networksetup -listallhardwareports``, ``ibv_devices``,
``rdma_ctl status``, ``ifconfig [-a|-l|IF]``, ``ipconfig getifaddr IF``, ``route -n get default``, ``sw_vers [-…]``,
``sysctl -n hw.memsize|hw.model|hw.ncpu|machdep.cpu.brand_string|iogpu.wired_limit_mb``, ``pmset -g``, ``uname
[-s|-m|-r|-n]``. All else is Linux's; PATH, HOME and host name are each host's own.
"""

from __future__ import annotations

from pathlib import Path

from . import darwin
from .cabling import Cabling, Mac
from .lab import Hosts
from .standins import StandIns

_IFCONFIG = """\
#!/bin/sh
net='{net}'
case "${{1:-}}" in
  ''|-a) cat "$net"/*; exit ;;
  -l) for file in "$net"/*; do printf '%s ' "${{file##*/??-}}"; done; echo; exit ;;
esac
for file in "$net"/??-"$1"; do [ -f "$file" ] || {{ echo "ifconfig: interface $1 does not exist" >&2; exit 1; }}; done
shift
[ $# -gt 0 ] || {{ cat "$file"; exit; }}
[ -n "$MAC_ROOT" ] || {{ echo "ifconfig: ioctl (SIOCSIFFLAGS): Operation not permitted" >&2; exit 1; }}
case "$1" in
  down) sed -i 's/<UP,/</; s/RUNNING,//; s/status: active/status: inactive/' "$file" ;;
  up) sed -i 's/<UP,/</; s/</<UP,/; s/status: inactive/status: active/' "$file" ;;
  inet)
    mask=$(printf '%02x%02x%02x%02x' $(echo "$4" | tr . ' '))
    broadcast=$(set -- $(echo "$2.$4" | tr . ' ')
      echo $(($1|255-$5)).$(($2|255-$6)).$(($3|255-$7)).$(($4|255-$8)))
    sed -i -e '/^\\tinet /d' -e "/^\\tmedia:/i\\\\\\tinet $2 netmask 0x$mask broadcast $broadcast" "$file" ;;
  *) echo "ifconfig: $1: nothing is known of that here" >&2; exit 64 ;;
esac
"""
_IPCONFIG = """\
#!/bin/sh
[ "$1" = getifaddr ] || exit 64
ifconfig "$2" 2>/dev/null | awk '$1 == "inet" {{ print $2; found = 1 }} END {{ exit !found }}'
"""
_ROUTE = """\
#!/bin/sh
[ "$1" != -n ] || shift
case "$1" in
  get) cat '{recorded}' ;;
  change)
    [ -n "$MAC_ROOT" ] || {{ echo "route: must be root to alter routing table" >&2; exit 77; }}
    ifconfig "$4" >/dev/null || exit 1
    echo "change host $2: gateway $4" ;;
  *) exit 64 ;;
esac
"""
_SUDO = """\
#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
if [ ! -f '{allowed}' ]; then
  echo "sudo: a password is required" >&2
  exit 1
fi
echo "$*" >>'{ran}'
MAC_ROOT=1 exec "$@"
"""
_DEFAULT_ROUTE = """\
   route to: default
destination: default
       mask: default
    gateway: {gateway}
  interface: en0
      flags: <UP,GATEWAY,DONE,STATIC,PRCLONING,GLOBAL>
 recvpipe  sendpipe  ssthresh  rtt,msec    rttvar  hopcount      mtu     expire
       0         0         0         0         0         0      1500         0\x20
"""
_PMSET = """\
System-wide power settings:
Currently in use:
 standby              0
 Sleep On Power Button 1
 womp                 1
 autorestart          0
 hibernatefile        /var/vm/sleepimage
 powernap             1
 networkoversleep     0
 disksleep            10
 sleep                1 (sleep prevented by powerd, sshd)
 ttyskeepawake        1
 displaysleep         10
 tcpkeepalive         1
"""


class Macs(Hosts):
    """Hosts that are Macs for whoever asks them over ssh."""

    called = "mac"

    def __init__(self, count: int, folder: Path, tag: str) -> None:
        super().__init__(count, folder, tag)
        self._all = list(self.names)
        self.stand_ins: dict[str, StandIns] = {}

    def address(self, name: str) -> str:
        return f"10.77.{self._net}.{10 + self._all.index(name) + 1}"

    def environment(self, name: str) -> dict[str, str]:
        return {**super().environment(name), "HOME": str(self.home(name))}

    def become(self, cabling: Cabling) -> None:
        """Be these Macs from now on; those of the lab that it does not name stay as they are, out of `names`."""
        assert set(cabling.names) <= set(self._all)
        self.names = cabling.names
        for mac in cabling.macs:
            self._dress(mac, cabling)

    def ran(self, name: str) -> list[str]:
        """What was run there under sudo, line by line, since it became what it is."""
        told = self.home(name) / "ran"
        return told.read_text().splitlines() if told.exists() else []

    def down(self) -> None:
        self.names = list(self._all)
        super().down()

    def _dress(self, mac: Mac, cabling: Cabling) -> None:
        home = self.home(mac.name)
        told = self.stand_ins[mac.name] = StandIns(home)
        told.forget()
        for left in (home / "ran", home / "sudo-allowed"):
            left.unlink(missing_ok=True)
        if mac.sudo:
            (home / "sudo-allowed").touch()
        (home / "route").write_text(_DEFAULT_ROUTE.format(gateway=self.gateway))
        self._write_interfaces(home / "net", darwin.ifconfig(cabling, mac, self.address(mac.name)))
        told.runs("ifconfig", _IFCONFIG.format(net=home / "net"))
        told.runs("ipconfig", _IPCONFIG.format())
        told.runs("route", _ROUTE.format(recorded=home / "route"))
        told.runs("sudo", _SUDO.format(allowed=home / "sudo-allowed", ran=home / "ran"))
        for command, out in _recorded(mac, cabling).items():
            told.says(command, out)

    @staticmethod
    def _write_interfaces(folder: Path, told: dict[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for number, (device, text) in enumerate(told.items()):
            (folder / f"{number:02d}-{device}").write_text(text)


def _recorded(mac: Mac, cabling: Cabling) -> dict[str, str]:
    version = {"ProductName": "macOS", "ProductVersion": mac.macos, "BuildVersion": "25C56"}
    values = {
        "hw.memsize": mac.model.memory,
        "hw.model": mac.model.identifier,
        "hw.ncpu": 32 if mac.model.memory > 128 << 30 else 14,
        "machdep.cpu.brand_string": mac.model.chip,
        "iogpu.wired_limit_mb": 0,
    }
    system = {"": "Darwin", " -s": "Darwin", " -m": "arm64", " -r": "25.2.0", " -n": f"{mac.name}.local"}
    return {
        "system_profiler SPThunderboltDataType -json": darwin.system_profiler(cabling, mac),
        "networksetup -listallhardwareports": darwin.networksetup(mac),
        "ibv_devices": darwin.ibv_devices(mac),
        "rdma_ctl status": "enabled\n" if mac.rdma else "disabled\n",
        "sw_vers": "".join(f"{key}:\t\t{value}\n" for key, value in version.items()),
        **{f"sw_vers -{key[0].lower()}{key[1:]}": f"{value}\n" for key, value in version.items()},
        **{f"sysctl -n {key}": f"{value}\n" for key, value in values.items()},
        "pmset -g": _PMSET,
        **{f"uname{flag}": f"{value}\n" for flag, value in system.items()},
    }
