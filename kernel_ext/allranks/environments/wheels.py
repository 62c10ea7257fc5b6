"""Rebuild wheels from installed packages, for hosts that cannot get them elsewhere.

No index, source or build tool is needed, and hosts get exactly the files that run here. The wheels have the `binary
distribution format <https://packaging.python.org/en/latest/specifications/binary-distribution-format/>`_.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path

OURS = "allranks"
OUR_PACKAGES = ("allranks", "allranks_backends", "allranks_widgets")
MOST_KEPT = 2**30
"""Maximum size of the wheel cache, in bytes; a wheel for CUDA has about 200 MiB."""
FORMAT = 1
"""Version of the cache; increase it when `pack` makes a different wheel from the same files."""
LEFT_AFTER = 86400.0
"""Seconds after which an unfinished wheel counts as left behind by a process that has ended."""
_NOT_PACKED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Metadata files that an installer writes itself."""
_SCRIPT = re.compile(rb"#![^\n]*python[^\n]*\n")


class CannotPack(Exception):
    """No wheel can be made of a package; the message is a clause that gives the reason."""


def packable(distribution: Distribution) -> bool:
    """Whether `pack` can make a wheel. It knows the files of an editable install only for allranks itself."""
    return distribution.name == OURS or not is_editable(distribution)


def is_editable(distribution: Distribution) -> bool:
    """Whether the package was installed in editable mode (PEP 660)."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable", False))


def fingerprint(distribution: Distribution) -> str:
    """A digest that changes with the package's files: their names, sizes and modification times."""
    state = hashlib.sha256()
    for name, path in sorted(_files(distribution)):
        stamp = path.stat()
        state.update(f"{name}\0{stamp.st_size}\0{stamp.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return state.hexdigest()


class Wheels:
    """Wheels of installed packages in a folder, each made at its first request; thread-safe.

    A wheel that was made before is copied from the user's cache (`kept_in`) if no file of the package has changed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path] = {}
        self._lock = threading.Lock()

    def of(self, distribution: Distribution) -> Path:
        """The wheel of a package. Raises CannotPack."""
        with self._lock:
            if distribution.name not in self._made:
                self._made[distribution.name] = self._kept(distribution) or self._packed(distribution)
            return self._made[distribution.name]

    def _kept(self, distribution: Distribution) -> Path | None:
        try:
            (kept,) = _kept_as(distribution).glob("*.whl")
            if not zipfile.is_zipfile(kept):  # the file is truncated
                return None
            shutil.copyfile(kept, target := self._folder / kept.name)
            os.utime(kept)  # mark it as used recently
        except (OSError, ValueError):  # there is none, or another process is removing it
            return None
        return target

    def _packed(self, distribution: Distribution) -> Path:
        wheel = pack(distribution, self._folder)
        with suppress(OSError):  # a cache that cannot be written only costs time
            (folder := _kept_as(distribution)).mkdir(mode=0o700, parents=True, exist_ok=True)
            part = folder / f"{secrets.token_hex(8)}.part"  # two processes may make the same wheel at once
            try:
                shutil.copyfile(wheel, part)
                os.replace(part, folder / wheel.name)
            finally:
                part.unlink(missing_ok=True)
            _remove_oldest(folder.parent)
        return wheel


def kept_in() -> Path:
    """The folder of cached wheels, with one folder for each state of a package's files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "allranks", "wheels")


def _kept_as(distribution: Distribution) -> Path:
    return kept_in() / f"{distribution.name}-{distribution.version}-{FORMAT}-{fingerprint(distribution)[:16]}"


def _remove_oldest(folder: Path) -> None:
    """Keep the `MOST_KEPT` bytes of wheels used last; also remove folders that hold only old unfinished wheels."""
    wheels, total = [(each, each.stat()) for each in folder.glob("*/*.whl")], 0
    for wheel, now in sorted(wheels, key=lambda each: -each[1].st_mtime_ns):
        total += now.st_size
        if total > MOST_KEPT:
            shutil.rmtree(wheel.parent, ignore_errors=True)
    before = time.time() - LEFT_AFTER
    for left in {each.parent for each in folder.glob("*/*.part")}:
        if all(each.suffix == ".part" and each.stat().st_mtime < before for each in left.iterdir()):
            shutil.rmtree(left, ignore_errors=True)


def pack(distribution: Distribution, folder: Path) -> Path:
    """Make a package's wheel in `folder`. Raises CannotPack."""
    name, version = re.sub(r"[-_.]+", "_", distribution.name), distribution.version.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    target = folder / f"{name}-{version}-{_tag(distribution)}.whl"
    record = []
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:

            def add(inside: str, content: bytes, mode: int = 0o644) -> None:
                entry = zipfile.ZipInfo(inside)
                entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
                wheel.writestr(entry, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                record.append((inside, f"sha256={digest}", str(len(content))))

            for inside, path in _files(distribution):
                content = path.read_bytes()
                if "/scripts/" in inside:
                    content = _SCRIPT.sub(b"#!python\n", content, count=1) if _SCRIPT.match(content) else content
                add(
                    inside.replace("DIST-INFO", info).replace("DIST-DATA", f"{name}-{version}.data"),
                    content,
                    path.stat().st_mode & 0o777,
                )
            lines = io.StringIO()
            csv.writer(lines, lineterminator="\n").writerows([*record, (f"{info}/RECORD", "", "")])
            wheel.writestr(f"{info}/RECORD", lines.getvalue())
    except OSError as error:
        raise CannotPack(f"{error.filename or target}: {error.strerror}") from None
    return target


def _tag(distribution: Distribution) -> str:
    """The tag in a wheel's name that says where it runs; alternatives are separated by dots. Raises CannotPack."""
    lines = (distribution.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip().split("-") for line in lines if line.startswith("Tag:")]
    if not tags or any(len(tag) != 3 for tag in tags):
        raise CannotPack(f"{distribution.name} was not installed from a wheel, so none can be made of it")
    return "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))


def _files(distribution: Distribution) -> Iterator[tuple[str, Path]]:
    """A package's files and their paths in a wheel: metadata in DIST-INFO, scripts and other data in DIST-DATA."""
    made = {script.name for script in distribution.entry_points if script.group in ("console_scripts", "gui_scripts")}
    editable = is_editable(distribution)
    root = Path(os.path.normpath(str(distribution.locate_file("")))).joinpath("../../..")
    root = Path(os.path.normpath(root))  # three levels above lib/python3.11/site-packages
    for file in distribution.files or ():
        path, inside = Path(os.path.normpath(str(file.locate()))), file.as_posix()
        if "__pycache__" in path.parts or path.suffix == ".pyc" or not path.is_file():
            continue
        if path.parent.suffix == ".dist-info" or ".dist-info/" in inside:
            if path.name not in _NOT_PACKED:
                yield "DIST-INFO/" + inside.partition(".dist-info/")[2], path
        elif not inside.startswith("../"):
            if not editable:
                yield inside, path
        elif path.parent == root / "bin":
            if path.name not in made:
                yield f"DIST-DATA/scripts/{path.name}", path
        elif path.is_relative_to(root):
            yield f"DIST-DATA/data/{path.relative_to(root).as_posix()}", path
    if editable and distribution.name == OURS:
        yield from _own_files()


def _own_files() -> Iterator[tuple[str, Path]]:
    """The files of allranks, for an editable install, which runs from its source folder."""
    for package in OUR_PACKAGES:
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            for path in Path(place).rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    yield f"{package}/{path.relative_to(place).as_posix()}", path
