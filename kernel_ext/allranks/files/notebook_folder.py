"""The notebook's working folder: which of its files are sent to other hosts, and why others are not.

The folder is scanned again for each sync, since a cell that runs right after an edit must not miss the edit. A file
system watcher reports edits late, and on NFS it does not report edits by other machines.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from allranks.errors import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LIMIT = 50 * 2**20
"""Maximum number of bytes that are sent, unless the user sets a limit."""
MOST_FILES = 20_000
"""Maximum number of files that are sent, unless the user sets a limit."""
LOOK_EVERY = 1000
"""Number of files between two calls of `go_on`, which may stop the scan."""
SAMPLE = 5
"""Number of files that a host compares to see whether it has the notebook's folder itself."""
NEVER = frozenset(
    {".git", ".hg", ".svn", ".allranks", "__pycache__", ".ipynb_checkpoints", "node_modules", ".DS_Store"}
)
"""Files and folders with these names are neither sent nor mentioned. The same applies to virtual environments."""
SECRETS = (
    *(".env", ".env.*", "!.env.example", "*.pem", "*.key", "*.p12", "*.pfx", ".netrc", ".npmrc", ".pypirc"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".ssh/", ".aws/", ".gnupg/", ".git-credentials", ".htpasswd"),
)
"""Patterns, as in .gitignore, of files that are not sent unless included."""
LINK = 0o120000
"""The mode of a symbolic link in git."""
NOTEBOOKS = ".ipynb"
"""Notebooks are not sent unless included: they change with every save, and ranks need only the code of cells."""

SECRET, LEADS_OUT, NO_FILE, TOO_LARGE = (
    "a secret",
    "a link that leads out of the folder",
    "neither a file nor a folder",
    "too large",
)


class Stamp(NamedTuple):
    """The attributes of a file by which an edit is noticed."""

    size: int
    mtime_ns: int
    mode: int
    """As in git (see `messages.requests.FileEntry`)."""


class _Ignore(NamedTuple):
    """A .gitignore in the folder, below or above it. To match a path, `prefix` replaces its first `cut` characters."""

    spec: GitIgnoreSpec
    cut: int = 0
    prefix: str = ""

    def decides(self, path: str) -> bool | None:
        """Whether the .gitignore ignores the path; None if no pattern matches."""
        return self.spec.check_file(self.prefix + path[self.cut :]).include


@dataclass(frozen=True)
class Contents:
    """The files that a scan found, by path relative to the folder."""

    files: Mapping[str, Stamp]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why files and unreadable folders are not sent; ignored files, notebooks and environments are not listed."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes, in bytes, of the files that are left out as too large."""


class Folder:
    """The notebook's folder, of which at most `limit` bytes are sent; None for `LIMIT`.

    `include` has patterns as in .gitignore: a file that matches is sent even if it is ignored, a secret or a notebook.
    """

    def __init__(self, path: Path, limit: int | None = None, include: Sequence[str] = ()) -> None:
        self.path = path
        self.limit, self.include = limit, tuple(include)
        self._ignores: dict[str, tuple[Stamp, GitIgnoreSpec]] = {}
        """The stamp and the patterns of each .gitignore read, by its folder."""
        self._ignored: dict[str, bool] = {}
        """Cached decisions of the .gitignore files, by path."""
        self._secret: dict[str, bool] = {}
        self._unread: dict[str, str] = {}
        """Folders that could not be read, and why."""

    def refuse_if_too_much(self) -> None:
        """Raise UsageError for the home folder, the root of the file system, and a folder that does not exist."""
        if not self.path.is_dir():
            raise UsageError(f"the folder {self.path} is no longer there.")
        if self.path.resolve() in (Path.home().resolve(), Path("/")):
            raise UsageError(
                f"{self.path} is your home folder or the root of the file system, which is not sent to other hosts. "
                "Keep the notebook and its code in a folder of their own."
            )

    def scan(self, go_on: Callable[[], None] = lambda: None) -> Contents:
        """The current contents. `go_on` is called often, and may raise. For UsageError see `refuse_if_too_much`."""
        self.refuse_if_too_much()
        self._forget_if_changed()
        included = _spec(self.include) if self.include else None
        files, left_out = dict[str, Stamp](), dict[str, str]()
        self._unread.clear()
        for number, (path, now) in enumerate(self._walk("", self._above(), included, False)):
            if number % LOOK_EVERY == 0:
                go_on()
            kind = stat.S_IFMT(now.st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFLNK):
                left_out[path] = NO_FILE
            elif kind == stat.S_IFLNK and not self._stays_inside(path):
                left_out[path] = LEADS_OUT
            elif self._is_secret(path) and not (included and included.match_file(path)):
                left_out[path] = SECRET
            else:
                files[path] = _stamp(now)
        sizes = self._shed(files)
        return Contents(files, {**left_out, **self._unread, **dict.fromkeys(sizes, TOO_LARGE)}, sizes)

    def refuse_if_absent(self, pattern: str) -> None:
        """Raise UsageError if the pattern is invalid or matches no file."""
        try:
            spec = _spec([pattern])
        except ValueError as error:
            raise UsageError(f"--include {pattern}: {error}.") from None
        if not any(spec.match_file(path) for path, _ in self._walk("", [], spec, False)):
            raise UsageError(f"--include {pattern}: no file in {self.path} matches.")

    def sample(self, files: Mapping[str, Stamp]) -> list[tuple[bytes, int, int]]:
        """Path, inode and ctime (in ns) of the newest files, or of the folder if there are none.

        A host compares them with its own to see whether it has this very folder.
        """
        found = []
        regular = [path for path, stamp in files.items() if stamp.mode != LINK]
        for path in sorted(regular, key=lambda path: -files[path].mtime_ns)[:SAMPLE] or [""]:
            try:
                now = os.lstat(self.path / path)
            except OSError:
                continue
            found.append((os.fsencode(path), now.st_ino, now.st_ctime_ns))
        return found

    def _walk(
        self, folder: str, ignores: Sequence[_Ignore], included: GitIgnoreSpec | None, only: bool
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Yield path and stat of the files below `folder` that match `included`, or are neither ignored nor notebooks.

        With `only`, all files must match `included`. A folder that cannot be read yields nothing.
        """
        try:
            with os.scandir(self.path / folder) as listing:
                entries = sorted(listing, key=lambda each: each.name)
        except FileNotFoundError:  # just removed
            return
        except OSError as error:
            self._unread[folder.rstrip("/") or "."] = f"it cannot be read here ({error.strerror})"
            return
        names = {each.name for each in entries}
        if "pyvenv.cfg" in names or (folder and ".allranks" in names):  # a virtual environment, or a synced copy
            return
        if ".gitignore" in names and (spec := self._read_ignore(folder)) is not None:
            ignores = [_Ignore(spec, cut=len(folder)), *ignores]
        for each in entries:
            if each.name in NEVER:
                continue
            path = folder + each.name
            is_folder = each.is_dir(follow_symlinks=False)
            leave = only or self._is_ignored(path + "/" * is_folder, ignores)
            if is_folder:
                if not leave or included is not None:
                    yield from self._walk(path + "/", ignores, included, leave)
            elif not (leave or each.name.endswith(NOTEBOOKS)) or (included and included.match_file(path)):
                try:
                    yield path, each.stat(follow_symlinks=False)
                except OSError:  # just removed
                    continue

    def _is_ignored(self, path: str, ignores: Sequence[_Ignore]) -> bool:
        """Whether the path is ignored; as in git, the nearest .gitignore with a matching pattern decides."""
        if not ignores:
            return False
        known = self._ignored.get(path)
        if known is None:
            decisions = (each.decides(path) for each in ignores)
            known = self._ignored[path] = next((each for each in decisions if each is not None), False)
        return known

    def _is_secret(self, path: str) -> bool:
        known = self._secret.get(path)
        if known is None:
            known = self._secret[path] = bool(_secrets().match_file(path))
        return known

    def _above(self) -> list[_Ignore]:
        """The .gitignore files above the folder, up to the top of its repository.

        Empty if the folder is in no repository, or if these files ignore the folder itself.
        """
        found, above, prefix = list[_Ignore](), self.path, ""
        while not (above / ".git").exists():
            if above.parent == above:
                return []
            prefix, above = f"{above.name}/{prefix}", above.parent
            if (spec := self._read_ignore(os.path.relpath(above, self.path) + "/")) is not None:
                found.append(_Ignore(spec, prefix=prefix))
        return [] if any(each.decides("") for each in found) else found

    def _read_ignore(self, folder: str) -> GitIgnoreSpec | None:
        try:
            file = self.path / folder / ".gitignore"
            now = _stamp(file.stat())
            known = self._ignores.get(folder)
            if known is None or known[0] != now:
                lines = file.read_text(errors="surrogateescape").splitlines()
                known = self._ignores[folder] = now, _spec(lines)
                self._ignored.clear()
            return known[1]
        except (OSError, ValueError):  # no such file, or invalid patterns
            return None

    def _forget_if_changed(self) -> None:
        """Forget the cached decisions if a .gitignore has changed."""
        for folder, (known, _) in list(self._ignores.items()):
            try:
                same = _stamp((self.path / folder / ".gitignore").stat()) == known
            except OSError:
                same = False
            if not same:
                self._ignores.pop(folder)
                self._ignored.clear()

    def _stays_inside(self, path: str) -> bool:
        try:
            if os.path.isabs(os.readlink(self.path / path)):
                return False
        except OSError:  # just removed
            return False
        real = os.path.realpath(self.path / path)
        inside = os.path.realpath(self.path)
        return os.path.commonpath([inside, real]) == inside

    def _shed(self, files: dict[str, Stamp]) -> dict[str, int]:
        """Remove the largest files until the rest is within the limit; return the sizes of the removed files."""
        limit = LIMIT if self.limit is None else self.limit
        most = MOST_FILES if self.limit is None else len(files)
        total = sum(each.size for each in files.values())
        if total <= limit and len(files) <= most:
            return {}
        shed = dict[str, int]()
        # Modules, which ranks import, are removed last.
        for path, each in sorted(files.items(), key=lambda item: (item[0].endswith(".py"), -item[1].size)):
            if total <= limit and len(files) <= most:
                break
            shed[path] = each.size
            total -= each.size
            del files[path]
        return shed


@cache
def _secrets() -> GitIgnoreSpec:
    return _spec(SECRETS)


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec:
    """Patterns as in .gitignore. Raises ValueError."""
    from pathspec import GitIgnoreSpec  # only here: most clusters sync nothing, and all would wait for this import

    return GitIgnoreSpec.from_lines(patterns)


def _stamp(now: os.stat_result) -> Stamp:
    if stat.S_ISLNK(now.st_mode):
        return Stamp(now.st_size, now.st_mtime_ns, LINK)
    return Stamp(now.st_size, now.st_mtime_ns, 0o100755 if now.st_mode & 0o100 else 0o100644)
