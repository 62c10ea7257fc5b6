"""Has the ranks reload modules that have changed: all ranks keep the new modules, or all keep the old ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import wait

from allranks.errors import CannotCopy, CellInterrupted
from allranks.files.notebook_folder import Contents, Stamp
from allranks.files.sync_result import SyncResult
from allranks.head.world.ranks import Ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import DecideReload, PrepareReload, ReloadPrepared, StopReload
from allranks.notebook.stop_button import Stop
from allranks_backends.plan import alike, rank_label

from .live_ranks import Answered, LiveRanks

DECIDED_WITHIN = 10.0
"""Seconds that ranks get to keep or undo a reload; the new and the old modules are in their memory."""


class ModuleReload:
    """Has all ranks reload changed modules, or none."""

    def __init__(self, live: LiveRanks) -> None:
        self._live = live
        self._sources: Mapping[str, Stamp] | None = None
        """The folder's modules when the ranks last reloaded them; None if that is unknown."""
        self._committed = 0
        """Number of the last reload that all ranks were asked to keep."""

    def is_due(self, contents: Contents) -> bool:
        """Whether the modules among `contents` have changed since the ranks last reloaded modules."""
        return _modules_in(contents) != self._sources

    def reload(self, ranks: Ranks, result: SyncResult) -> None:
        """Have all ranks reload the modules that have changed, or none of them.

        `result` gets the names of the reloaded modules, or the reason why none was reloaded. Raises CellInterrupted
        after Ctrl-C, and CannotCopy if a rank cannot update its modules or does not respond. If it does not respond,
        its modules may differ from those of other ranks until the next reload, which first sends this rank the
        decision.
        """
        number, stop = time.time_ns(), Stop(around=True)  # a higher number than in any earlier notebook
        with self._live.changing, stop.noted():
            try:
                question = PrepareReload(reload=number, committed=self._committed)
                answers, silent = self._live.replies(lambda: self._live.ask_all(question, None), "reloads its modules")
            except CellInterrupted:
                self._undo(ranks, number)
                raise CellInterrupted("stopped while modules were reloaded; all ranks keep those they had") from None
            except BaseException:
                self._undo(ranks, number)
                raise
            failed = _failures(answers)
            given = [reply.answer for reply in answers.values() if isinstance(reply, Reply)]
            changed = any(answer.reloaded or answer.removed for answer in given)
            if silent or failed:
                silent += self._decide(ranks, number, commit=False)
            elif changed:
                silent += self._decide(ranks, number, commit=True)
            if silent:
                self._sources = None
                which = rank_label(sorted(set(silent)))
                raise CannotCopy(
                    f"{which} did not respond while modules were reloaded. Run the cell again once %distributed status "
                    "no longer shows 'suspended', 'silent' or 'out of reach'."
                )
        stop.raise_if_pressed()
        if failed:
            result.not_reloaded = "; ".join(f"{rank_label(which)}: {why}" for why, which in alike(failed).items())
            return
        reloaded = {rank: reply.answer.reloaded for rank, reply in answers.items() if isinstance(reply, Reply)}
        names = dict.fromkeys(name for each in reloaded.values() for name in each)
        by_ranks = alike({name: tuple(rank for rank, each in reloaded.items() if name in each) for name in names})
        result.reloaded = {numbers: tuple(modules) for numbers, modules in by_ranks.items()}
        result.size = self._live.size
        result.removed = list(dict.fromkeys(name for each in given for name in each.removed))
        self._sources = _modules_in(result.contents)

    def _undo(self, ranks: Ranks, number: int) -> None:
        """Interrupt modules that are being executed again, and have all ranks restore their old modules."""
        for rank in ranks.monitor.ranks:
            ranks.lifeline.tell(rank.uuid, StopReload(number))
        self._decide(ranks, number, commit=False)

    def _decide(self, ranks: Ranks, number: int, *, commit: bool) -> list[int]:
        """Send the decision to all ranks. Returns ranks that did not respond; they learn of it at the next reload.

        Raises CannotCopy if a rank cannot update its modules.
        """
        if commit:
            self._committed = number
        asked = ranks.ask(range(self._live.size), DecideReload(reload=number, commit=commit))
        wait(asked.values(), DECIDED_WITHIN)
        silent = [rank for rank, answer in asked.items() if not answer.done()]
        for rank, answer in asked.items():
            if rank in silent:
                continue
            error = answer.exception()
            if isinstance(error, RequestFailed):
                raise CannotCopy(f"rank {rank}: its modules could not be updated: {error.kind}: {error}")
            if error is not None:
                silent.append(rank)
        return silent


def _modules_in(contents: Contents) -> dict[str, Stamp]:
    """The Python files among `contents`, with their stamps."""
    return {path: stamp for path, stamp in contents.files.items() if path.endswith(".py")}


def _failures(answers: Mapping[int, Answered[ReloadPrepared]]) -> dict[int, str]:
    """Why ranks could not reload, by rank."""
    failed = dict[int, str]()
    for rank, reply in answers.items():
        if isinstance(reply, RequestFailed):
            failed[rank] = f"{reply.kind}: {reply}"
        elif reply.answer.error:
            failed[rank] = reply.answer.error
    return failed
