"""Read and write safetensors files: the length of a header (8 bytes), the header (JSON), and the bytes of all arrays.

MLX's own functions cannot write float64, and read lazily (0.32.4): a file could change before it is read.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from allranks.machine.private_files import write_all_at
from allranks.messages.state_manifest import checksum

DTYPES = {
    "bool": "BOOL",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
"""The format's names of MLX's dtypes."""
_LENGTH = struct.Struct("<Q")
LONGEST_HEADER = 100_000_000
"""Maximum bytes of a header: ``MAX_HEADER_SIZE`` of the format's reference implementation."""


class Damaged(ValueError):
    """A file differs from what was written."""


@dataclass(frozen=True)
class ArrayBytes:
    library: str
    """``mlx`` or ``numpy``."""
    dtype: str
    shape: tuple[int, ...]
    data: memoryview
    """The elements in row-major order."""


def write(path: Path, arrays: Mapping[str, ArrayBytes]) -> tuple[int, dict[str, int]]:
    """Write a new file and flush it to disk; return its size in bytes, and the arrays' checksums. Raises OSError.

    Copying to the system's cache uses a core, and waiting for the disk none, so checksums are computed during the wait.
    """
    header, end = dict[str, object](), 0
    for key, array in arrays.items():
        start, end = end, end + array.data.nbytes
        header[key] = {"dtype": DTYPES[array.dtype], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the first array begins at a multiple of 8
    offset = 0
    with open(path, "xb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        parts: list[bytes | memoryview] = [_LENGTH.pack(len(text)), text, *(array.data for array in arrays.values())]
        for part in parts:
            write_all_at(file.fileno(), part, offset)
            offset += len(part)
        on_disk = pool.submit(os.fsync, file.fileno())
        checksums = {key: checksum(array.data) for key, array in arrays.items()}
        on_disk.result()
    return offset, checksums


class SafetensorsFile:
    """A file from which arrays are read. Raises OSError, and Damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)
        size = os.fstat(self._file.fileno()).st_size
        length = self._file.read(_LENGTH.size)
        (header,) = _LENGTH.unpack(length) if len(length) == _LENGTH.size else (size,)
        self._start = _LENGTH.size + header
        if header > LONGEST_HEADER or self._start > size:
            raise Damaged(f"{path} is incomplete")
        try:
            self._header = json.loads(self._file.read(header))
            end = max((each["data_offsets"][1] for each in self._header.values()), default=0)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise Damaged(f"{path} was changed") from None
        if self._start + end != size:
            raise Damaged(f"{path} is incomplete")

    def read(self, key: str, dtype: str, shape: list[int], nbytes: int) -> bytearray:
        """The bytes of the array named `key`. Raises Damaged if it is missing, or differs in dtype, shape or size."""
        found = self._header.get(key)
        start = self._start + found["data_offsets"][0] if found else 0
        offsets = [start - self._start, start - self._start + nbytes]
        if found != {"dtype": DTYPES.get(dtype), "shape": shape, "data_offsets": offsets}:
            raise Damaged(f"{self.path} was changed")
        data = bytearray(nbytes)
        self._file.seek(start)
        view = memoryview(data)
        while view:
            if not (count := self._file.readinto(view)):
                raise Damaged(f"{self.path} is incomplete")
            view = view[count:]
        return data

    def close(self) -> None:
        self._file.close()
