"""A Jupyter console, opened in a shell, that is connected to one rank."""

from __future__ import annotations

import shutil

from allranks.errors import UsageError
from allranks.messages.requests import Console

from .live_ranks import LiveRanks, reply_or_error


def console_command(live: LiveRanks, rank: int) -> str:
    """See `Cluster.console`."""
    number = live.choose_ranks(rank)[0]
    if live.settings.shared:
        raise UsageError(
            "a console works only if all ranks of the cluster are on this machine. Run cells on rank "
            f"{number} with %%rank {number}, or debug its last error with %distributed debug -r {number}."
        )
    reply = live.all_replies(lambda: live.ask_all(Console(), number), number)[number]
    file = reply_or_error(number, reply, "console").answer.file
    install = "" if shutil.which("jupyter-console") else "pip install jupyter-console    # not installed yet\n"
    return f"{install}jupyter console --existing {file}"
