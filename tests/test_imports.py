"""The direction of imports: notebook side -> pictures and backends, ranks on their own, never back."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    "allranks": ROOT / "kernel_ext",
    "allranks_widgets": ROOT / "widgets",
    "allranks_backends": ROOT / "backends",
}
RANK = "allranks.rank"
RANK_MAY_USE = {
    "IPython",
    "allranks",  # only allranks.rank itself, see below
    "cloudpickle",
    "ipykernel",
    "ipyparallel",
    "jupyter_client",
    "mlx",
    "numpy",
    "psutil",
    "tornado",
    "traitlets",
    "zmq",
}
SLOW_TO_IMPORT = {"IPython", "anywidget", "ipyparallel", "ipywidgets", "mlx", "numpy", "zmq"}


def modules() -> Iterator[tuple[str, Path]]:
    for package, folder in SOURCES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path, module: str) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere in it, as an absolute name, with the line.

    ``from a import b`` counts as ``a`` and, since ``b`` may be a module, as ``a.b`` too.
    """
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source, node.lineno
            for alias in node.names:
                yield f"{source}.{alias.name}", node.lineno


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def fault(module: str, name: str) -> str | None:
    """Why ``module`` may not import ``name``; None where it may."""
    if inside(module, RANK):
        if inside(name, "allranks") and not inside(name, RANK) and name != "allranks":
            return "a rank runs nothing of the notebook side"
        if name.partition(".")[0] not in RANK_MAY_USE | set(sys.stdlib_module_names):
            return "a rank stands on the standard library, mlx, numpy, psutil, zmq and the engine's own libraries"
    elif inside(module, "allranks_backends"):
        if inside(name, "allranks") or inside(name, "allranks_widgets"):
            return "the ground floor knows nothing of the floors above"
        if name.partition(".")[0] in {"IPython", "ipyparallel", "ipywidgets", "anywidget"}:
            return "backends only plan: no notebook, no engines, no widgets"
    elif inside(module, "allranks_widgets"):
        if inside(name, "allranks"):
            return "a widget draws a Snapshot and knows nothing of clusters"
        if any(inside(name, other) for other in BACKEND_MODULES - {"allranks_backends", "allranks_backends._plan"}):
            return "a widget needs the vocabulary of allranks_backends._plan only"
    return None


BACKEND_MODULES = {module for module, _ in modules() if inside(module, "allranks_backends")}


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_module_imports_only_what_its_floor_may(module: str, path: Path) -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{line} imports {name}: {why}"
        for name, line in imports(path, module)
        if (why := fault(module, name))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("allranks.rank.agent", "allranks.cluster"),
        ("allranks.rank.agent", "allranks_backends._plan"),
        ("allranks.rank.agent", "requests"),
        ("allranks_backends.ring", "allranks.cluster"),
        ("allranks_backends.ring", "ipyparallel"),
        ("allranks_widgets.output", "allranks.cluster"),
        ("allranks_widgets.output", "allranks_backends.ring"),
    ],
)
def test_the_rule_sees_a_wrong_import(module: str, name: str) -> None:
    assert fault(module, name)


def test_a_relative_import_is_seen_as_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("from ..cluster import Cluster\nfrom . import ledger\nfrom .. import _cell\n")
    assert {name for name, _ in imports(tmp_path / "agent.py", "allranks.rank.agent")} == {
        "allranks.cluster",
        "allranks.cluster.Cluster",
        "allranks.rank",
        "allranks.rank.ledger",
        "allranks",
        "allranks._cell",
    }


def test_importing_allranks_is_instant() -> None:
    """`import allranks` and `%load_ext` in a script that never starts a world must cost nothing."""
    code = (
        "import sys, json; before = set(sys.modules); import allranks;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(json.loads(run.stdout)).isdisjoint(SLOW_TO_IMPORT)
