"""Read hostfiles of every format: mlx's JSON list and object, and MPI's ``host slots=n`` lines."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path

from allranks_backends.protocol import BackendError

from .plan import Host
from .registry import get_backend
from .runtimes.placement_checks import login_and_port

MOST_RANKS = 10_000
"""Most ranks that a hostfile may ask for: a larger number is treated as a typo."""
MOST_BYTES = 16_000_000
"""Largest hostfile, in bytes: a larger file is taken for something else."""
LONGEST_NAME = 253
"""Maximum number of characters in a host's name, as in DNS; a user and port in the name count, too."""
_EXPECTED = '{"ssh": "mac1", "ips": ["192.168.0.1"], "rdma": [null, "rdma_en2"]}'
_FIELDS = ("ssh", "ips", "rdma", "user", "port", "python", "cwd")
"""Known fields of an entry. Unknown fields may belong to another program: they are ignored, unless they look like a
misspelling of a known field, which is an error."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.DOTALL)


class HostfileError(BackendError):
    """A hostfile or an entry of ``--hosts`` is invalid, or the file cannot be read. The message says where and why."""


@dataclass(frozen=True)
class HostfileWorld:
    """The world that a hostfile describes."""

    hosts: tuple[Host, ...]
    """One host for each rank; a host that runs several ranks appears several times."""
    backend: str | None = None
    envs: tuple[str, ...] = ()
    """Environment variables of every rank, as ``NAME=value``; ``NAME`` alone stands for an empty value."""


def read_hostfile(path_or_text: str | os.PathLike[str]) -> HostfileWorld:
    """Return the world that a hostfile describes, given its path or its text; raises ``HostfileError``."""
    name, text = _contents(path_or_text)
    try:
        world = _from_json(text) if text.lstrip().startswith(("[", "{")) else _from_lines(text)
    except HostfileError as error:
        raise HostfileError(f"{name}: {error}") from None
    except RecursionError:
        raise HostfileError(f"{name}: it is nested too deeply; expected a list of entries like {_EXPECTED}") from None
    if len(world.hosts) > MOST_RANKS:
        raise HostfileError(f"{name}: it lists {len(world.hosts):,} ranks; expected at most {MOST_RANKS:,}")
    if not world.hosts:
        raise HostfileError(f"{name}: it lists no ranks; expected one entry per rank, for example {_EXPECTED}")
    return world


def is_local(name: str) -> bool:
    """Whether ``name`` is this machine: ``localhost``, a loopback address, or its host name (full, short, or the short
    one with ``.local``)."""
    own = socket.gethostname().lower()
    return _is_loopback(name) or name.lower() in (own, own.split(".")[0], own.split(".")[0] + ".local")


def _contents(path_or_text: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the name of the hostfile for error messages, and its text. Raises HostfileError."""
    if isinstance(path_or_text, str) and ("\n" in path_or_text or path_or_text.lstrip().startswith(("[", "{"))):
        return "The hostfile", path_or_text
    name = f"Hostfile {_printable(os.fspath(path_or_text), 200)}"
    try:
        path = Path(path_or_text).expanduser()
        name = f"Hostfile {_printable(str(path), 200)}"
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise HostfileError(f"{name} does not exist (searched from {Path.cwd()}).") from None
    except OSError as error:
        raise HostfileError(f"{name} cannot be read: {error.strerror or error}") from None
    except (ValueError, RuntimeError) as error:  # not a path: it contains NUL, or names a user that does not exist
        raise HostfileError(f"{name} is not a path: {error}") from None
    if len(content) > MOST_BYTES:
        raise HostfileError(f"{name} has more than {MOST_BYTES:,} bytes; expected a hostfile with an entry per rank")
    try:
        return name, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        bad = f"line {line} has the byte 0x{content[error.start]:02x}"
        raise HostfileError(f"{name} is not UTF-8 text: {bad}; save it as UTF-8") from None


def _from_json(text: str) -> HostfileWorld:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise HostfileError(f"line {error.lineno}, column {error.colno} is not JSON: {error.msg}") from None
    except ValueError:  # Python refuses integers of more than 4,300 digits
        raise HostfileError("it has a number of thousands of digits; expected names and addresses") from None
    if isinstance(data, list):
        data = {"hosts": data}
    entries = data.get("hosts")
    if not isinstance(entries, list):
        raise HostfileError(f'"hosts" is {_shown(entries)}; expected a list of entries like {_EXPECTED}')
    hosts = tuple(_host(f"hosts[{i}]", entry) for i, entry in enumerate(entries))
    named = Counter(shown for _, shown in {(host.name, host.shown) for host in hosts})
    # Hosts with the same shorter name differ only in user or port, so that name would be ambiguous.
    hosts = tuple(replace(host, written="") if named[host.shown] > 1 else host for host in hosts)
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
    _check_name(f'{where}, "ssh"', name)
    where = f"{where} ({_printable(name)})"
    for key in entry:
        if key not in _FIELDS and (close := get_close_matches(key, _FIELDS, 1)):
            raise HostfileError(f'{where} has {_shown(key)}; did you mean "{close[0]}"?')
    written, name = name, _with_login(where, name, entry.get("user"), entry.get("port"))
    ips = _strings(f'{where}, "ips"', entry.get("ips", []), "IPv4 addresses")
    python, cwd = (_path(f'{where}, "{field}"', entry.get(field)) for field in ("python", "cwd"))
    host = host_named(name, ips, _rdma(where, entry.get("rdma", [])))
    return replace(host, python=python, cwd=cwd, written=written if host.name != written and not host.local else "")


def host_named(name: str, ips: tuple[str, ...] = (), rdma: tuple[tuple[str, ...], ...] = ()) -> Host:
    """Return the host called ``name``; a loopback name becomes ``localhost``.

    Without ``ips``, a name that is an IPv4 address is also the host's address, and this machine gets 127.0.0.1.
    """
    if is_local(name):
        return Host("localhost" if _is_loopback(name) else name, True, ips or ("127.0.0.1",), rdma)
    return Host(name, False, ips or ((name,) if _is_address(name, 4) else ()), rdma)


def hosts_in(words: str) -> list[Host]:
    """Return the host in an entry of ``--hosts``, once for each of its ranks.

    An entry may have options, like a line of MPI's format. Raises HostfileError.
    """
    return _hosts_in(_cut(repr(words)), words)


def _with_login(where: str, name: str, user: object, port: object) -> str:
    """Return ``user@name:port``, given the separate fields of an entry (None: not given). Raises HostfileError."""
    if user is not None:
        if not isinstance(user, str) or "@" in name:
            raise HostfileError(f'{where} has "user": {_shown(user)}; expected one user, here or in "ssh"')
        name = f"{user}@{name}"
    if port is not None:
        if isinstance(port, bool) or not isinstance(port, int) or login_and_port(name)[1] is not None:
            raise HostfileError(f'{where} has "port": {_shown(port)}; expected one number, here or in "ssh"')
        name = f"{name}:{port}"
    _check_name(where, name)
    return name


def _path(where: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value.startswith(("/", "~/")) or "\0" in value or not _is_unicode(value):
        raise HostfileError(f"{where} is {_shown(value)}; expected a path there that begins with / or ~/")
    return value


def _rdma(where: str, row: object) -> tuple[tuple[str, ...], ...]:
    """Return the devices of a row, whose entry for each rank is null, a device name or a list of names.

    Raises HostfileError.
    """
    if not isinstance(row, list):
        raise HostfileError(f'{where}, "rdma" is {_shown(row)}; expected a list with one entry for each rank')
    return tuple(_devices(f'{where}, "rdma"[{i}]', entry) for i, entry in enumerate(row))


def _devices(where: str, entry: object) -> tuple[str, ...]:
    if entry is None:
        return ()
    names = [entry] if isinstance(entry, str) and entry else entry
    return _strings(where, names, "device names, one name, or null")


def _strings(where: str, value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise HostfileError(f"{where} is {_shown(value)}; expected a list of {what}")
    for item in value:
        if "\0" in item or not _is_unicode(item):
            raise HostfileError(f"{where} has {_shown(item)}; expected text without NUL and lone surrogates")
    return tuple(value)


def _check_name(where: str, name: str) -> None:
    """Raise HostfileError unless `name` can be passed to ssh as a host."""
    if len(name) > LONGEST_NAME:
        raise HostfileError(
            f"{where}: the name {_shown(name)} has {len(name)} characters; expected {LONGEST_NAME} or less"
        )
    if not name.isprintable() or " " in name or name.startswith("-"):
        raise HostfileError(f"{where}: {_shown(name)} is no host; expected a name or address, as in user@10.0.0.1")


def _backend(value: object) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise HostfileError(f'"backend" is {_shown(value)}; expected a name like "ring"')
    try:
        return get_backend(value).name
    except BackendError as error:
        raise HostfileError(f'"backend" is {_shown(value)}. {error}') from None


def _envs(value: object) -> tuple[str, ...]:
    envs = _strings('"envs"', value, 'variables like "NAME=value" or "NAME"')
    for env in envs:
        if not _VARIABLE.fullmatch(env):
            expected = 'expected "NAME=value" or, for an empty value, "NAME", the name of letters, digits and _'
            raise HostfileError(f'"envs" has {_shown(env)}; {expected}')
    return envs


def _from_lines(text: str) -> HostfileWorld:
    """Parse Open MPI's format: one host per line, with ``slots=n`` ranks (default 1, and none for ``slots=0``)."""
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].strip()
        if words:
            hosts += _hosts_in(f"line {number}, {_cut(repr(words))}", words, most=MOST_RANKS - len(hosts))
    return HostfileWorld(tuple(hosts))


def _hosts_in(where: str, words: str, most: int = MOST_RANKS) -> list[Host]:
    name, options = _options(where, words)
    _check_name(where, name)
    slots = options.pop("slots", "1")
    if not (slots.isascii() and slots.isdigit()):
        raise HostfileError(f"{where}: slots is {_printable(slots)}; expected a number of ranks, 0 or more")
    count = int(slots.lstrip("0")[:10] or 0)  # more digits mean too many ranks in any case
    if count > most:
        raise HostfileError(f"{where}: that makes more than {MOST_RANKS:,} ranks; expected fewer slots")
    python, cwd = (_path(f"{where}: {field}", options.get(field)) for field in ("python", "cwd"))
    return [replace(host_named(name), python=python, cwd=cwd)] * count


def _options(where: str, words: str) -> tuple[str, dict[str, str]]:
    """Return the host that `words` name, and its options by name. Raises HostfileError."""
    name, *rest = words.split(maxsplit=1)
    try:
        given = shlex.split(re.sub(r"\s*=\s*", "=", "".join(rest)))
    except ValueError as error:
        raise HostfileError(f"{where}: {error}") from None
    options = {}
    for each in given:
        field, _, value = each.partition("=")
        if field.replace("_", "-") == "max-slots" and value.isdigit():
            continue
        if field not in ("slots", "python", "cwd") or not value or field in options:
            raise HostfileError(
                f"{where}: {_cut(repr(each))} is not understood; expected <host> slots=<number of ranks>"
                " python=<path> cwd=<folder>"
            )
        options[field] = value
    return name, options


def _is_address(name: str, version: int | None = None) -> bool:
    try:
        return version in (None, ip_address(name).version)
    except ValueError:
        return False


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    """Return a value as JSON, cut to 60 characters."""
    return _cut(json.dumps(value))


def _printable(text: str, longest: int = 60) -> str:
    """Return `text`, cut to `longest` characters; if it has unprintable characters, they are escaped."""
    return _cut(text if text.isprintable() else ascii(text)[1:-1], longest)


def _cut(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
