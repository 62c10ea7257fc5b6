"""Keeps collectives of two streams from being in flight at once.

MLX runs streams concurrently, and matches the collectives of ranks by their order alone. If collectives of two streams
are in flight, one stream may go first on one rank and the other stream on the next, and the sums are wrong. This
happens after a generation with mlx-lm on the CPU, which leaves a step in flight on a stream of its own: half of the
collectives that came next were wrong (mlx 0.32.4, mlx-lm 0.32.2; under mlx.launch too). So before a collective is
called on another stream, allranks waits for the previous stream.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .replaced import is_replaced, leave_out_our_frames, replaced

if TYPE_CHECKING:
    from mlx.core import Device, Stream, ThreadLocalStream

MAKERS = ("new_stream", "new_thread_local_stream", "new_thread_unsafe_stream")


class StreamTurns:
    """The stream whose turn it is.

    `several` is False until a second stream is made. Until then, calls skip the lookup of their stream (0.2 us).
    """

    def __init__(self, noticed: Callable[[], None]) -> None:
        self.several = False
        self._noticed_one = noticed
        self.stream: Stream | None = None

    def install(self, mx: ModuleType) -> None:
        """Notice when streams are made. A second call has no effect."""
        for name in MAKERS:
            make = getattr(mx, name, None)
            if make is not None and not is_replaced(make):
                setattr(mx, name, replaced(make, self._noticed(mx, make)))

    def _noticed(self, mx: ModuleType, make: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            try:
                made = make(*args, **kwargs)
            except BaseException as error:
                leave_out_our_frames(error)
                raise
            if not self.several:
                self.several, self.stream = True, mx.default_stream(mx.default_device())
                self._noticed_one()
            return made

        return call

    def take(self, mx: ModuleType, asked_for: Stream | ThreadLocalStream | Device | None, *, wait: bool) -> None:
        """Give the turn to the stream on which a collective is about to be called.

        With `wait`, waits for the previous stream first. `asked_for` is a stream, a device, or None for the default.
        """
        before, self.stream = self.stream, _stream(mx, asked_for)
        if wait and before is not None and before != self.stream:
            try:
                mx.synchronize(before)
            except RuntimeError as error:
                if "in current thread" not in str(error):  # a CUDA stream can be waited for only in its own thread
                    raise

    def forget(self) -> None:
        """Forget the stream: a new world begins, and nothing is in flight."""
        self.stream = None


def _stream(mx: ModuleType, asked_for: Stream | ThreadLocalStream | Device | None) -> Any:
    if isinstance(asked_for, mx.Stream):
        return asked_for
    if isinstance(asked_for, mx.ThreadLocalStream):
        with mx.stream(asked_for):
            return mx.default_stream(mx.default_device())
    return mx.default_stream(mx.default_device() if asked_for is None else asked_for)
