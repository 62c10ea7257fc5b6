"""Imports what a rank needs, before it runs or is forked."""

from __future__ import annotations

import gc
from types import ModuleType


def import_engine() -> ModuleType:
    """Import `rank.process.engine` with garbage collection off: imported modules are kept, so it would find nothing.

    That takes about a tenth less processor time.
    """
    gc.disable()
    try:
        from allranks.rank.process import engine
    finally:
        gc.enable()
    return engine
