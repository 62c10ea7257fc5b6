"""The environment that this process runs in: what a host needs to have one that matches it."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from allranks.errors import UsageError

from .wheels import OURS, fingerprint, packable

MLX = "mlx"
HALVES = {"mlx-cpu": "cpu", "mlx-cuda-12": "cuda12", "mlx-cuda-13": "cuda13"}
"""Packages of MLX's other half on Linux, which depends on the host, and the extra of ``mlx`` that brings each."""
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
"""Packages that are not installed on hosts, unless another one needs them: front ends and installers."""


@dataclass(frozen=True)
class Environment:
    """`wanted` names packages, and each of `versions` is to have the version that it has here."""

    wanted: Sequence[str]
    versions: Mapping[str, str]
    """By name; of all packages that are installed here."""
    sent: Sequence[str] = ()
    """Those of `wanted` that no index has, since they were installed from files: each host is sent a wheel."""
    left_out: Sequence[str] = ()
    """Packages that are installed here in editable mode, and of which no wheel can be made."""
    python: str = f"{sys.version_info[0]}.{sys.version_info[1]}"
    _found: Mapping[str, Distribution] = field(default_factory=dict, repr=False)

    @property
    def digest(self) -> str:
        """Changes with anything that is installed on hosts."""
        made_of = [self.python, sorted(self.wanted), sorted(self.versions.items())]
        sent = [[name, fingerprint(self._found[name])] for name in sorted(self.sent)]
        return hashlib.sha256(json.dumps([made_of, sent]).encode()).hexdigest()[:12]

    def distribution(self, name: str) -> Distribution:
        """As it is installed here."""
        return self._found[name]

    def half(self, gpu: str, system: str) -> str | None:
        """The package that is MLX's other half on such a host; None where MLX is whole.

        `gpu` is the newest version of CUDA that its driver can run, ``13``, or empty; `system` is ``linux`` or
        ``darwin``.
        """
        if system != "linux":
            return None
        return "mlx-cpu" if not gpu else "mlx-cuda-13" if int(gpu) >= 13 else "mlx-cuda-12"

    def requirements(self, half: str | None) -> list[str]:
        """For an installer, less those that are `sent`; MLX with this `half`."""
        mlx = f"{MLX}[{HALVES[half]}]" if half else MLX
        pins = [f"{name}=={self.versions[name]}" for name in self.wanted if name not in self.sent and name != MLX]
        return [*pins, f"{mlx}=={self.versions[MLX]}"]

    def constraints(self) -> list[str]:
        """For an installer: the version of everything."""
        halves = {*HALVES, "mlx-metal"}
        return [f"{name}=={version}" for name, version in self.versions.items() if name not in {*halves, *self.sent}]

    def closure(self, half: str | None) -> list[str]:
        """All packages that `wanted` needs here, with this `half` of MLX. Raises UsageError where one is missing."""
        every, todo = dict[str, set[str]](), [(name, "") for name in (*self.wanted, MLX, *filter(None, [half]))]
        while todo:
            name, extra = todo.pop()
            if extra in every.setdefault(name, set()):
                continue
            every[name].add(extra)
            if name not in self._found:
                raise UsageError(f"{name} is not installed here")
            for need in _needs(self._found[name], extra):
                if canonicalize_name(need.name) in self._found or name == half:
                    todo += [(canonicalize_name(need.name), each) for each in ("", *need.extras)]
        return list(every)


def this_environment(only: Iterable[str] | None = None) -> Environment:
    """What is installed here, or `only` these packages beside allranks and MLX. Raises UsageError."""
    found: dict[str, Distribution] = {canonicalize_name(each.name): each for each in distributions() if each.name}
    if only is None:
        wanted = _roots(found)
    else:
        wanted = [str(canonicalize_name(name)) for name in only]
        if missing := [name for name in wanted if name not in found]:
            raise UsageError(f"--only {', '.join(missing)}: not installed here.")
    for name in (OURS, MLX):
        if name not in found:
            raise UsageError(f"{name} is not installed here, but only on the path: python -m pip install -e .")
    local = [name for name, each in found.items() if _from_files(each)]
    left_out = [name for name in local if not packable(found[name])]
    wanted = [name for name in dict.fromkeys([OURS, *wanted]) if name not in {*left_out, *HALVES, MLX, "mlx-metal"}]
    versions = {name: each.version for name, each in sorted(found.items()) if name not in left_out}
    # A package that another one needs is asked for by name, too, where no index has it.
    sent = [name for name in local if name not in left_out and (only is None or name in wanted)]
    wanted = list(dict.fromkeys([*wanted, *sent]))
    return Environment(wanted, versions, sent, left_out if only is None else (), _found=found)


def _roots(found: Mapping[str, Distribution]) -> list[str]:
    """Packages that no other one needs, and what no walk from these reaches, as where two need each other."""
    needs = {name: {canonicalize_name(need.name) for need in _needs(each, "")} for name, each in found.items()}
    roots = [name for name in found if not any(name in needs[other] for other in found if other != name)]
    reached, todo = set[str](), [*roots]
    for name in [*found]:
        while todo:
            if (next_one := todo.pop()) not in reached:
                reached.add(next_one)
                todo += needs.get(next_one, ())
        if name not in reached:
            roots.append(name)
            todo.append(name)
    return [name for name in roots if name not in NOT_FOR_RANKS]


def _needs(distribution: Distribution, extra: str) -> Iterator[Requirement]:
    """What it needs on this machine, with that extra of its own (empty for none)."""
    for line in distribution.requires or ():
        try:
            need = Requirement(line)
        except InvalidRequirement:
            continue
        if need.marker is None or need.marker.evaluate({"extra": extra}):
            yield need


def _from_files(distribution: Distribution) -> bool:
    """Whether it was installed from a folder, a file or a repository, and not from an index (PEP 610)."""
    return bool(re.search(r'"url"', distribution.read_text("direct_url.json") or ""))
