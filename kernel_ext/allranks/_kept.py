"""Clusters that outlive their notebook: what another one must know to take them over."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

from .errors import NoCluster


@dataclass(frozen=True)
class Kept:
    """Content of a kept cluster's file (0600: it holds the cluster's keys)."""

    settings: dict[str, Any]
    directory: str
    engine_info: dict[str, Any]
    url: str
    """Where the ranks look for their notebook."""
    keys: tuple[str, str]
    """CurveZMQ keys of the notebook's end."""
    backend: str
    epoch: int
    ranks: list[tuple[str, int]]
    """uuid and pid of each rank."""

    def write(self) -> None:
        path = kept_file(self.settings["name"])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(self), file)
        new.replace(path)  # a notebook that reads meanwhile sees the old or the new one, whole


def kept_file(name: str) -> Path:
    """Where the cluster called `name` says how to attach."""
    return Path(jupyter_runtime_dir()) / "allranks" / f"{name}.json"


def read_kept(name: str) -> Kept | None:
    """The kept cluster of that name, if there is one. Raises NoCluster where its file is damaged."""
    try:
        content = json.loads(kept_file(name).read_text())
        ranks = [(uuid, pid) for uuid, pid in content.pop("ranks")]
        return Kept(**{**content, "keys": tuple(content["keys"])}, ranks=ranks)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NoCluster(
            f"the file that says how to attach to {name!r} is damaged, or another version's. If the cluster is no "
            f"more: rm {kept_file(name)}"
        ) from None


def kept_names() -> list[str]:
    """Names of all kept clusters."""
    return sorted(path.stem for path in kept_file("x").parent.glob("*.json"))
