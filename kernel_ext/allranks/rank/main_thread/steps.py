"""The steps of a loop on a rank, between which the main thread answers questions from the notebook."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from allranks.rank.functions import transforms

from .main_thread_calls import MainThread
from .running_cell import RunningCell


class Steps:
    """A step ends with each call of ``log`` or `end_step` in the main thread, but not in a function that MLX traces."""

    current: Steps | None = None
    """The `Steps` of this process; None where it is not a rank."""

    def __init__(self, main: MainThread, cell: RunningCell) -> None:
        self._main, self._cell = main, cell
        self._asked = deque[Callable[[], None]]()
        """Functions that the main thread is to call between two steps, or else once it is idle."""
        self._last_cell = 0
        """Number of the last cell that ended a step."""

    @property
    def in_cell(self) -> bool:
        """Whether the running cell has ended a step."""
        return self._cell.runs(self._last_cell)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the main thread, between two steps or once the thread is idle."""
        self._asked.append(function)
        self._main.call(self._answer)

    def end(self) -> None:
        """Note the end of a step, and answer questions. Called in any thread.

        Does nothing outside the main thread, or in a function that MLX traces.
        """
        if self._last_cell == self._cell.number and not self._asked:
            return
        if self._main.is_current() and not transforms.inside():
            self._last_cell = self._cell.number
            self._answer()

    def _answer(self) -> None:
        while self._asked:
            function = self._asked[0]
            try:
                function()
            finally:  # an interrupted function has reported that itself
                self._asked.popleft()


def end_step() -> None:
    """Let a rank answer ``%distributed pull`` and ``vars`` here, in a loop of a cell that runs with ``--no-wait``.

    A call of ``log`` does the same. Without a question it takes less than a microsecond. Does nothing in a notebook.
    """
    if Steps.current is not None:
        Steps.current.end()
