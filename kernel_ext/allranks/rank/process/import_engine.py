"""Imports what a rank needs, before it runs or is forked."""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from allranks.machine.deferred_packages import defer

_AT_START = (
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "encodings.idna",
    "faulthandler",
    "sqlite3",
    "tornado.platform.asyncio",
)
"""What an engine imports as it starts: imported here, once for all ranks that are forked (IPython 9.18)."""


def import_engine() -> ModuleType:
    """Import `rank.process.engine` with garbage collection off: imported modules are kept, so it would find nothing.

    That takes about a tenth less processor time.
    """
    gc.disable()
    try:
        defer("ipyparallel")
        from allranks.rank.process import engine

        for name in _AT_START:
            with suppress(ImportError):  # in another version, or in a Python without SQLite
                import_module(name)
    finally:
        gc.enable()
    return engine
