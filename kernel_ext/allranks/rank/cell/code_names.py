"""The file names of cells' code, as Python shows them in a traceback: ``File "<In[3]>", line 2``.

ipykernel's own names contain a process number and a hash. The names made here are equal on all ranks, so that lines
that contain them can be folded.
"""

from __future__ import annotations

import hashlib
import itertools
import linecache
from typing import Any

KEPT_OF_SAME = 8
"""Maximum number of names kept for the same code: running a cell repeatedly would otherwise fill `linecache`."""


class CodeNames:
    """Names the code of this rank's cells. IPython's `compiler` (9.18) finds a cell's number by this name."""

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler
        self._digests: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        """The names given to the same code, oldest first, by the digest of the code."""

    def name(self, raw_code: str, _code: str, number: int) -> str:
        """Return a name for a cell's code; replaces `get_code_name`. Other code with this number gets ``<In[3].2>``."""
        digest = hashlib.sha1(raw_code.encode(errors="backslashreplace")).hexdigest()
        others = (f"<In[{number}].{nth}>" for nth in itertools.count(2))
        name = next(
            name
            for name in itertools.chain([f"<In[{number}]>"], others)
            if self._digests.setdefault(name, digest) == digest
        )
        same = self._names.setdefault(digest, [])
        if name not in same:
            same.append(name)
        if len(same) > KEPT_OF_SAME:
            self._forget(same.pop(0))
        return name

    def _forget(self, name: str) -> None:
        self._digests.pop(name, None)
        self._compiler._filename_map.pop(name, None)
        linecache.cache.pop(name, None)
