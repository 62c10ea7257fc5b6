"""Packages whose ``__init__`` runs at the first use of one of its names, instead of at import.

Importing ``ipyparallel.engine.app`` runs ``ipyparallel/__init__`` first, which imports what starts and uses clusters. A
process that is an engine, or the controller, needs none of that, and it takes a fifth of the time of its imports.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_DEFINED_IN = {
    "ipyparallel.Dependency": "ipyparallel.controller.dependency",
    "jupyter_client.BlockingKernelClient": "jupyter_client.blocking",
    "jupyter_client.write_connection_file": "jupyter_client.connect",
}
"""The names that imports of these processes use, and the submodule from which ``__init__`` has each."""


class _Deferred(ModuleType):
    """A package whose ``__init__`` has not run. Importing a submodule does not run it."""

    def __getattr__(self, name: str) -> object:
        full_name = f"{self.__name__}.{name}"
        if full_name in _DEFINED_IN:
            with suppress(ImportError, AttributeError):  # another version has it elsewhere
                return getattr(import_module(_DEFINED_IN[full_name]), name)
        elif not name.startswith("_") and find_spec(full_name) is not None:
            return import_module(full_name)
        return getattr(self._run_init(), name)

    def __dir__(self) -> Iterable[str]:
        self._run_init()
        return super().__dir__()

    def _run_init(self) -> ModuleType:
        # As a module of its own, so that the locks of imports apply: two threads may need it at once.
        init = import_module(f"{self.__name__}.__init__")
        self.__doc__ = init.__doc__
        for name, value in vars(init).items():
            if not name.startswith("__"):
                vars(self).setdefault(name, value)
        return init


def defer(*packages: str) -> None:
    """Defer the ``__init__`` of each of `packages` that is installed and has not been imported yet."""
    for package in packages:
        if package not in sys.modules and (spec := find_spec(package)) is not None:
            deferred = sys.modules[package] = module_from_spec(spec)
            deferred.__class__ = _Deferred
