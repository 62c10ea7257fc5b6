"""The program of an ssh login: it relays lines between the head, over stdin and stdout, and the host process.

Without arguments it starts the host process in a session of its own, so that only the relay ends with the login. With
the folder of a host process it connects to that process again. With ``--free`` as well, it only ends the previous
login, so that the ports of its tunnels are free for the next login, and reports whether the host process runs.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from allranks.machine.private_files import write_all
from allranks.messages.host_messages import Gone, Heard, to_line

from .record_login import end_login, write_login


def main(arguments: Sequence[str]) -> None:
    if not arguments:
        write_all(1, to_line(Heard(0)) + b"\n")  # reports that Python runs here
        relay(_started())
        return
    folder = Path(arguments[0])
    end_login(folder, os.getppid())
    connection = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(folder)  # the path of a Unix socket is limited to about 100 characters
        connection.connect("control")
    except (FileNotFoundError, ConnectionRefusedError):  # the host process has ended, perhaps with the machine
        write_all(1, to_line(Gone()) + b"\n")
        return
    if "--free" in arguments:
        write_all(1, to_line(Heard(0)) + b"\n")
        return
    write_login(folder, os.getppid())
    relay(connection.detach())


def _started() -> int:
    """Start a host process; return the descriptor connected to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "allranks.host_process.host", str(os.getppid())]  # on macOS, fork needs exec
    subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True)
    theirs.close()
    return ours.detach()


def relay(connection: int) -> None:
    """Copy data in both directions until either end closes."""
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
