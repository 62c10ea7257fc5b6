"""Every hostfile format in: mlx's JSON list and object, and MPI's ``host slots=n`` lines."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from .plan import Host
from .registry import BackendError, get_backend

_EXPECTED = '{"ssh": "mac1", "ips": ["192.168.0.1"], "rdma": [null, "rdma_en2"]}'
_SLOTS = re.compile(r"slots\s*=\s*(\S+)")
_MAX_SLOTS = re.compile(r"max[-_]slots\s*=\s*\d+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.DOTALL)


class HostfileError(BackendError):
    """A hostfile does not say what it should. The message names the file, the entry and what was expected."""


@dataclass(frozen=True)
class HostfileWorld:
    """What a hostfile asks for."""

    hosts: tuple[Host, ...]
    """One for each rank; a host that runs several ranks is there several times."""
    backend: str | None = None
    envs: tuple[str, ...] = ()
    """``NAME=value`` for every rank."""


def read_hostfile(path_or_text: str | os.PathLike[str]) -> HostfileWorld:
    """The world a hostfile describes, given its path or its text; raises ``HostfileError``."""
    name, text = _contents(path_or_text)
    try:
        world = _from_json(text) if text.lstrip().startswith(("[", "{")) else _from_lines(text)
    except HostfileError as error:
        raise HostfileError(f"{name}: {error}") from None
    if not world.hosts:
        raise HostfileError(f"{name}: it lists no ranks; expected one entry per rank, for example {_EXPECTED}")
    return world


def is_local(name: str) -> bool:
    """Whether ``name`` means the notebook's own machine: a loopback address, or its own host name."""
    own = socket.gethostname().lower()
    return _is_loopback(name) or name.lower() in (own, own.split(".")[0], own.split(".")[0] + ".local")


def _contents(path_or_text: str | os.PathLike[str]) -> tuple[str, str]:
    """Name for messages, and text."""
    if isinstance(path_or_text, str) and ("\n" in path_or_text or path_or_text.lstrip().startswith(("[", "{"))):
        return "The hostfile", path_or_text
    path = Path(path_or_text).expanduser()
    try:
        return f"Hostfile {path}", path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise HostfileError(f"Hostfile {path} does not exist (searched from {Path.cwd()}).") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HostfileError(f"Hostfile {path} cannot be read: {error}") from error


def _from_json(text: str) -> HostfileWorld:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise HostfileError(f"line {error.lineno}, column {error.colno} is not JSON: {error.msg}") from None
    if isinstance(data, list):
        data = {"hosts": data}
    entries = data.get("hosts")
    if not isinstance(entries, list):
        raise HostfileError(f'"hosts" is {_shown(entries)}; expected a list of entries like {_EXPECTED}')
    hosts = tuple(_host(f"hosts[{i}]", entry) for i, entry in enumerate(entries))
    return HostfileWorld(hosts, _backend(data.get("backend")), _envs(data.get("envs", [])))


def _host(where: str, entry: object) -> Host:
    if isinstance(entry, list):
        raise HostfileError(
            f"{where} is {_shown(entry)}, as in the file of addresses that a rank reads (MLX_HOSTFILE);"
            f" expected a hostfile entry like {_EXPECTED}"
        )
    if not isinstance(entry, Mapping):
        raise HostfileError(f"{where} is {_shown(entry)}; expected {_EXPECTED}")
    name = entry.get("ssh")
    if not isinstance(name, str) or not name:
        raise HostfileError(f'{where} has "ssh": {_shown(name)}; expected the name or address to ssh to')
    ips = _strings(f'{where} ({name}), "ips"', entry.get("ips", []), "IPv4 addresses")
    return host_named(name, ips, _rdma(f"{where} ({name})", entry.get("rdma", [])))


def host_named(name: str, ips: tuple[str, ...] = (), rdma: tuple[tuple[str, ...], ...] = ()) -> Host:
    """The host a user calls ``name``: ``localhost`` for any loopback name; an IPv4 name is also its address."""
    if is_local(name):
        return Host("localhost" if _is_loopback(name) else name, True, ips or ("127.0.0.1",), rdma)
    return Host(name, False, ips or ((name,) if _is_address(name) else ()), rdma)


def _rdma(where: str, row: object) -> tuple[tuple[str, ...], ...]:
    """One entry a rank: null, a device name, or a list of names."""
    if not isinstance(row, list):
        raise HostfileError(f'{where}, "rdma" is {_shown(row)}; expected a list with one entry for each rank')
    return tuple(_devices(f'{where}, "rdma"[{i}]', entry) for i, entry in enumerate(row))


def _devices(where: str, entry: object) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) and entry else _strings(where, entry, "device names, one name, or null")


def _strings(where: str, value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise HostfileError(f"{where} is {_shown(value)}; expected a list of {what}")
    return tuple(value)


def _backend(value: Any) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise HostfileError(f'"backend" is {_shown(value)}; expected a name like "ring"')
    try:
        return get_backend(value).name
    except BackendError as error:
        raise HostfileError(f'"backend" is {_shown(value)}. {error}') from None


def _envs(value: object) -> tuple[str, ...]:
    envs = _strings('"envs"', value, 'variables like "NAME=value"')
    for env in envs:
        if not _VARIABLE.fullmatch(env):
            raise HostfileError(f'"envs" has {_shown(env)}; expected "NAME=value", the name of letters, digits and _')
    return envs


def _from_lines(text: str) -> HostfileWorld:
    """Open MPI's form: a host a line, ``slots=n`` ranks on it, one where none are given, none for ``slots=0``."""
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].strip()
        if words:
            name, count = _slots(f"line {number}, {words!r}", words)
            hosts += [host_named(name)] * count
    return HostfileWorld(tuple(hosts))


def _slots(where: str, words: str) -> tuple[str, int]:
    name, *rest = words.split(maxsplit=1)
    options = _MAX_SLOTS.sub("", " ".join(rest)).strip()
    if not options:
        return name, 1
    match = _SLOTS.fullmatch(options)
    if not match:
        raise HostfileError(f"{where}: {options!r} is not understood; expected <host> slots=<number of ranks>")
    if not match[1].isdigit():
        raise HostfileError(f"{where}: slots is {match[1]}; expected a number of ranks, 0 or more")
    return name, int(match[1])


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def _shown(value: object) -> str:
    """A value as it stands in the file, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
