"""Systems on which collectives of JACCL are aborted in place: Linux, and versions of macOS where that was proven.

Each entry of `PROVEN` comes from a report of ``python -m allranks probe``. The report says whether the version of macOS
on which it was made may be listed.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping

SWITCH = "ALLRANKS_JACCL_IN_PLACE"
"""Environment variable: 1 aborts JACCL's collectives in place even where that is not proven, 0 never does."""
PROVEN: Mapping[str, str] = {}
"""Maps a version of macOS, such as 26.3, to the address of the report that proved it."""
_WITHIN = 10


def macos_version() -> str:
    """The first two parts of the version of macOS; empty on other systems.

    A Python built with an older SDK gets 16.0 as the version of macOS 26 (python/cpython#135675).
    """
    version = platform.mac_ver()[0]
    if version.startswith(("10.16", "16.")):
        try:
            asked = ["/usr/bin/sw_vers", "-productVersion"]
            version = subprocess.run(asked, capture_output=True, text=True, timeout=_WITHIN, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return ".".join(version.split(".")[:2])
