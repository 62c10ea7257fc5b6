"""Checks on Python, packages, settings and clocks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from allranks_backends.machines.platform import import_advice
from allranks_backends.protocol import WORLD_VARIABLES

from .finding import Finding
from .host_facts import Asked, HostFacts

CLOCKS_APART = 2.0
"""Tolerated clock difference, in seconds. allranks does not depend on the hosts' clocks; logs, files and
certificates do."""


def same_versions(hosts: Sequence[HostFacts], asked: Asked) -> Iterator[Finding]:
    set_up = _setup(hosts, asked)
    for host in hosts:
        if host.python is None:
            yield _no_python(host, asked, set_up)
            continue
        there, here = str(host.python["python"]), asked.versions.get("python", "")
        if asked.other_python(host.python):
            minor = ".".join(here.split(".")[:2])
            other = f"install Python {minor} there, or choose one with %distributed up --python"
            yield Finding(
                "error",
                host.name,
                f"Python is {there} there and {here} here: ranks and notebook need the same version.",
                str(host.python["executable"]),
                *((set_up, "here") if asked.wants_environment(host.name) else (other, "")),
            )
            continue  # its packages belong to the wrong Python
        yield from _packages(host, asked, set_up)


def _setup(hosts: Sequence[HostFacts], asked: Asked) -> str:
    """Return the command that makes an environment on all remote hosts that need one."""
    wanting = [
        host.name
        for host in hosts
        if not host.local and asked.wants_environment(host.name) and not asked.fits(host.python)
    ]
    return f"%distributed setup --hosts {shlex.quote(','.join(wanting))}"


_NOT_FOUND = ("not found", "No such file")
"""Parts of the messages that shells print for a missing program."""


def _no_python(host: HostFacts, asked: Asked, set_up: str) -> Finding:
    said = host.python_said.splitlines()[-1] if host.python_said else ""
    python = asked.python_of(host.name)
    if "PYTHONHOME" in host.environment and "encodings" in host.python_said:
        return Finding(
            "error",
            host.name,
            f"{python} finds no standard library: PYTHONHOME is wrong in its logins.",
            f"PYTHONHOME={host.environment['PYTHONHOME']}",
            "take PYTHONHOME out of its start-up files",
        )
    name_it = "name the Python that has allranks with --python"
    named_path = "/" in python and not asked.wants_environment(host.name)  # a path is not looked up on PATH
    if host.login_python and not named_path:
        return Finding(
            "error",
            host.name,
            f"{asked.python_of(host.name)} was not found by the shell that ssh starts, but a login shell finds one"
            " (conda and pyenv often set PATH there only).",
            said,
            f"%distributed up --python {shlex.quote(host.login_python)}",
        )
    return Finding(
        "error",
        host.name,
        f"{python} was not found."
        if not said or any(each in said for each in _NOT_FOUND)
        else f"{python} does not run.",
        said,
        *((set_up, "here") if asked.wants_environment(host.name) else (name_it, "")),
    )


def _packages(host: HostFacts, asked: Asked, set_up: str) -> Iterator[Finding]:
    assert host.python is not None
    wrong = asked.differing(host.python)
    if not wrong:
        return
    said = ", ".join(
        f"{name} is {theirs or 'missing'} there and {mine or 'from source'} here"
        for name, (mine, theirs) in wrong.items()
    )
    what, python = f"{said}.", str(host.python["executable"])
    if asked.wants_environment(host.name) and not host.local:
        yield Finding("error", host.name, what, python, set_up, "here")
        return
    if packages := " ".join(f"{name}=={mine}" for name, (mine, _) in wrong.items() if mine):
        yield Finding("error", host.name, what, python, f"{shlex.quote(python)} -m pip install {packages}", host.name)
    else:
        fix = f"install {', '.join(wrong)} there from the same source as this notebook"
        yield Finding("error", host.name, what, python, fix)


def mlx_imports(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    """Check that MLX can be imported where it is installed. `same_versions` reports hosts without MLX."""
    for host in hosts:
        if host.python is None or not host.python["packages"].get("mlx"):
            continue
        if error := host.python["mlx"].get("error"):
            what = "MLX is installed but cannot be imported."
            yield Finding("error", host.name, what, error, import_advice(error) or "install MLX again")


def harmful_settings(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    for host in hosts:
        if host.environment.get("MLX_METAL_FAST_SYNCH", "0") not in ("", "0"):
            yield Finding(
                "warning",
                host.name,
                "MLX_METAL_FAST_SYNCH is set there: it speeds JACCL up, but hangs the GPU with some versions of MLX.",
                f"MLX_METAL_FAST_SYNCH={host.environment['MLX_METAL_FAST_SYNCH']}",
                "%distributed up --env MLX_METAL_FAST_SYNCH=0",
                source="#3142, #3830, #4005",
            )
        if winners := sorted(
            name for name in WORLD_VARIABLES if name.startswith("JACCL_") and name in host.environment
        ):
            yield Finding(
                "warning",
                host.name,
                f"{', '.join(winners)} {'is' if len(winners) == 1 else 'are'} set there, which MLX reads instead of the"
                " MLX_ variables that describe a world: mlx.launch and scripts join another one. The ranks of allranks"
                " remove them.",
                ", ".join(f"{name}={host.environment[name]}" for name in winners),
                f"unset {' '.join(winners)}, and remove them from the shell's start-up files",
                host.name,
            )


def clocks(hosts: Sequence[HostFacts], _: Asked) -> Iterator[Finding]:
    for host in hosts:
        if abs(host.skew) > CLOCKS_APART:
            way = "ahead of" if host.skew > 0 else "behind"
            yield Finding(
                "warning",
                host.name,
                f"Its clock is {abs(host.skew):.0f} s {way} this machine's.",
                "date +%s",
                "sudo sntp -sS time.apple.com" if host.is_mac else "sudo timedatectl set-ntp true",
                host.name,
            )
