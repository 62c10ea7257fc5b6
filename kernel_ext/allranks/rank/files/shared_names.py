"""The names by which cells find shared files: one link for each name, in this user's private state on the host.

So all ranks of a host find the files, including ranks that start later and ranks of the next cluster.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from allranks.machine.process_identity import this_machine
from allranks.machine.state_folder import state_folder

LONGEST = 200
"""Maximum length of a quoted name; a longer name is hashed. File systems allow 255."""


def shared(name: str) -> Path:
    """The path of a file or folder that ``%distributed share`` copied to this rank's host.

    `name` is its path as given to the share, the last component of its path, or the id of a Hugging Face repository,
    with or without the organization. For a repository, the result is the path of its snapshot, which ``load`` accepts.
    If several shares have the same name, the last one counts. Raises FileNotFoundError if nothing of that name was
    shared, or if the file is no longer there.
    """
    link = _link(name)
    try:
        target = Path(os.readlink(link))
    except OSError:
        target = None
    if target is None or not target.exists():
        what = f"{name!r} was not shared to this host" if target is None else f"{target} is no longer there"
        raise FileNotFoundError(f"{what}: run %distributed share {name}")
    return target


def give_names(names: Sequence[bytes], folder: bytes, repo: str) -> None:
    """Let `shared` find `folder`, or the snapshot in it if `repo` is set, by these names. Raises OSError."""
    target = snapshot(Path(os.fsdecode(folder))) if repo else Path(os.fsdecode(folder))
    for each in names:
        link = _link(os.fsdecode(each))
        link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = link.with_name(f".{secrets.token_hex(8)}")
        new.symlink_to(target)
        os.replace(new, link)


def snapshot(folder: Path) -> Path:
    """The repository's snapshot in the Hugging Face cache: of `main`, else the newest, else the folder itself."""
    with suppress(OSError):  # the cache has other branches only
        main = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        if main.is_dir():
            return main
    snapshots = (folder / "snapshots").glob("*")
    return max(snapshots, key=lambda each: each.stat().st_mtime_ns, default=folder)


def _link(name: str) -> Path:
    quoted = quote(os.fsencode(name), safe="")
    if len(quoted) > LONGEST:
        quoted = hashlib.sha256(os.fsencode(name)).hexdigest()
    return state_folder() / "shared" / this_machine() / f"name-{quoted}"  # hosts may share a home folder
