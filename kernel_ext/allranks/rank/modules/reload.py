"""Reloads the modules of the working folder whose source has changed, on all ranks or on none.

A reload takes two phases. `Reloader.prepare` executes the changed modules, and can still put everything back.
`Reloader.decide` commits or undoes the reload, once the head knows whether every rank could prepare it. As with
`importlib.reload`, a module stays the same object, variables at module level get the values of the new code, and names
that the new code does not define stay. Modules that did not change are not executed again: a function or class that
they imported from a changed module is updated, a constant stays as it was.

See `update` for what the commit does to functions, classes and instances.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

from allranks.messages.value_types import Namespace

from .update import Older, Update

Stat = tuple[int, int]
"""Time of modification in ns, and size in bytes."""

MISSING_FOR = 0.05
"""Seconds after which a missing file is looked for again: some editors, and git, delete a file before they write it."""

_UNKNOWN: Stat = (-1, -1)
_MISSING = object()
_OWN = __name__.partition(".")[0]

_LIBRARY = sysconfig.get_path("stdlib")
_read: dict[str, Stat] = {}
"""Maps each source file imported since the last `note` to its stat when the import system began to read it."""
_path_stats = SourceFileLoader.path_stats


def _record_and_stat(loader: SourceFileLoader, path: str) -> Mapping[str, object]:
    # The first of several reads counts: if later ones differ, the module counts as changed, which is the safe side.
    if not path.startswith(_LIBRARY) and "-packages/" not in path:
        with suppress(OSError):
            _read.setdefault(path, _stat(path))
    return _path_stats(loader, path)


@dataclass(frozen=True)
class PreparedReload:
    """The result of `Reloader.prepare` on this rank."""

    reloaded: list[str]
    """Names of the modules that were executed, each after the changed modules that it imports."""
    removed: list[str]
    """Modules whose file is gone. The commit drops them from ``sys.modules``."""
    error: str = ""
    """Empty if all went well, else one line such as ``train.py, line 3: SyntaxError: invalid syntax``."""


@dataclass
class _Source:
    """A module of the folder, and the state of its file when the module was loaded."""

    module: ModuleType
    path: str
    stat: Stat


class Reloader:
    """The modules of this rank's working folder; each process has one `Reloader`."""

    def __init__(self, user_ns: Namespace) -> None:
        self._user_ns = user_ns
        self._since = time.time_ns()
        self._folder = _Folder("")
        self._seen: set[str] = set()
        """Names in ``sys.modules`` that have been looked at."""
        self._loaded: dict[str, Stat] = {}
        """The stat of each source file that was read, in case its folder becomes the working folder later."""
        self._sources: dict[str, _Source] = {}
        self._dropped: dict[str, _Source] = {}
        """Modules whose files are gone, by name."""
        self._pending: _Reload | None = None
        self._older = Older()
        # A module may be edited between its import and the end of the cell. So the import system itself tells which
        # version it read: it asks for a source's stat before it reads the source, whether or not it writes bytecode.
        # Comparing times of modification with the clock would fail where the clock of a file server differs.
        SourceFileLoader.path_stats = _record_and_stat  # type: ignore[assignment,method-assign]

    def note(self, folder: str) -> None:
        """Remember the sources of the modules of `folder` that were loaded since the last call."""
        read = dict(_read)
        for file, stat in read.items():
            self._loaded.setdefault(file, stat)
        if folder != self._folder.name:
            self._loaded.update((source.path, source.stat) for source in self._sources.values())
            self._folder, self._seen, self._sources = _Folder(folder), set(), {}
        for name, source in list(self._sources.items()):
            if sys.modules.get(name) is not source.module:
                del self._sources[name]
                self._seen.discard(name)
        names = set(sys.modules)
        for name in names - self._seen:
            if name not in self._sources and (path := self._folder.source_of(name)):
                with suppress(OSError):  # code that was generated, and whose file is gone already
                    self._sources[name] = _Source(sys.modules[name], path, self._loaded_stat(path, read))
        self._seen = names
        for file in read:
            _read.pop(file, None)

    def _loaded_stat(self, path: str, read: dict[str, Stat]) -> Stat:
        """The stat of the version that was loaded.

        Modules that were loaded before the reloader existed, or by another kind of loader, are in neither `read` nor
        `_loaded`. Such a module counts as changed if its file is newer than the reloader.
        """
        if known := read.get(path) or self._loaded.get(path):
            return known  # though the file may be gone
        now = _stat(path)
        return now if now[0] < self._since else _UNKNOWN

    def prepare(
        self,
        number: int,
        committed: int,
        folder: str,
        interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> PreparedReload:
        """Execute the modules that have changed, pending `decide`; SIGINT takes effect only in `interruptible`.

        An earlier reload whose decision was lost is committed first if its number is at most `committed`, else undone.
        If a module raises, everything is put back, and the module counts as changed until it can be executed. A
        KeyboardInterrupt is then raised again; other errors are described in the result.
        """
        if self._pending is not None:
            self.decide(self._pending.number, self._pending.number <= committed)
        self.note(folder)
        self._take_back()
        changed, removed = self._compared()
        if not changed and not removed:
            return PreparedReload([], [])
        self._pending = reload = _Reload(number, changed, removed)
        try:
            with interruptible():
                reload.execute()
        except BaseException as error:
            self.decide(number, False)
            if not isinstance(error, Exception | SystemExit):
                raise
            return PreparedReload([], [], self._folder.describe(error, reload.failed))
        return PreparedReload(list(reload.executed), list(removed))

    def _take_back(self) -> None:
        """Reuse removed modules whose files are back, as after `git checkout` of another branch.

        Otherwise, existing instances would have classes that can no longer be imported.
        """
        for name, source in list(self._dropped.items()):
            if name in sys.modules:  # imported again since
                del self._dropped[name]
            elif _stat_or_none(source.path) not in (None, _UNKNOWN):
                sys.modules[name] = source.module
                self._sources[name] = _Source(source.module, source.path, _UNKNOWN)
                del self._dropped[name]

    def _is_orphan(self, name: str) -> bool:
        """Whether the module's package exists but is not loaded: importing it must then import the module again."""
        package = name.rpartition(".")[0]
        if not package or package in sys.modules:
            return False
        try:
            return importlib.util.find_spec(package) is not None
        except (ImportError, ValueError):
            return False

    def _compared(self) -> tuple[dict[str, _Source], list[str]]:
        """The modules whose files have changed, by name, and the names of modules whose files are gone.

        Unloads modules whose package is not loaded (see `_is_orphan`) first.
        """
        for name in [name for name in self._sources if self._is_orphan(name)]:
            _drop(name, self._sources.pop(name).module)
        stats: dict[str, Stat | None] = {}
        for path in {source.path for source in self._sources.values()}:
            stats[path] = _stat_or_none(path)
        gone = [path for path, stat in stats.items() if stat is None]
        if gone:
            time.sleep(MISSING_FOR)
            stats.update((path, _stat_or_none(path)) for path in gone)
        # A file whose state cannot be read now (a file server does not answer) counts as unchanged.
        unchanged = (None, _UNKNOWN)
        sources = sorted(self._sources.items())  # the same order on all ranks: modules may call collectives
        changed = {name: source for name, source in sources if stats[source.path] not in (*unchanged, source.stat)}
        return changed, [name for name, source in sources if stats[source.path] is None]

    def decide(self, number: int, commit: bool) -> None:
        """Commit or undo the reload `number`; does nothing if another reload, or none, is pending."""
        reload = self._pending
        if reload is None or reload.number != number:
            return
        self._pending = None
        if not commit:
            reload.undo()
            return
        for name, source in reload.changed.items():
            if name in self._sources:
                self._sources[name].stat = reload.stats.get(source.path, _UNKNOWN)
        for name in reload.removed:
            gone = self._sources.pop(name, None)
            if gone is not None:
                _drop(name, gone.module)
                self._dropped[name] = gone
        update = Update(self._older)
        for module, before in reload.snapshots:
            update.add(module, before)
        update.carry_out([self._user_ns, *(source.module.__dict__ for source in self._sources.values())])
        for path in reload.stats:
            linecache.checkcache(path)


class _Folder:
    """Which modules and files belong to the working folder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._root = os.path.join(os.path.realpath(name), "")
        self._real_folders: dict[str, str] = {}
        prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
        inside = {prefix for prefix in prefixes if prefix.startswith(self._root)}
        library = {os.path.realpath(sysconfig.get_path(part)) for part in ("stdlib", "platstdlib")}
        self._others = tuple(os.path.join(path, "") for path in inside | library)
        """Folders of environments and of the standard library, whose files are never reloaded."""

    def has(self, path: str) -> bool:
        """Whether the file is under the folder, and not part of an installed package."""
        return os.path.isabs(path) and self._own(self._real(path)) is not None  # not "<string>"

    def _own(self, real: str) -> str | None:
        """The path relative to the folder; None if the file is outside, or part of an installed package."""
        if not real.startswith(self._root) or real.startswith(self._others):
            return None
        own = real[len(self._root) :]
        return None if {"site-packages", "dist-packages"} & set(own.split(os.sep)) else own

    def _real(self, path: str) -> str:
        folder, file = os.path.split(path)
        if os.path.islink(path):
            return os.path.realpath(path)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        return os.path.join(self._real_folders[folder], file)

    def source_of(self, name: str) -> str | None:
        """The source file of a loaded module, if it is under the folder and can be executed again."""
        module = sys.modules.get(name)
        if not self.name or name in ("__main__", "__mp_main__") or name.partition(".")[0] == _OWN:
            return None
        spec: Any = getattr(module, "__spec__", None) if isinstance(module, ModuleType) else None
        origin = getattr(spec, "origin", None)
        if not isinstance(origin, str) or not origin.endswith(".py") or not hasattr(spec.loader, "exec_module"):
            return None
        return origin if self.has(origin) else None

    def describe(self, error: BaseException, failed: str) -> str:
        """One line about a module's error; `failed` is the module's file, for errors without a frame in the folder."""
        file, line = failed, 0
        if isinstance(error, SyntaxError) and error.filename and self.has(error.filename):
            file, line = error.filename, error.lineno or 0
            message = error.msg
        else:
            at = error.__traceback__
            while at is not None:
                if self.has(at.tb_frame.f_code.co_filename):
                    file, line = at.tb_frame.f_code.co_filename, at.tb_lineno
                at = at.tb_next
            try:
                message = " ".join(str(error).split())
            except Exception:
                message = ""
        place = self._own(self._real(file)) or os.path.basename(file)
        if line:
            place += f", line {line}"
        return f"{place}: {type(error).__name__}" + (f": {message}" if message else "")


class _Reload:
    """One reload: executes the changed modules in their old namespaces, and can put everything back."""

    def __init__(self, number: int, changed: dict[str, _Source], removed: Sequence[str]) -> None:
        self.number = number
        self.changed = changed
        self.removed = removed
        self.executed: list[str] = []
        self.failed = ""
        """The first file whose execution raised."""
        self.stats: dict[str, Stat] = {}
        """The stat of each file, taken before the file was read."""
        modules = {id(source.module): source.module for source in changed.values()}
        self.snapshots = [(module, dict(module.__dict__)) for module in modules.values()]
        self._attributes = list(self._parents())

    def _parents(self) -> Iterator[tuple[ModuleType, str, object, ModuleType]]:
        """Yields, for each changed submodule: its package, its name there, the package's attribute, and the submodule.

        The attribute is the value that the package has under that name, or `_MISSING`.
        """
        for name, source in self.changed.items():
            package, _, child = name.rpartition(".")
            parent = sys.modules.get(package)
            if isinstance(parent, ModuleType):
                yield parent, child, parent.__dict__.get(child, _MISSING), source.module

    def execute(self) -> None:
        """Import the changed modules as in a new process, so that each is executed before its importers use it."""
        importlib.invalidate_caches()  # new files may be imported
        finder = _ModuleFinder(self._specs())
        shadowed = self._shadowed()
        for name in self.changed:
            sys.modules.pop(name, None)
        for parent, child, value, module in self._attributes:
            if value is module or self._is_changed(parent):
                # `from package import submodule` would find the module before it was executed.
                parent.__dict__.pop(child, None)
        try:
            sys.meta_path.insert(0, finder)
            for parent, children in shadowed:
                parent.__class__ = _keeping(children)
            for name in finder.specs:
                self._import(name, finder)
        finally:
            for parent, _ in shadowed:
                parent.__class__ = ModuleType
            with suppress(ValueError):  # interrupted, or a module replaced the list
                sys.meta_path.remove(finder)
        for parent, child, value, _ in self._attributes:
            if value is not _MISSING:
                parent.__dict__.setdefault(child, value)

    def _is_changed(self, module: ModuleType) -> bool:
        return any(module is changed for changed, _ in self.snapshots)

    def _shadowed(self) -> list[tuple[ModuleType, dict[str, ModuleType]]]:
        """Packages that are not executed again and have something else under the names of changed submodules.

        After `from .train import train` in `__init__`, the package's `train` is a function. Importing the submodule
        again must not replace the function.
        """
        found: dict[int, tuple[ModuleType, dict[str, ModuleType]]] = {}
        for parent, child, value, module in self._attributes:
            if (
                value is not _MISSING
                and value is not module
                and type(parent) is ModuleType
                and not self._is_changed(parent)
            ):
                found.setdefault(id(parent), (parent, {}))[1][child] = module
        return list(found.values())

    def _specs(self) -> dict[str, ModuleSpec]:
        """Specs of the changed modules, by name; their loaders execute a module once, even if it has several names."""
        names: dict[int, list[str]] = {}
        for name, source in self.changed.items():
            names.setdefault(id(source.module), []).append(name)
        specs: dict[str, ModuleSpec] = {}
        for aliases in names.values():
            source = self.changed[aliases[0]]
            own: Any = source.module.__spec__
            main = own.name if own.name in aliases else aliases[0]
            for name in sorted(aliases, key=lambda name: name != main):
                specs[name] = copy(own)
                specs[name].name = name
                loader: Any = _Loader(self, name, source) if name == main else _AliasLoader(source.module, main)
                specs[name].loader = loader
        return specs

    def _import(self, name: str, finder: _ModuleFinder) -> None:
        package = name.rpartition(".")[0]
        if not package or package in finder.specs or hasattr(sys.modules.get(package), "__path__"):
            importlib.import_module(name)
        elif name not in sys.modules:  # was loaded from a file under a name whose package does not exist
            loader: Any = finder.specs[name].loader
            sys.modules[name] = self.changed[name].module
            loader.exec_module(self.changed[name].module)

    def undo(self) -> None:
        """Put back what was there before `execute`. Names are never missing meanwhile: other threads may use them."""
        for module, before in self.snapshots:
            names = module.__dict__
            names.update(before)
            for name in [name for name in names if name not in before]:
                names.pop(name, None)
        for name, source in self.changed.items():
            sys.modules[name] = source.module
        for parent, child, value, _ in self._attributes:
            if value is _MISSING:
                parent.__dict__.pop(child, None)
            else:
                parent.__dict__[child] = value


def _keeping(children: dict[str, ModuleType]) -> type[ModuleType]:
    """A type for a package that ignores attempts to set these submodules as its attributes."""

    def set_attribute(package: ModuleType, name: str, value: object) -> None:
        if children.get(name, _MISSING) is not value:
            ModuleType.__setattr__(package, name, value)

    return type("module", (ModuleType,), {"__setattr__": set_attribute})


class _ModuleFinder:
    """Finds the changed modules, before any other finder."""

    def __init__(self, specs: dict[str, ModuleSpec]) -> None:
        self.specs = specs

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return self.specs.get(name)


class _Loader:
    """Executes the new source of a module in the existing module."""

    def __init__(self, reload: _Reload, name: str, source: _Source) -> None:
        self._reload = reload
        self._name = name
        self._source = source
        self._spec: Any = source.module.__spec__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader, name)  # for a module that uses its loader, for example to read data files

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._source.module

    def exec_module(self, module: ModuleType) -> None:
        path, loader = self._source.path, self._spec.loader
        try:
            self._reload.stats[path] = _stat(path)
            if hasattr(loader, "source_to_code") and hasattr(loader, "get_data"):
                # Not `get_code`: cached bytecode counts as valid for a changed source with equal size and equal second.
                exec(loader.source_to_code(loader.get_data(path), path), module.__dict__)
            else:
                loader.exec_module(module)
        except BaseException:
            self._reload.failed = self._reload.failed or path
            raise
        module.__spec__ = self._spec
        self._reload.executed.append(self._name)


class _AliasLoader:
    """Loads a second name of a module, which is executed under its main name."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module = module
        self._name = name
        self._spec: Any = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        importlib.import_module(self._name)
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _drop(name: str, module: ModuleType) -> None:
    """Remove a module from ``sys.modules`` and from its package."""
    if sys.modules.get(name) is module:
        del sys.modules[name]
    package, _, child = name.rpartition(".")
    parent = sys.modules.get(package)
    if parent is not None and getattr(parent, child, None) is module:
        with suppress(AttributeError):
            delattr(parent, child)


def _stat(path: str) -> Stat:
    # Opened, since NFS asks its server only then; else it may answer from its cache for a minute.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return found.st_mtime_ns, found.st_size


def _stat_or_none(path: str) -> Stat | None:
    """The stat of a file; None if there is no such file, `_UNKNOWN` if that cannot be determined."""
    try:
        return _stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return _UNKNOWN
