"""Explains, from the output of ssh or of the host's shell, why a login or its Python failed, and suggests a fix."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from allranks_backends.runtimes.placement_checks import known_as

from .ssh_command import typed

_NOT_INSTALLED = "allranks is not installed for {python} there. There: {python} -m pip install allranks"
_NO_FORWARDING = "its sshd does not forward ports. Set AllowTcpForwarding yes in its sshd_config"
_NO_PYTHON = "there is no {python} there. Name the Python that has allranks with --python"
_PASSWORDS = (
    "its sshd accepts passwords only, and none can be typed here. Set PubkeyAuthentication yes in its sshd_config"
)
_FEW_FILES = (
    "a process may open too few files there. Raise the limit of its logins to 1024: `ulimit -n` in its start-up files,"
    " or nofile in /etc/security/limits.conf"
)
_FEW_PROCESSES = (
    "its user may start too few processes there. Raise the limit: `ulimit -u` in its start-up files, or nproc in"
    " /etc/security/limits.conf"
)
_AT_LOGIN = (
    ("Permission denied (password", _PASSWORDS),  # but no public keys
    ("Permission denied (keyboard-interactive", _PASSWORDS),
    ("Permission denied (", "it refused the ssh key. Copy the key there with: ssh-copy-id {words}"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key has changed. If that is expected: {remove}"),
    ("Host key verification failed", "its host key is not known here. Accept it once with: ssh {words}"),
    ("Could not resolve hostname", "unknown host name. Add it to ~/.ssh/config or DNS"),
    ("Connection refused", "nothing listens for ssh there. Turn on Remote Login (macOS) or sshd (Linux)"),
    ("No route to host", "there is no route to it. Check that it is on, and on this network"),
    ("timed out", "it does not answer. Check that it is on, and on this network"),
    ("remote port forwarding failed", _NO_FORWARDING),
    ("administratively prohibited", _NO_FORWARDING),
    ("UNKNOWN port", "its ProxyJump or ProxyCommand in ~/.ssh/config does not get through. Try: ssh {words} true"),
)
_ON_HOST = (
    (
        "No module named 'allranks'",
        _NOT_INSTALLED,
    ),
    (
        "No module named allranks.",
        "{python} there has another version of allranks. There: {python} -m pip install --upgrade allranks",
    ),
    ("No module named allranks", _NOT_INSTALLED),
    (
        "No module named 'encodings'",
        "{python} finds no standard library there: PYTHONHOME is wrong. Take it out of its start-up files",
    ),
    ("No module named", "a package is missing for {python} there ({said}). There: {python} -m pip install allranks"),
    # As dash, bash and zsh print it, each with the path in a different place.
    ("{python}: cannot execute: No such file", _NO_PYTHON),
    ("{python}: not found", _NO_PYTHON),
    ("{python}: No such file or directory", _NO_PYTHON),
    ("{python}: command not found", _NO_PYTHON),
    ("no such file or directory: {python}", _NO_PYTHON),
    ("command not found: {python}", _NO_PYTHON),
    (
        "{python}: cannot execute",
        "{python} is not a program there. Name the Python that has allranks with --python",
    ),
    ("{python}: Permission denied", "{python} there cannot be run. Name the Python that has allranks with --python"),
    (
        "loopback passes nothing",
        "TCP connections to its own 127.0.0.1 fail, by which its ranks reach the notebook. Let them through there:"
        " sudo ip link set lo up; sudo iptables -I INPUT -i lo -j ACCEPT",
    ),
    ("a process may open only", _FEW_FILES),
    ("Too many open files", _FEW_FILES),
    ("Cannot fork", _FEW_PROCESSES),
    ("fork: retry", _FEW_PROCESSES),
    ("Resource temporarily unavailable", _FEW_PROCESSES),
    ("No space left on device", "its disk is full (where TMPDIR points, or /tmp)"),
    ("No usable temporary directory", "its disk is full (where TMPDIR points, or /tmp), or not writable"),
)


def explained(said: Sequence[str], name: str, python: str, *, may_set_up: bool = False, logged_in: bool = False) -> str:
    """Explain output of ssh or of the host's shell, and what to do about it (OpenSSH 9.2, dash, bash, zsh).

    `may_set_up`: whether an environment that `setup` makes there would be used. `logged_in`: whether the host's shell
    is known to have run a command; then errors of the login are not searched for, since a banner may mention them.
    Returns the last line if no explanation is known.
    """
    path = python.removeprefix("~")  # the shell has replaced the ~ by the home folder
    for sign, meaning in (*(() if logged_in else _AT_LOGIN), *_ON_HOST):
        sign = sign.replace("{python}", path)
        if line := next((line for line in reversed(said) if sign in line), ""):
            # ssh prints the name in known_hosts, which may differ from `name`, for example behind an alias.
            remove = next((each for each in said if each.startswith("ssh-keygen ")), "")
            remove = remove or f"ssh-keygen -R {shlex.quote(known_as(name))}"
            quoted = shlex.quote(python) if not python.startswith("~/") else python
            found = meaning.format(words=typed(name), remove=remove, python=quoted, said=line.partition(": ")[2])
            return f"{found}. {setup_advice(name)}" if may_set_up and "{python}" in meaning else found
    return said[-1].rstrip(".")


def setup_advice(name: str) -> str:
    """The advice to make an environment on the host that matches the notebook's."""
    return f"%distributed setup --hosts {shlex.quote(name)} makes an environment there"
