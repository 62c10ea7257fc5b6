"""Where collectives of JACCL are aborted in place: on Linux, and on the versions of macOS where that was proven.

An entry comes from a report of ``python -m allranks probe``, which says whether its macOS may be listed, and how.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping

SWITCH = "ALLRANKS_JACCL_IN_PLACE"
"""Set to 1, JACCL's collectives are aborted in place also where that is not proven; set to 0, nowhere."""
PROVEN: Mapping[str, str] = {}
"""A version of macOS, such as 26.3, to the address of the report that proved it."""
_WITHIN = 10


def macos_version() -> str:
    """Its first two parts; empty where this is not macOS.

    To a Python built with an older SDK, macOS 26 gives its version as 16.0 (python/cpython#135675).
    """
    version = platform.mac_ver()[0]
    if version.startswith(("10.16", "16.")):
        try:
            asked = ["/usr/bin/sw_vers", "-productVersion"]
            version = subprocess.run(asked, capture_output=True, text=True, timeout=_WITHIN, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return ".".join(version.split(".")[:2])
