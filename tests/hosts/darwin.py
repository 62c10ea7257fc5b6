"""What the commands of a Mac say of its cables, in the words recorded on real ones (macOS 26, M3 Ultra, M5 Max).

What a `Cabling` changes in them is names, UUIDs, addresses, link speeds and what is plugged in where.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from .cabling import Cabling, Mac


def system_profiler(cabling: Cabling, mac: Mac) -> str:
    """``system_profiler SPThunderboltDataType -json``; the ports from the last to the first, as it lists them."""
    buses = [_bus(cabling, mac, port) for port in range(len(mac.model.ports), 0, -1)]
    return json.dumps({"SPThunderboltDataType": buses}, indent=2, separators=(",", " : ")) + "\n"


def _bus(cabling: Cabling, mac: Mac, port: int) -> dict[str, Any]:
    seen = _seen(cabling, mac, port)
    tag = {"current_speed_key": mac.model.idle_speed, "link_status_key": "0x100"}
    if seen is not None:
        tag = {"current_speed_key": f"{seen[1]} Gb/s", "link_status_key": "0x2", "micro_version_key": "0.0.0"}
    tag["receptacle_id_key"] = str(port)
    tag["receptacle_status_key"] = f"receptacle_{'connected' if seen else 'no_devices_connected'}"
    return {
        **({"_items": [seen[0]]} if seen else {}),
        "_name": f"thunderboltusb4_bus_{port - 1}",
        "device_name_key": mac.model.name,
        "domain_uuid_key": mac.domain(port),
        "receptacle_1_tag": tag,
        "route_string_key": "0",
        "switch_uid_key": f"0x05AC{uuid.uuid5(uuid.NAMESPACE_DNS, mac.name).hex[:11].upper()}{port - 1}",
        "vendor_name_key": "Apple Inc.",
    }


def _seen(cabling: Cabling, mac: Mac, port: int) -> tuple[dict[str, Any], int] | None:
    """What a port sees at the other end of its cable, and the link's speed."""
    for cable in cabling.cables:
        if (cable.mac, cable.port) == (mac.name, port):
            peer, behind, at = cable.to, cable.behind, cable.to_port
        elif (cable.to, cable.to_port) == (mac.name, port):
            peer, behind, at = cable.mac, "", cable.port
        else:
            continue
        if not at:
            return _device(peer, 40), 40
        other = cabling[peer]
        speed = cable.speed or (80 if min(mac.model.generation, other.model.generation) >= 5 else 40)
        item = _mac_item(other, at)
        return ({**_device(behind, speed), "_items": [item]} if behind else item), speed
    return None


def _mac_item(mac: Mac, port: int) -> dict[str, Any]:
    return {
        "_name": mac.model.name,
        "device_id_key": "0xA",
        "device_name_key": mac.model.identifier,
        "domain_uuid_key": mac.domain(port),
        "services_title": [
            {
                "_name": "service_ip",
                "protocol_id_key": 1,
                "protocol_revision_key": 1,
                "protocol_version_key": 1,
                "service_uuid_key": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{mac.name}.{port}")).upper(),
            }
        ],
        "vendor_id_key": "0x0A27",
        "vendor_name_key": "Apple Inc.",
    }


def _device(name: str, speed: int) -> dict[str, Any]:
    return {
        "_name": name,
        "device_id_key": "0xDE7B",
        "device_name_key": name,
        "device_revision_key": "0x6",
        "mode_key": "usb_four_v2" if speed >= 80 else "usb_four",
        "receptacle_upstream_ambiguous_tag": {
            "current_speed_key": f"{speed} Gb/s",
            "link_status_key": "0x2",
            "micro_version_key": "1.3.0",
            "receptacle_status_key": "receptacle_connected",
        },
        "route_string_key": "1",
        "switch_uid_key": "0x80878DFABA68F800",
        "switch_version_key": "56.56",
        "vendor_id_key": "0x1E91",
        "vendor_name_key": name.split()[0],
    }


def networksetup(mac: Mac) -> str:
    """``networksetup -listallhardwareports``."""
    ports = [("Ethernet", "en0")]
    ports += [(f"Ethernet Adapter ({adapter})", adapter) for adapter in mac.model.adapters]
    ports += [] if mac.bridge == "gone" else [("Thunderbolt Bridge", "bridge0")]
    ports += [("Wi-Fi", "en1")]
    ports += [(f"Thunderbolt {number}", device) for number, device in enumerate(mac.model.ports, 1)]
    told = "".join(
        f"\nHardware Port: {name}\nDevice: {device}\nEthernet Address: {ethernet(mac, device)}\n"
        for name, device in ports
    )
    return told + "\nVLAN Configurations\n===================\n"


def ethernet(mac: Mac, device: str) -> str:
    digits = uuid.uuid5(uuid.NAMESPACE_DNS, f"{mac.name}.{device}").hex
    return ":".join(["36", *(digits[at : at + 2] for at in range(0, 10, 2))])


def ibv_devices(mac: Mac) -> str:
    """``ibv_devices``: the header alone where RDMA is off or the hardware has none."""
    head = f"    {'device':<16}\t   node GUID\n    {'------':<16}\t----------------\n"
    if not (mac.rdma and mac.model.rdma):
        return head
    guid = uuid.uuid5(uuid.NAMESPACE_DNS, mac.name).hex[:10]
    return head + "".join(
        f"    {'rdma_' + device:<16}\t{0x80 + number:02x}{guid}ac05\n" for number, device in enumerate(mac.model.ports)
    )


def ifconfig(cabling: Cabling, mac: Mac, address: str) -> dict[str, str]:
    """What ``ifconfig`` says of each interface, in its order; `address` is en0's."""
    told = {
        "lo0": (
            "lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384\n"
            "\toptions=1203<RXCSUM,TXCSUM,TXSTATUS,SW_TIMESTAMP>\n\tinet 127.0.0.1 netmask 0xff000000\n"
            "\tinet6 ::1 prefixlen 128 \n\tnd6 options=201<PERFORMNUD,DAD>\n"
        ),
        "en0": _interface(mac, "en0", "10Gbase-T <full-duplex>", _inet(address, 24)),
    }
    for number, device in enumerate(mac.model.ports, 1):
        held = _cable_address(cabling, mac, number)
        plugged = _seen(cabling, mac, number) is not None
        told[device] = _interface(mac, device, "", _inet(held, 30) if held else "", plugged)
    if mac.bridge != "gone":
        up = mac.bridge == "up"
        members = "".join(
            f"\tmember: {device} flags=3<LEARNING,DISCOVER>\n"
            f"\t        ifmaxaddr 0 port {9 + number} priority 0 path cost 0\n"
            for number, device in enumerate(mac.model.ports)
        )
        flags = "8863<UP,BROADCAST,SMART,RUNNING" if up else "8822<BROADCAST,SMART"
        told["bridge0"] = (
            f"bridge0: flags={flags},SIMPLEX,MULTICAST> mtu 1500\n"
            f"\toptions=63<RXCSUM,TXCSUM,TSO4,TSO6>\n\tether {ethernet(mac, 'bridge0')}\n"
            + (_inet(f"169.254.{len(mac.name)}.{1 + cabling.names.index(mac.name)}", 16) if up else "")
            + "\tConfiguration:\n\t\tid 0:0:0:0:0:0 priority 0 hellotime 0 fwddelay 0\n"
            "\t\tmaxage 0 holdcnt 0 proto stp maxaddr 100 timeout 1200\n"
            "\t\troot id 0:0:0:0:0:0 priority 0 ifcost 0 port 0\n\t\tipfilter disabled flags 0x0\n"
            f"{members}\tnd6 options=201<PERFORMNUD,DAD>\n\tmedia: <unknown type>\n"
            f"\tstatus: {'active' if up else 'inactive'}\n"
        )
    return told


def _interface(mac: Mac, device: str, media: str, inet: str, active: bool = True) -> str:
    return (
        f"{device}: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500\n"
        f"\toptions={'567<RXCSUM,TXCSUM,VLAN_MTU,TSO4,TSO6,AV,CHANNEL_IO>' if media else '460<TSO4,TSO6,CHANNEL_IO>'}\n"
        f"\tether {ethernet(mac, device)}\n{inet}\tmedia: autoselect {f'({media})' if media else '<full-duplex>'}\n"
        f"\tstatus: {'active' if active else 'inactive'}\n"
    )


def _inet(address: str, prefix: int) -> str:
    mask = (0xFFFFFFFF << (32 - prefix)) & 0xFFFFFFFF
    number = int.from_bytes(bytes(map(int, address.split("."))), "big") | (0xFFFFFFFF ^ mask)
    last = ".".join(map(str, number.to_bytes(4, "big")))
    return f"\tinet {address} netmask 0x{mask:08x} broadcast {last}\n"


def _cable_address(cabling: Cabling, mac: Mac, port: int) -> str:
    for number, cable in enumerate(cabling.cables if cabling.addressed else ()):
        for end, (name, at) in enumerate(((cable.mac, cable.port), (cable.to, cable.to_port))):
            if (name, at) == (mac.name, port):
                return f"192.168.{number // 64}.{4 * (number % 64) + 1 + end}"
    return ""
