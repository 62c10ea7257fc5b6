"""What a process imports: ranks stand on few libraries, and `import allranks` costs nothing.

Which room may import which is in the contracts of import-linter, in pyproject.toml; `make lint` checks them.
"""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from allranks import Cluster

KERNEL_EXT = Path(__file__).parents[1] / "kernel_ext"
IN_A_RANK = ("rank", "host_process", "lifeline", "pickling", "messages", "machine")
RANK_MAY_USE = {
    "IPython",
    "allranks",
    "cloudpickle",
    "ipykernel",
    "ipyparallel",
    "jupyter_client",
    "mlx",
    "mpi4py",  # where the world runs on MPI
    "msgspec",
    "numpy",
    "psutil",
    "pynvml",  # where MLX computes on an NVIDIA GPU
    "tornado",
    "traitlets",
    "zmq",
}
SLOW_TO_IMPORT = {"IPython", "anywidget", "ipyparallel", "ipywidgets", "mlx", "numpy", "pathspec", "zmq"}


def imports(source: str) -> Iterator[tuple[str, int]]:
    """The package of each absolute import anywhere in `source`, with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], node.lineno
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0], node.lineno


def foreign(source: str) -> list[tuple[str, int]]:
    """What a rank's process may not import."""
    return [each for each in imports(source) if each[0] not in RANK_MAY_USE | set(sys.stdlib_module_names)]


MODULES = [path for room in IN_A_RANK for path in sorted((KERNEL_EXT / "allranks" / room).rglob("*.py"))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(KERNEL_EXT)))
def test_a_rank_stands_on_few_libraries(path: Path) -> None:
    assert not foreign(path.read_text(encoding="utf-8"))


def test_the_rule_sees_a_wrong_import() -> None:
    assert foreign("def f():\n    import requests.api\n") == [("requests", 2)]


def test_importing_allranks_is_instant() -> None:
    """`import allranks` and `%load_ext` in a script that never starts a world must cost nothing."""
    code = (
        "import sys, json; before = set(sys.modules); import allranks;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(json.loads(run.stdout)).isdisjoint(SLOW_TO_IMPORT)


def test_a_cluster_needs_little_before_its_processes_start() -> None:
    """What a script imports before the host process begins is time in which nothing else happens."""
    code = "import sys, json, allranks; allranks.Cluster; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(json.loads(run.stdout)).isdisjoint(SLOW_TO_IMPORT - {"zmq"})


def test_ranks_are_imported_without_garbage_collection() -> None:
    """It is on again for the user's code."""
    code = (
        "import gc, sys; from allranks.rank.process.import_engine import import_engine\n"
        "class Watch:\n"
        "    seen = []\n"
        "    def find_spec(self, name, *_): self.seen.append((name.partition('.')[0], gc.isenabled()))\n"
        "sys.meta_path.insert(0, Watch())\n"
        "engine = import_engine()\n"
        "print([on for name, on in Watch.seen if name == 'ipyparallel'][0], gc.isenabled(), engine.RankEngine.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "False True RankEngine\n"


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_package_is_imported_without_garbage_collection(before: str) -> None:
    """It is as it was afterwards, also if an import fails."""
    code = (
        f"import gc, sys, allranks; gc.{before}()\n"
        "class Watch:\n"
        "    seen = set()\n"
        "    def find_spec(self, name, *_):\n"
        "        self.seen.add(gc.isenabled())\n"
        "        if name == 'allranks.timeline.timeline': raise ImportError\n"
        "sys.meta_path.insert(0, Watch())\n"
        "allranks.Cluster; after = gc.isenabled()\n"
        "try: allranks.Timeline\n"
        "except ImportError: print(Watch.seen, after, gc.isenabled())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    on = before == "enable"
    assert run.stdout == f"{{False}} {on} {on}\n"


def test_a_rank_starts_without_debugpy_and_its_user_can_import_it(ring2: Cluster) -> None:
    """ipykernel imports it for a debugger that does not work in an engine."""
    there = "import sys\n[name for name in sys.modules if name.partition('.')[0] in ('debugpy', 'pydevd')]"
    assert [rank.value for rank in ring2.run(there).check().values()] == [[], []]
    code = (
        "import sys, allranks.rank.process.engine; assert 'debugpy' not in sys.modules;"
        "import debugpy; print(debugpy.listen.__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "listen\n"


def imports_for_ranks(cluster: Cluster) -> bool:
    """Whether the host process of this machine has imported what it forks ranks with."""
    assert cluster._live.ranks is not None
    pid, _ = cluster._live.ranks.host.process
    return "zmq/backend/" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no rank is forked")
def test_a_host_process_imports_what_ranks_need_only_where_it_forks_some(ring2: Cluster, need_mpi: None) -> None:
    assert imports_for_ranks(ring2)
    with Cluster(2, backend="mpi", name="imports") as cluster:
        assert not imports_for_ranks(cluster), "mpirun starts ranks"
        cluster.run("kept = rank").check()
        cluster.rewire("ring")
        assert imports_for_ranks(cluster) and cluster.pull("kept") == [0, 1]


def test_a_name_stands_for_one_file_and_one_class() -> None:
    """Whoever searches for a name finds one thing."""
    files, classes = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    top = KERNEL_EXT.parent
    for package in ("kernel_ext/allranks", "backends/allranks_backends", "widgets/allranks_widgets"):
        for path in (top / package).rglob("*.py"):
            where = str(path.relative_to(top))
            if not path.stem.startswith("__"):
                files[path.name].append(where)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append(f"{where}:{node.lineno}")
    assert len(files) > 300 and len(classes) > 500
    assert not [where for where in files.values() if len(where) > 1]
    assert not [where for where in classes.values() if len(where) > 1]
