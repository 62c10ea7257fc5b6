"""The manifest of a saved state: ``manifest.json``, which says what is in the files beside it.

Other programs may read it, and the arrays, which are in safetensors files. The pickles are for allranks alone.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

MANIFEST = "manifest.json"
FORMAT = "allranks"
FORMAT_VERSION = 1
SHARED = "shared.safetensors"
"""Has the arrays that are equal on all ranks."""
RUNS = "runs.json"
"""The runs of the notebook that saved it, as far as their charts need them."""
NO_RUNS = b"[]"
RANDOM_STATE = "(random state)"
"""Stands among the variables for the states of ``mx.random``, ``random`` and ``numpy.random``."""
VERSION = re.compile(r"state-\d{8}-\d{6}-[0-9a-f]{6}")
"""The folder of one save. The last of them, in the order of their names, is the newest."""


def new_version() -> str:
    return datetime.now(UTC).strftime("state-%Y%m%d-%H%M%S-%f")


def arrays_file(rank: int) -> str:
    """Has the arrays of one rank that are not equal on all ranks."""
    return f"rank-{rank}.safetensors"


def pickle_file(rank: int) -> str:
    """Has all else of one rank."""
    return f"rank-{rank}.pickle"


def digest(*parts: Any) -> str:
    """BLAKE2b with 128 bits, of bytes: where it is equal, they are."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def checksum(*parts: Any) -> int:
    """CRC-32 of bytes, which shows damage to a file: it takes a quarter of the time of `digest`."""
    made = 0
    for part in parts:
        made = zlib.crc32(part, made)
    return made


class StoredArray(Struct, kw_only=True):
    ranks: list[int]
    library: str
    """``mlx`` or ``numpy``."""
    dtype: str
    """As MLX calls it: ``bfloat16``."""
    shape: list[int]
    bytes: int
    crc32: int
    """Of its bytes, in row-major order and little-endian."""
    file: str
    """Relative to the manifest; its name there is the key in `StateManifest.arrays`."""


class StoredValue(Struct, kw_only=True, omit_defaults=True):
    """What a variable is on some ranks."""

    ranks: list[int]
    type: str
    digest: str
    """Of all but its arrays, as it is compared between ranks."""
    dtype: str | None = None
    shape: list[int] | None = None
    arrays: list[str] = field(default_factory=list)
    """Keys in `StateManifest.arrays`."""


class StoredVariable(Struct, kw_only=True):
    equal: bool
    """Whether it is equal on all ranks."""
    values: list[StoredValue]


class StoredPickle(Struct, kw_only=True):
    file: str
    bytes: int
    crc32: int


class StateManifest(Struct, kw_only=True):
    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    version: str
    """The folder that has the files."""
    world_size: int
    allranks: str
    mlx: str
    python: str
    variables: dict[str, StoredVariable]
    arrays: dict[str, list[StoredArray]]
    pickles: dict[int, StoredPickle]
    """By rank."""

    def encoded(self) -> bytes:
        """As JSON that people can read."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def decoded(cls, data: bytes | bytearray | memoryview) -> StateManifest:
        """Raises ValueError, whose text goes after the file's name: for another program's, or a later format."""
        try:
            known = msgspec.json.decode(data, type=_Known)
            if known.format != FORMAT:
                raise ValueError("was not written by allranks")
            if known.format_version != FORMAT_VERSION:
                raise ValueError(
                    f"has format version {known.format_version}, which a later allranks has written: this one reads "
                    f"{FORMAT_VERSION}"
                )
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"is no manifest of allranks, or was changed ({error})") from None

    def value(self, name: str, rank: int) -> StoredValue | None:
        """What a variable is on this rank; None where that has none of this name."""
        variable = self.variables.get(name)
        return next((each for each in variable.values if rank in each.ranks), None) if variable is not None else None

    def array(self, key: str, rank: int) -> StoredArray:
        """Raises KeyError."""
        found = next((each for each in self.arrays.get(key, ()) if rank in each.ranks), None)
        if found is None:
            raise KeyError(key)
        return found


class StoredSeries(Struct, kw_only=True):
    """What a run has logged by one name on one rank, or every second, third ... value of it, with the last one."""

    rank: int
    name: str
    steps: list[float]
    values: list[float | str]
    """Those that are not finite are ``nan``, ``inf`` and ``-inf``."""
    times: list[float]
    """Unix times in seconds."""


class StoredRun(Struct, kw_only=True):
    name: str
    code: str
    """Without text that may be secret."""
    values: dict[str, bool | int | float | str]
    ranks: list[int]
    backend: str
    status: Literal["ok", "failed", "stopped"]
    at: float
    """Unix time in seconds when it began."""
    seconds: float
    series: list[StoredSeries]


def decoded_runs(data: bytes | bytearray | memoryview) -> list[StoredRun]:
    """The content of ``runs.json``; a state may have none. Raises ValueError where it was changed."""
    try:
        return msgspec.json.decode(data, type=list[StoredRun]) if len(data) else []
    except msgspec.DecodeError as error:
        raise ValueError(f"was changed ({error})") from None


class _Known(Struct):
    format: str = ""
    format_version: int = 0
