"""What a login runs: it relays lines between the head, at its standard input and output, and the host process.

Without arguments it starts that host process, in a session of its own: when the login ends, for whatever reason, only
the relay ends. With the folder of a host process it connects to that one again. With ``--free`` too, it only ends the
login before, so that the ports of that one's tunnels are free for the next, and says whether there is a host process.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from allranks.machine.files import write_all
from allranks.messages.host_messages import Gone, Heard, to_line

from .login import end_login, write_login


def main(arguments: Sequence[str]) -> None:
    if not arguments:
        write_all(1, to_line(Heard(0)) + b"\n")  # its Python runs
        relay(_started())
        return
    folder = Path(arguments[0])
    end_login(folder, os.getppid())
    connection = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(folder)  # a socket's path may have some 100 characters only
        connection.connect("control")
    except (FileNotFoundError, ConnectionRefusedError):  # it has ended, as its machine has perhaps
        write_all(1, to_line(Gone()) + b"\n")
        return
    if "--free" in arguments:
        write_all(1, to_line(Heard(0)) + b"\n")
        return
    write_login(folder, os.getppid())
    relay(connection.detach())


def _started() -> int:
    """Start a host process; returns the descriptor that leads to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "allranks.rank.process.host", str(os.getppid())]  # macOS survives no mere fork
    subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True)
    theirs.close()
    return ours.detach()


def relay(connection: int) -> None:
    """Until either end closes."""
    ways = {0: connection, connection: 1}
    while True:
        for source in select.select(list(ways), [], [])[0]:
            try:
                data = os.read(source, 1 << 16)
            except OSError:
                data = b""
            if not data:
                return
            try:
                write_all(ways[source], data)
            except OSError:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
