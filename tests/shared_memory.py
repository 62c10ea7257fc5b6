"""The files by which Open MPI's ranks on one machine share memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def shared_memory(processes: Iterable[psutil.Process]) -> set[str]:
    """Those that these processes have in their memory."""
    found = set[str]()
    for process in processes:
        with suppress(psutil.Error):
            found |= {each.path for each in process.memory_maps() if "/sm_segment." in each.path}
    return found
