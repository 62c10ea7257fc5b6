"""The part of `Cluster` that brings large files from one host to the others."""

from __future__ import annotations

import os
from pathlib import Path

from allranks.errors import CellInterrupted
from allranks.files.share import HeadShare, ShareResult
from allranks.notebook.stop import Stop

from .base import ClusterBase


class ClusterShare(ClusterBase):
    """Models and data on all hosts."""

    def share(
        self,
        path: str | Path,
        *,
        source: int | str | None = None,
        to: str | Path | None = None,
        overwrite: bool = False,
    ) -> ShareResult:
        """Bring a file or a folder that one host has to all others, from host to host, and verify its checksums.

        `path` is one on that host (relative ones begin at its rank's working folder), or the id of a repository in its
        Hugging Face cache, such as ``"mlx-community/Qwen3-0.6B-4bit"``. `source` names the host, or a rank of it; by
        default it is one whose copy no share has put there: the notebook's, if ranks run there and have it, or the
        first. On the others it lies at the same path, below their own home folder if it is below the source's; what is
        in the Hugging Face cache comes into theirs. `to` names another folder for it. In a cell,
        ``allranks.shared(name)`` is its path on each rank.

        What is there already is not sent, and only what an earlier share has put there is replaced, unless with
        `overwrite`. Ranks may be running a cell. Where the network is lost for a while, the share goes on when it is
        back; one that was stopped, or failed, is continued by the next.

        Raises UsageError where no host has it, copies differ, or something else is in the way; CannotCopy where a host
        cannot send or take it; CellInterrupted. Nothing is put in place before all hosts have all of it. If a host then
        cannot put a file in place, it and other hosts may have some of the files in place; each of these is whole, and
        the message says so.
        """
        living, stop = self._up(), Stop()
        if not living.monitor.alive():
            self._refuse_if_broken(living)
        share = HeadShare(living, stop.raise_if_pressed)
        try:
            with stop.noted():
                return share.run(
                    os.fspath(path), source=source, to=None if to is None else os.fspath(to), overwrite=overwrite
                )
        except KeyboardInterrupt:
            raise CellInterrupted(share.stopped()) from None
