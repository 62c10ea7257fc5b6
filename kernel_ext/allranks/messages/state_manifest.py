"""The manifest of a saved state: ``manifest.json``, which describes the files of the state.

Other programs may read the manifest, and the arrays in the safetensors files. Only allranks reads the pickles.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct, field

from .wire import Buffer

MANIFEST = "manifest.json"
FORMAT = "allranks"
FORMAT_VERSION = 2
SHARED = "shared.safetensors"
"""The file with the arrays that are equal on all ranks."""
RUNS = "runs.json"
"""The file with the runs of the notebook that saved the state, and the data that their charts need."""
NO_RUNS = b"[]"
RANDOM_STATES = {
    "(state of mx.random)": "mlx",
    "(state of random)": "random",
    "(state of numpy.random)": "numpy",
}
"""Maps the name of each random state among the saved variables to its key in `process_state.random_states`."""
VERSION = re.compile(r"state-\d{8}-\d{6}-[0-9a-f]{6}")
"""Matches the folder name of one save. The last name in sorted order is the newest save."""


def new_version() -> str:
    return datetime.now(UTC).strftime("state-%Y%m%d-%H%M%S-%f")


def arrays_file(rank: int) -> str:
    """The file with the arrays of one rank that are not equal on all ranks."""
    return f"rank-{rank}.safetensors"


def pickle_file(rank: int) -> str:
    """The file with all other values of one rank."""
    return f"rank-{rank}.pickle"


def digest(*parts: Buffer) -> str:
    """The 128-bit BLAKE2b digest of bytes; equal digests mean equal bytes."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def checksum(*parts: Buffer) -> int:
    """The CRC-32 of bytes, to detect a damaged file; it takes a quarter of the time of `digest`."""
    made = 0
    for part in parts:
        made = zlib.crc32(part, made)
    return made


class StoredArray(Struct, kw_only=True):
    ranks: list[int]
    library: str
    """``mlx`` or ``numpy``."""
    dtype: str
    """MLX's name, such as ``bfloat16``."""
    shape: list[int]
    bytes: int
    crc32: int
    """CRC-32 of the array's bytes, in row-major order and little-endian."""
    file: str
    """Path relative to the manifest; the array's name in the file is its key in `StateManifest.arrays`."""


class StoredValue(Struct, kw_only=True, omit_defaults=True):
    """The value of a variable on some ranks."""

    ranks: list[int]
    type: str
    digest: str
    """Digest of the value without its arrays, for comparison between ranks."""
    dtype: str | None = None
    shape: list[int] | None = None
    arrays: list[str] = field(default_factory=list)
    """Keys in `StateManifest.arrays`."""


class StoredVariable(Struct, kw_only=True):
    equal: bool
    """Whether the variable is equal on all ranks."""
    values: list[StoredValue]


class StoredPickle(Struct, kw_only=True):
    file: str
    bytes: int
    crc32: int


class StateManifest(Struct, kw_only=True):
    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    version: str
    """The name of the folder with the files."""
    world_size: int
    allranks: str
    mlx: str
    python: str
    variables: dict[str, StoredVariable]
    arrays: dict[str, list[StoredArray]]
    pickles: dict[int, StoredPickle]
    """The ranks' pickles, by rank."""

    def encoded(self) -> bytes:
        """The manifest as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def decoded(cls, data: bytes | bytearray | memoryview) -> StateManifest:
        """Decode a manifest. Raises ValueError for another program's file, another format version or damage.

        The error's text is meant to follow the file's name.
        """
        try:
            known = msgspec.json.decode(data, type=_Known)
            if known.format != FORMAT:
                raise ValueError("was not written by allranks")
            if known.format_version != FORMAT_VERSION:
                other = "a later" if known.format_version > FORMAT_VERSION else "an earlier"
                raise ValueError(
                    f"has format version {known.format_version}, which {other} allranks has written: this one reads "
                    f"{FORMAT_VERSION}"
                )
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"is no manifest of allranks, or was changed ({error})") from None

    def value(self, name: str, rank: int) -> StoredValue | None:
        """The value of a variable on this rank; None if the rank has no such variable."""
        variable = self.variables.get(name)
        return next((each for each in variable.values if rank in each.ranks), None) if variable is not None else None

    def array(self, key: str, rank: int) -> StoredArray:
        """The array with this key on this rank. Raises KeyError."""
        found = next((each for each in self.arrays.get(key, ()) if rank in each.ranks), None)
        if found is None:
            raise KeyError(key)
        return found


class StoredSeries(Struct, kw_only=True):
    """The values that a run logged under one name on one rank: all, or every nth value and the last one."""

    rank: int
    name: str
    steps: list[float]
    values: list[float | str]
    """Non-finite values are the strings ``nan``, ``inf`` and ``-inf``."""
    times: list[float]
    """Unix times in seconds."""


class StoredRun(Struct, kw_only=True):
    name: str
    code: str
    """The code, without text that may be secret."""
    values: dict[str, bool | int | float | str]
    ranks: list[int]
    backend: str
    status: Literal["ok", "failed", "stopped"]
    at: float
    """Unix time in seconds when it began."""
    seconds: float
    series: list[StoredSeries]


def decoded_runs(data: bytes | bytearray | memoryview) -> list[StoredRun]:
    """Decode ``runs.json``, which may be empty. Raises ValueError if it was changed."""
    try:
        return msgspec.json.decode(data, type=list[StoredRun]) if len(data) else []
    except msgspec.DecodeError as error:
        raise ValueError(f"was changed ({error})") from None


class _Known(Struct):
    format: str = ""
    format_version: int = 0
