"""Describes the environment that this process runs in, so that a host can get a matching one."""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import Distribution, distributions

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from allranks.errors import UsageError

from .wheels import OURS, fingerprint, packable

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The version of Python that hosts need."""
MLX = "mlx"
HALVES = {"mlx-cpu": "cpu", "mlx-cuda-12": "cuda12", "mlx-cuda-13": "cuda13"}
"""Maps each package with MLX's backend for Linux to the extra of ``mlx`` for it. A Linux host needs one of them."""
NOT_FOR_RANKS = frozenset(
    {
        "jupyter",
        "jupyterlab",
        "notebook",
        "nbclassic",
        "pip",
        "setuptools",
        "wheel",
        "uv",
        "distribute",
        "pkg-resources",
    }
)
"""Front ends and installers, which are not installed on hosts unless another package needs them."""


class Installed:
    """The packages that are installed here, by name, and their requirements on this machine."""

    def __init__(self, packages: Mapping[str, Distribution] | None = None) -> None:
        self.packages = packages or {}
        self._needs: dict[tuple[str, str], list[tuple[str, str]]] = {}

    def needs(self, name: str, extra: str = "") -> list[tuple[str, str]]:
        """The requirements of a package with an extra (empty for none), as pairs of package and extra."""
        if (name, extra) not in self._needs:  # evaluating the markers of all packages takes a good part of a second
            needs = self._needs[name, extra] = []
            for line in self.packages[name].requires or ():
                with suppress(InvalidRequirement):
                    need = Requirement(line)
                    if need.marker is None or need.marker.evaluate({"extra": extra}):
                        needs += [(canonicalize_name(need.name), each) for each in ("", *need.extras)]
        return self._needs[name, extra]

    def closure(self, names: Iterable[str]) -> list[str]:
        """The packages in `names` and all their requirements, limited to installed packages."""
        every, todo = dict[str, set[str]](), [(name, "") for name in names]
        while todo:
            name, extra = todo.pop()
            if name in self.packages and extra not in every.setdefault(name, set()):
                every[name].add(extra)
                todo += self.needs(name, extra)
        return list(every)

    def roots(self) -> list[str]:
        """Packages that no other package needs, and one package of each cycle; without `NOT_FOR_RANKS`."""
        needed = {name for each in self.packages for name, _ in self.needs(each)}
        roots = [name for name in self.packages if name not in needed]
        reached = set(self.closure(roots))
        for name in self.packages:
            if name not in reached:
                roots.append(name)
                reached.update(self.closure([name]))
        return [name for name in roots if name not in NOT_FOR_RANKS]


@dataclass(frozen=True)
class Environment:
    """The packages in `wanted` and all their requirements, in the versions that are installed here."""

    wanted: Sequence[str]
    versions: Mapping[str, str]
    """The version of each package of the environment, by name."""
    sent: Sequence[str] = ()
    """Packages that were installed here from files: an index may lack them, so hosts get wheels from here."""
    left_out: Sequence[str] = ()
    """Packages that are installed here in editable mode: no wheel can be made of them."""
    _installed: Installed = field(default_factory=Installed, repr=False)

    @cached_property
    def digest(self) -> str:
        """A digest of the Python version, the packages, their versions, and the state of the `sent` packages' files."""
        made_of = [PYTHON, sorted(self.wanted), sorted(self.versions.items())]
        sent = [[name, fingerprint(self._installed.packages[name])] for name in sorted(self.sent)]
        return hashlib.sha256(json.dumps([made_of, sent]).encode()).hexdigest()

    def distribution(self, name: str) -> Distribution:
        """The package as it is installed here."""
        return self._installed.packages[name]

    def requirements(self, half: str | None) -> list[str]:
        """Requirements for an installer, without `sent` packages; `half` is the host's package from `half_for`."""
        mlx = f"{MLX}[{HALVES[half]}]" if half else MLX
        pins = [f"{name}=={self.versions[name]}" for name in self.wanted if name not in self.sent]
        return [*pins, f"{mlx}=={self.versions[MLX]}"]

    def constraints(self) -> list[str]:
        """Constraints for an installer: the version of every package that is not in `sent`."""
        return [f"{name}=={version}" for name, version in self.versions.items() if name not in self.sent]

    def closure(self, half: str | None) -> list[str]:
        """All packages that a host needs. Raises UsageError if one is not installed or cannot be packed here."""
        if half is not None and half not in self._installed.packages:
            raise UsageError(f"{half}, which it needs, is not installed here")
        names = self._installed.closure([*self.wanted, MLX, *filter(None, [half])])
        if editable := [name for name in names if not packable(self._installed.packages[name])]:
            raise UsageError(f"{', '.join(editable)} cannot be taken from here: installed in editable mode")
        return names


def half_for(gpu: str, system: str) -> str | None:
    """The package with MLX's backend for a host; None on macOS, where ``mlx`` needs no extra for it.

    `gpu` is the newest major version of CUDA that the host's driver can run, empty without a GPU; `system` is ``linux``
    or ``macosx``.
    """
    if system != "linux":
        return None
    if not gpu or int(gpu) < 12:
        return "mlx-cpu"
    return "mlx-cuda-13" if int(gpu) >= 13 else "mlx-cuda-12"


def this_environment(only: Iterable[str] | None = None) -> Environment:
    """The environment of all packages here, or of allranks, MLX and the packages in `only`. Raises UsageError."""
    found: dict[str, Distribution] = {}
    for each in distributions():
        if each.name:
            found.setdefault(canonicalize_name(each.name), each)  # the first on the path is the one that is imported
    for name in (OURS, MLX):
        if name not in found:
            raise UsageError(f"{name} is not installed here, but only on the path: python -m pip install -e .")
    installed = Installed(found)
    local = [name for name, each in found.items() if _from_files(each)]
    left_out = [name for name in local if not packable(found[name])]
    if only is None:
        wanted = [name for name in installed.roots() if name not in left_out]
    else:
        wanted, left_out = [_chosen(name, found) for name in only], []
    wanted = [name for name in dict.fromkeys([OURS, *wanted]) if name not in {*HALVES, MLX, "mlx-metal"}]
    every = [name for name in installed.closure([*wanted, MLX]) if packable(found[name])]
    versions = {name: found[name].version for name in sorted(every) if _is_version(found[name].version)}
    # Packages that an index may lack are requested by name, even if another package requires them anyway.
    sent = [name for name in every if name in local]
    wanted = [name for name in dict.fromkeys([*wanted, *sent]) if name in versions]
    return Environment(wanted, versions, sent, left_out, _installed=installed)


def _chosen(name: str, found: Mapping[str, Distribution]) -> str:
    """The canonical name of an installed package. Raises UsageError if it is not installed or cannot be packed."""
    package = str(canonicalize_name(name))
    if package not in found:
        close = difflib.get_close_matches(package, found, 1)
        raise UsageError(f"--only {name}: not installed here." + (f" Did you mean {close[0]}?" if close else ""))
    if not packable(found[package]):
        raise UsageError(f"--only {name}: installed here in editable mode. Install it from its folder without -e.")
    return package


def _from_files(distribution: Distribution) -> bool:
    """Whether the package was installed from a folder, a file or a repository, not from an index (PEP 610)."""
    # In direct_url.json, conda names the folder where it built the package.
    by_conda = (distribution.read_text("INSTALLER") or "").strip() == "conda"
    return not by_conda and distribution.read_text("direct_url.json") is not None


def _is_version(text: str) -> bool:
    """Whether an installer accepts `text` as a version; packages of the operating system may have other forms."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
