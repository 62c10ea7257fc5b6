"""The common part of sync, fetch and share: asks ranks about files, and moves files for sync and fetch."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

from allranks.errors import CannotCopy
from allranks.head.state.known_rank import Rank
from allranks.head.world.ranks import Ranks
from allranks.lifeline.open_questions import Reply, RequestFailed
from allranks.messages.requests import Answer, Question
from allranks.messages.wire import Buffer
from allranks.notebook.transfer_progress import SHOW_EVERY, wait_and_show
from allranks_widgets import human_bytes

AHEAD = 8
"""Maximum number of open questions per rank, so that the rank need not wait for the next part of a file."""

MOST_IN_ONE = 400
"""Maximum number of file parts in one message, since the rank needs some time for each."""
A = TypeVar("A", bound=Answer)
Part = TypeVar("Part")


def unsaid(_rank: int) -> str:
    """Show nothing for a rank."""
    return ""


def batches(parts: Iterable[Part], nbytes: int, size: Callable[[Part], int]) -> Iterator[list[Part]]:
    """Yield lists of parts, one per message: at most `nbytes` bytes and `MOST_IN_ONE` parts, or one larger part."""
    batch, room = list[Part](), nbytes
    for part in parts:
        if batch and (size(part) > room or len(batch) >= MOST_IN_ONE):
            yield batch
            batch, room = [], nbytes
        batch.append(part)
        room -= size(part)
    if batch:
        yield batch


class _Stopped(Exception):
    """Another rank has failed, or the user has stopped the transfer."""


class FileTransfer:
    """One transfer. While it waits, it often calls `go_on`, which may raise to stop it.

    `explain` returns the message for a rank that answered with an error (RequestFailed), could not be reached
    (ConnectionError) or did not answer in time (TimeoutError), or, given None, for a dead rank. Its second argument is
    the rank's host as status shows it. All methods but `move` and `stream` wait at most `within` seconds.
    """

    def __init__(
        self,
        ranks: Ranks,
        go_on: Callable[[], None],
        explain: Callable[[Rank, str, Exception | None], str],
        within: float = math.inf,
    ) -> None:
        self.ranks = ranks
        self._go_on, self._explain, self._within = go_on, explain, within
        self._stop = threading.Event()
        self._moved: dict[int, int] = {}

    def answers(self, questions: Mapping[int, Question[A]], doing: Callable[[int], str] = unsaid) -> dict[int, A]:
        """The answer of each rank to its question. Raises CannotCopy with a line for each rank that failed.

        `doing` returns the text that is shown for a rank that takes long.
        """
        return {rank: reply.answer for rank, reply in self.replies(questions, (), doing).items()}

    def replies(
        self,
        questions: Mapping[int, Question[A]],
        buffers: Sequence[Buffer] = (),
        doing: Callable[[int], str] = unsaid,
    ) -> dict[int, Reply[A]]:
        """Same as `answers`, with the answers' buffers; `buffers` are sent with each question."""
        given, failed = self.outcomes(questions, buffers, doing)
        _raise_all([*failed.values()])
        return given

    def outcomes(
        self,
        questions: Mapping[int, Question[A]],
        buffers: Sequence[Buffer] = (),
        doing: Callable[[int], str] = unsaid,
    ) -> tuple[dict[int, Reply[A]], dict[int, CannotCopy]]:
        """Same as `replies`, but returns the errors of the ranks that failed instead of raising them."""
        return self._settled({rank: self._ask(rank, question, buffers) for rank, question in questions.items()}, doing)

    def settled(self, asked: Mapping[int, Future[Reply[A]]]) -> dict[int, Reply[A]]:
        """Wait for the replies of ranks that were asked already, and return them. Raises as `answers` does."""
        given, failed = self._settled(asked, unsaid)
        _raise_all([*failed.values()])
        return given

    def _settled(
        self, asked: Mapping[int, Future[Reply[A]]], doing: Callable[[int], str]
    ) -> tuple[dict[int, Reply[A]], dict[int, CannotCopy]]:
        until = time.monotonic() + self._within
        wait_and_show(
            lambda: not wait(asked.values(), SHOW_EVERY).not_done or time.monotonic() > until,
            asked,
            lambda rank: "" if asked[rank].done() else doing(rank),
            self._go_on,
        )
        given, failed = dict[int, Reply[A]](), dict[int, CannotCopy]()
        for rank, answer in asked.items():
            try:
                given[rank] = self._reply(rank, answer)
            except CannotCopy as error:
                failed[rank] = error
        return given, failed

    def move(
        self,
        nbytes: Mapping[int, int],
        work: Callable[[int], None],
        done: str,
        line: Callable[[int], str] | None = None,
    ) -> None:
        """Call `work` with each rank, in a thread of its own, until all are done, one fails, or `go_on` raises.

        Shows for each rank its `line`, if given, or how many of its `nbytes` it has moved, followed by `done` ("sent",
        for instance). Raises CannotCopy with a line for each failure, or another error that `work` raised. May be
        called only once for each transfer.
        """
        self._moved = dict.fromkeys(nbytes, 0)

        def of_bytes(rank: int) -> str:
            return f"{human_bytes(self._moved[rank])} of {human_bytes(nbytes[rank])} {done}"

        with ThreadPoolExecutor(len(nbytes)) as threads:
            under_way = [threads.submit(work, rank) for rank in nbytes]

            def over() -> bool:
                return not wait(under_way, SHOW_EVERY, "FIRST_EXCEPTION").not_done or any(
                    each.done() and each.exception() for each in under_way
                )

            try:
                wait_and_show(over, nbytes, line or of_bytes, self._go_on)
            finally:
                self._stop.set()
        _raise_all([error for each in under_way if (error := each.exception())])

    def stream(self, rank: int, questions: Iterable[tuple[Question[A], Sequence[Buffer]]]) -> Iterator[Reply[A]]:
        """Yield the replies to `questions`, in order; up to `AHEAD` questions are open. For the threads of `move`."""
        to_send, under_way = iter(questions), deque[tuple[int, Future[Reply[A]]]]()
        while True:
            if self._stop.is_set():
                raise _Stopped
            for question, buffers in itertools.islice(to_send, AHEAD - len(under_way)):
                under_way.append((sum(map(len, buffers)), self._ask(rank, question, buffers)))
            if not under_way:
                return
            sent, answer = under_way[0]
            if wait([answer], SHOW_EVERY).done:
                under_way.popleft()
                reply = self._reply(rank, answer)
                self._moved[rank] += sent + sum(map(len, reply.buffers))
                yield reply

    def _ask(self, rank: int, question: Question[A], buffers: Sequence[Buffer] = ()) -> Future[Reply[A]]:
        """Ask a rank; the future gets the reply or an error, CannotCopy if the rank is dead."""
        asked = self.ranks.ask([rank], question, buffers)
        if rank not in asked:
            asked[rank] = Future()
            asked[rank].set_exception(self._refused(rank, None))
        return asked[rank]

    def _reply(self, rank: int, answer: Future[Reply[A]]) -> Reply[A]:
        """The reply in `answer`. Raises CannotCopy for an error, and if there is no reply yet."""
        try:
            return answer.result(0)
        except (RequestFailed, ConnectionError, TimeoutError) as error:
            raise self._refused(rank, error) from None

    def _refused(self, rank: int, error: Exception | None) -> CannotCopy:
        known, monitor = self.ranks.monitor.ranks[rank], self.ranks.monitor
        return CannotCopy(self._explain(known, monitor.shown_as(known.host), error))


def _raise_all(errors: Sequence[BaseException]) -> None:
    """Raise the first error that is not a CannotCopy; else one CannotCopy with the messages of all errors.

    The latter is of the errors' own class if they all have the same. `_Stopped` is ignored.
    """
    errors = [error for error in errors if not isinstance(error, _Stopped)]
    if others := [error for error in errors if not isinstance(error, CannotCopy)]:
        raise others[0]
    if errors:
        kinds = {type(error) for error in errors}
        raise (kinds.pop() if len(kinds) == 1 else CannotCopy)("\n".join(dict.fromkeys(map(str, errors))))
