"""A child process that may hang, crash or be killed, and its output lines until it ends or its time is up."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Generic, TypeVar

import msgspec

from allranks.notebook.stop_button import undisturbed

T = TypeVar("T")


class Child(Generic[T]):
    """Runs ``python -m MODULE ARGUMENTS...``; `lines` yields the process's messages, `trouble` says how it failed."""

    def __init__(self, kind: type[T], arguments: Sequence[str], within: float, *, grace: float = 2.0) -> None:
        """`within` is the timeout for all messages, `grace` the time for clean-up after an interrupt, in seconds."""
        self._kind, self._within, self._grace = kind, within, grace
        self._command = [sys.executable, "-m", *arguments]
        self.trouble = ""
        """Why messages may be missing, as a clause; empty if none are."""

    def lines(self) -> Generator[T]:
        with tempfile.TemporaryFile("w+", errors="replace") as errors, self._process(errors) as process:
            assert process.stdout is not None
            for line in self._read(process.stdout):
                try:
                    yield msgspec.json.decode(line, type=self._kind)
                except msgspec.MsgspecError:
                    continue  # output of a library
            if not self.trouble and (code := process.wait()):
                errors.seek(0)
                said = errors.read().strip().splitlines()[-1:]
                self.trouble = ": ".join([_ended(code), *said])

    @contextmanager
    def _process(self, errors: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start the process in a new session, so that Ctrl-C reaches only the parent, which then ends the child."""
        process: subprocess.Popen[bytes] | None = None
        try:
            with undisturbed():  # a half-started process could not be ended
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,  # closed when this process ends in any way: see `end_with_parent`
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            yield process
        finally:
            if process is not None:
                with undisturbed():
                    self._end(process)

    def _read(self, pipe: IO[bytes]) -> Iterator[bytes]:
        """Yield complete lines until the other end closes the pipe or the time is up."""
        until, rest = time.monotonic() + self._within, b""
        while (remaining := until - time.monotonic()) > 0:
            if not select.select([pipe], [], [], remaining)[0]:
                break
            if not (read := os.read(pipe.fileno(), 1 << 16)):
                return
            *whole, rest = (rest + read).split(b"\n")
            yield from whole
        self.trouble = f"no answer within {self._within:g} s"

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the process and its process group, since processes that it has started may hold the devices."""
        if process.poll() is None and self.trouble == "":
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # so that it frees its resources
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._grace)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _ended(code: int) -> str:
    if code > 0:
        return f"the process that asked ended with exit code {code}"
    with suppress(ValueError):
        return f"the process that asked was ended by {signal.Signals(-code).name}"
    return f"the process that asked was ended by signal {-code}"
