"""Packages whose ``__init__`` runs at the first use of one of its names, instead of at import.

Importing ``ipyparallel.engine.app`` runs ``ipyparallel/__init__`` first, which imports what starts and uses clusters. A
process that is an engine, or the controller, needs none of that, and it takes a fifth of the time of its imports.

Only for packages whose submodules can each be imported first: ipyparallel's can (9.2). Those of jupyter_client import
each other in a circle, in which only ``__init__`` may come first.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_SUBMODULES = {"ipyparallel": {"error", "serialize", "util"}}
_FROM = {"ipyparallel": {"Dependency": "controller.dependency"}}
"""By package, the names that an engine and the controller use, and the submodule from which ``__init__`` has each.

In a version of the package that has one elsewhere, or where they use others, ``__init__`` runs.
"""
_lock = threading.RLock()
_running = set[str]()
"""The packages whose ``__init__`` runs in the thread that holds the lock."""


class _Deferred(ModuleType):
    """A package whose ``__init__`` has not run. Importing a submodule does not run it."""

    def __getattr__(self, name: str) -> object:
        package = self.__name__
        with suppress(ImportError, AttributeError):
            if name in _SUBMODULES.get(package, ()):
                return import_module(f"{package}.{name}")
            if name in _FROM.get(package, ()):
                return getattr(import_module(f"{package}.{_FROM[package][name]}"), name)
        self._run_init()
        return ModuleType.__getattribute__(self, name)  # its class may be another now

    def __dir__(self) -> list[str]:
        self._run_init()
        return list(ModuleType.__dir__(self))

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return import_module, (self.__name__,)

    def _run_init(self) -> None:
        """Run ``__init__``; from then on this is a module like any other."""
        with _lock:
            if type(self) is not _Deferred or self.__name__ in _running:
                return
            assert self.__spec__ is not None and self.__spec__.loader is not None
            _running.add(self.__name__)
            try:
                self.__spec__.loader.exec_module(self)
                self.__class__ = ModuleType  # type: ignore[assignment]
            finally:
                _running.discard(self.__name__)


def defer(*packages: str) -> None:
    """Defer the ``__init__`` of each of `packages` that is installed and has not been imported yet."""
    for package in packages:
        if package not in sys.modules and (spec := find_spec(package)) is not None and spec.origin is not None:
            deferred = sys.modules[package] = module_from_spec(spec)
            deferred.__class__ = _Deferred
