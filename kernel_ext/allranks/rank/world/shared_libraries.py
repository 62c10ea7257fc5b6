"""The libraries in this process's memory: where MLX keeps its function pointers, and whether an address is code.

MLX keeps pointers to the functions of MPI and RDMA in static objects. Each object is found by its content, the
addresses of these functions, and is written only if that content occurs exactly once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

_LOAD, _RELRO = 1, 0x6474E552
_EXECUTABLE, _WRITABLE = 1, 2
_SECTIONS = (b"__data", b"__bss", b"__common")
MLX = ("libmlx", "libjaccl")
"""Prefixes of the file names of MLX's libraries. On macOS, JACCL is a separate library since 0.32.4."""


class _Segment(ctypes.Structure):
    _fields_ = [  # Elf64_Phdr
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical", ctypes.c_uint64),
        ("in_file", ctypes.c_uint64),
        ("in_memory", ctypes.c_uint64),
        ("align", ctypes.c_uint64),
    ]


class _Image(ctypes.Structure):
    _fields_ = [  # dl_phdr_info
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
    ]


class _Symbol(ctypes.Structure):
    _fields_ = [  # Dl_info
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


class NotInPlace(Exception):
    """Collectives of a backend cannot be aborted in this process; the message says why, as a clause."""

    def __init__(self, why: str, fix: str = "") -> None:
        super().__init__(why)
        self.fix = fix
        """What to do about it; empty if that is not known."""


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Image), ctypes.c_size_t, ctypes.c_void_p)


def address_of(function: Any) -> int:
    """The address of a C function."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def only_place(content: bytes, what: str) -> int:
    """The pointer-aligned address of `content` in MLX's writable memory.

    Raises NotInPlace, with `what` as the name of the content, unless there is exactly one such address.
    """
    found = []
    for start, memory in writable(MLX):
        at = memory.find(content)
        while at >= 0:
            if (start + at) % ctypes.sizeof(ctypes.c_void_p) == 0:
                found.append(start + at)
            at = memory.find(content, at + 1)
    if len(found) != 1:
        raise NotInPlace(f"this version of MLX keeps {what} in {len(found)} places")
    return found[0]


def writable(names: tuple[str, ...]) -> list[tuple[int, bytes]]:
    """The writable memory of libraries whose file names begin with one of `names`: start addresses and contents."""
    ranges = _writable_on_macos(names) if sys.platform == "darwin" else _writable_on_linux(names)
    return [(start, ctypes.string_at(start, size)) for start, size in ranges]


def is_code(address: int) -> bool:
    """Whether an address is in the code of a library."""
    if sys.platform == "darwin":
        found = _Symbol()
        return bool(ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(found))) and bool(found.name)
    return any(
        segment.type == _LOAD
        and segment.flags & _EXECUTABLE
        and 0 <= address - base - segment.address < segment.in_memory
        for _, base, segments in _images()
        for segment in segments
    )


def _images() -> list[tuple[str, int, list[_Segment]]]:
    found: list[tuple[str, int, list[_Segment]]] = []

    def visit(image: ctypes._Pointer[_Image], _size: int, _data: object) -> int:
        info = image.contents
        segments = [_Segment.from_buffer_copy(info.segments[index]) for index in range(info.count)]
        found.append(((info.name or b"").decode(errors="replace"), info.base, segments))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_Visit(visit), None)
    return found


def _writable_on_linux(names: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    for file, base, segments in _images():
        if not file.rpartition("/")[2].startswith(names):
            continue
        # These ranges were written when the library was loaded, and have been read-only since.
        fixed = [(each.address, each.address + each.in_memory) for each in segments if each.type == _RELRO]
        for each in segments:
            if each.type == _LOAD and each.flags & _WRITABLE:
                start, end = each.address, each.address + each.in_memory
                start = max([start, *(last for first, last in fixed if first <= start < last)])
                yield base + start, end - start


def _writable_on_macos(names: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Not yet tested on macOS."""
    system = ctypes.CDLL(None)
    system._dyld_get_image_name.restype = ctypes.c_char_p
    system._dyld_get_image_header.restype = ctypes.c_void_p
    system.getsectiondata.restype = ctypes.c_void_p
    system.getsectiondata.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
    for index in range(system._dyld_image_count()):
        file = system._dyld_get_image_name(index).decode(errors="replace")
        if not file.rpartition("/")[2].startswith(names):
            continue
        header, size = system._dyld_get_image_header(index), ctypes.c_ulong()
        for section in _SECTIONS:
            if start := system.getsectiondata(header, b"__DATA", section, ctypes.byref(size)):
                yield start, size.value
