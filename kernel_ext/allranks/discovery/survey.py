"""Run shell commands on hosts: one login per host, all hosts and all commands at the same time.

A host needs only ``sh``, so discovery and the doctor work even if allranks cannot run there yet.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from allranks.hosts.ssh.ssh_command import SSH_OPTIONS, destination
from allranks.hosts.ssh.ssh_failures import explained
from allranks_backends.plan import Host

COMMANDS_WITHIN = 15
"""Default timeout, in seconds, for a host's commands; commands that take longer are killed and have no exit status."""
LOGIN_WITHIN = 15.0

# A parent is killed before its children: it would otherwise record their exit status as if they had ended in time.
_HEAD = """\
d=$(mktemp -d 2>/dev/null) || d=$(TMPDIR=/tmp; export TMPDIR; mktemp -d) || exit 97
trap 'rm -rf "$d"' EXIT
run() { (eval "$2") >"$d/$1.out" 2>"$d/$1.err" </dev/null; echo $? >"$d/$1.rc"; }
end() { set -- "$1" $(pgrep -P "$1" 2>/dev/null); kill "$1" 2>/dev/null; shift; for c; do end "$c"; done; }
"""
_TAIL = """\
i=0
while [ "$(ls "$d" | grep -c 'rc$')" -lt {count} ] && [ $i -lt {tenths} ]; do sleep 0.1; i=$((i+1)); done
[ $i -lt {tenths} ] || for p in $pids; do end "$p"; done
n=0
while [ $n -lt {count} ]; do
  for f in out err; do [ -f "$d/$n.$f" ] || : >"$d/$n.$f"; done
  rc=$(cat "$d/$n.rc" 2>/dev/null)
  echo "{token} $n ${{rc:-late}} $(($(wc -c <"$d/$n.out"))) $(($(wc -c <"$d/$n.err")))"
  cat "$d/$n.out" "$d/$n.err"
  n=$((n+1))
done
rm -rf "$d"  # what has read the end ends this shell
echo "{token} end"
"""


@dataclass(frozen=True)
class CommandOutput:
    """The output of one command on one host."""

    out: str
    err: str = ""
    code: int | None = 0
    """Exit status; None if the command did not end in time."""

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Surveyed:
    """One host's answers, or why there are none."""

    host: Host
    answers: Mapping[str, CommandOutput]
    trouble: str = ""
    """Why the host could not be asked, and what to do; empty if it was asked."""
    said: tuple[str, ...] = ()
    """The lines that ssh, or the host's shell, printed to standard error."""
    between: tuple[float, float] = (0.0, 0.0)
    """When the host was asked and when it had answered, by the notebook's clock (``time.time``)."""

    def out(self, name: str) -> str:
        """The output of a command; empty if it failed, does not exist on the host or was not run."""
        answer = self.answers.get(name)
        return answer.out if answer is not None and answer.ok else ""


Commands = Mapping[str, str]
"""Shell commands, by name."""


def survey(
    hosts: Sequence[Host],
    commands: Commands | Callable[[Host], Commands],
    within: Callable[[Host], int] = lambda _: COMMANDS_WITHIN,
) -> list[Surveyed]:
    """Run `commands` on each host, in one login per host; a callable returns the commands for a host.

    `within` returns the timeout, in seconds, for a host's commands.
    """
    if not hosts:
        return []
    with ThreadPoolExecutor(len(hosts), "allranks-survey") as pool:
        asked = [commands(host) if callable(commands) else commands for host in hosts]
        return list(pool.map(_ask, hosts, asked, map(within, hosts)))


def _ask(host: Host, commands: Commands, within: int) -> Surveyed:
    token, asked = secrets.token_hex(8), time.time()
    line: Sequence[str] = ["sh", "-s"] if host.local else ["ssh", *SSH_OPTIONS, *destination(host.name), "sh", "-s"]
    try:
        out, err = _run(line, _script([*commands.values()], token, within).encode(), f"{token} end\n".encode(), within)
    except FileNotFoundError:
        return Surveyed(host, {}, f"{line[0]} was not found on this machine")
    except OSError as error:
        return Surveyed(host, {}, f"{line[0]} cannot be started on this machine: {error.strerror or error}")
    except subprocess.TimeoutExpired:
        return Surveyed(host, {}, "it accepted the connection but did not answer")
    answers = dict(zip(commands, _answers(out, token), strict=False))
    between = (asked, time.time())
    said = tuple(line.strip() for line in err.decode(errors="replace").splitlines() if line.strip())
    if len(answers) == len(commands):
        return Surveyed(host, answers, said=said, between=between)
    trouble = explained(said, host.name, "sh") if said else "the connection closed without an error message"
    return Surveyed(host, answers, trouble, said, between)


def _run(command: Sequence[str], script: bytes, end: bytes, within: float) -> tuple[bytes, bytes]:
    """Run `command` with `script` as its input; returns its output up to `end`, and its standard error.

    It gets `LOGIN_WITHIN` seconds for the login, and `within` more for the script.

    Does not wait for the output to close, which may take hours if a start-up file has left a process there. Raises
    OSError (FileNotFoundError if there is no such program) and TimeoutExpired.
    """
    within += LOGIN_WITHIN
    pipe = subprocess.PIPE
    # In a session of its own, so that Ctrl-C in a terminal does not reach it.
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    out, errors, began = bytearray(), bytearray(), time.monotonic()
    limit = threading.Timer(within, process.kill)
    limit.start()
    complaints = threading.Thread(target=_read_all, args=(process.stderr, errors), daemon=True)
    complaints.start()
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(script)
            process.stdin.close()
        while not out.endswith(end) and (more := os.read(process.stdout.fileno(), 1 << 16)):
            out += more
        if out.endswith(end):
            process.terminate()
        process.wait()
        complaints.join(1.0)
    finally:
        limit.cancel()
        process.kill()
        process.stdout.close()
        with suppress(OSError):  # buffered input that it did not read cannot be sent
            process.stdin.close()
    if not out.endswith(end) and time.monotonic() > began + within:
        raise subprocess.TimeoutExpired(command, within)
    return bytes(out), bytes(errors)


def _read_all(stream: IO[bytes], into: bytearray) -> None:
    """Read `stream` to its end and close it. If another thread closed it, the descriptor could be reused meanwhile."""
    with stream:
        into += stream.read()


def _script(commands: Sequence[str], token: str, within: int) -> str:
    runs = "".join(
        f'run {number} {shlex.quote(command)} & pids="$pids $!"\n' for number, command in enumerate(commands)
    )
    return _HEAD + runs + _TAIL.format(count=len(commands), tenths=within * 10, token=token)


def _answers(told: bytes, token: str) -> list[CommandOutput]:
    """Parse the answers in order, and skip output that a login shell printed before them."""
    answers, rest = [], told
    mark = token.encode() + b" "
    while (start := rest.find(mark)) >= 0:
        head, _, rest = rest[start:].partition(b"\n")
        if head.split()[1:] == [b"end"]:
            break
        code, out, err = head.split()[2:]
        end, last = int(out), int(out) + int(err)
        answers.append(
            CommandOutput(
                rest[:end].decode(errors="replace"),
                rest[end:last].decode(errors="replace"),
                None if code == b"late" else int(code),
            )
        )
        rest = rest[last:]
    return answers
