"""The hosts that the user's ssh configuration names."""

from __future__ import annotations

from pathlib import Path

PATTERN = set("*?!")
MOST_INCLUDED = 50
"""Limit for the number of files that are read."""


def configured_hosts(file: Path | None = None) -> list[str]:
    """The names after ``Host`` in ``~/.ssh/config`` and in the files it includes, without patterns, in file order."""
    first = file or Path.home() / ".ssh" / "config"
    names, files, at = dict[str, None](), [first], 0
    while at < min(len(files), MOST_INCLUDED):
        try:
            lines = files[at].read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            keyword, *values = line.replace("=", " ", 1).split() or [""]
            if keyword.lower() == "host":
                names.update(dict.fromkeys(value.strip('"') for value in values if not PATTERN & set(value)))
            elif keyword.lower() == "include":
                files += [found for value in values for found in _matching(first.parent, value) if found not in files]
        at += 1
    return list(names)


def _matching(folder: Path, pattern: str) -> list[Path]:
    path = Path(pattern.strip('"')).expanduser()
    try:
        return sorted(Path(path.anchor or folder).glob(str(path.relative_to(path.anchor))))
    except (OSError, ValueError, NotImplementedError):
        return []
