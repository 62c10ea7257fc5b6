"""This machine's ssh: its options, and its arguments for a host."""

from __future__ import annotations

import shlex

from allranks_backends.runtimes.placement_checks import login_and_port

CONNECT_WITHIN = 8
"""Timeout, in seconds, for ssh to connect and log in."""


def ssh_options(within: int = CONNECT_WITHIN) -> list[str]:
    """Options for a login without prompts, with `within` seconds to connect."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": within,
        "ExitOnForwardFailure": "yes",
        "LogLevel": "INFO",
        # So ssh notices a lost network after 15 to 20 s.
        "ServerAliveInterval": 5,
        "ServerAliveCountMax": 3,
        "ControlPath": "none",
    }
    return ["-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


# The ports that ~/.ssh/config forwards may be in use by another login that is still open.
SSH_OPTIONS = [*ssh_options(), "-o", "ClearAllForwardings=yes"]
"""Options for a login that forwards no ports."""


def destination(name: str) -> list[str]:
    """The arguments of ssh for ``user@host:port``."""
    login, port = login_and_port(name)
    # "--", since a name from a hostfile must not be read as an option.
    return ["--", login] if port is None else ["-p", str(port), "--", login]


def typed(name: str) -> str:
    """What a user types after ``ssh`` for ``user@host:port``."""
    return shlex.join(word for word in destination(name) if word != "--")
