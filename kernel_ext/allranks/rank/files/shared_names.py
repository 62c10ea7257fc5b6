"""By which name cells find what was shared: a link for each name, in this user's private state on the host.

So all ranks of a host find it, those that were started later, too, and those of the next cluster.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from allranks.machine.identity import this_machine
from allranks.machine.shared_records import state_folder

LONGEST = 200
"""Characters of a name that is kept as it is; file systems take 255."""


def shared(name: str) -> Path:
    """The path on this rank's host of what ``%distributed share`` brought there.

    `name` is what was shared: its path, the last part of that, or the id of a repository on Hugging Face, with or
    without the organization. For a repository, the path is that of its snapshot, which ``load`` takes. The name that
    was shared last counts. Raises FileNotFoundError for what was not shared.
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
    """Let `shared` find it. Raises OSError."""
    target = snapshot(Path(os.fsdecode(folder))) if repo else Path(os.fsdecode(folder))
    for each in names:
        link = _link(os.fsdecode(each))
        link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = link.with_name(f".{secrets.token_hex(8)}")
        new.symlink_to(target)
        os.replace(new, link)


def snapshot(folder: Path) -> Path:
    """The snapshot of a repository in the Hugging Face cache: that of `main`, or the newest."""
    with suppress(OSError):  # of another branch only
        main = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        if main.is_dir():
            return main
    snapshots = (folder / "snapshots").glob("*")
    return max(snapshots, key=lambda each: each.stat().st_mtime_ns, default=folder)


def _link(name: str) -> Path:
    quoted = quote(os.fsencode(name), safe="")
    if len(quoted) > LONGEST:
        quoted = hashlib.sha256(os.fsencode(name)).hexdigest()
    return state_folder() / "shared" / this_machine() / f"name-{quoted}"  # home folders may be on a file server
