"""The file names of cells' code, as Python shows them in a traceback: ``File "<In[3]>", line 2``.

ipykernel's names have a process number and a hash. These names are equal on all ranks, so lines with them can fold.
"""

from __future__ import annotations

import hashlib
import itertools
import linecache
from typing import Any

KEPT_OF_SAME = 8
"""Names kept for one text: a cell that is run again and again would otherwise fill Python's `linecache`."""


class CodeNames:
    """Names the code of this rank's cells. `compiler` is IPython's (9.18), which finds a cell's number by its name."""

    def __init__(self, compiler: Any) -> None:
        self._compiler = compiler
        self._digests: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        """Names of each text, by its digest, oldest first."""

    def name(self, raw_code: str, _code: str, number: int) -> str:
        """Return a name, in place of the compiler's `get_code_name`. Other code with this number gets ``<In[3].2>``."""
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
