"""A compiler that a rank waits for is found among its children, and named."""

from __future__ import annotations

import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from allranks import Cluster
from allranks.rank.metrics import compiler
from allranks.rank.metrics.compiler import LOOK_EVERY, STANDS_FOR, CompilerWatch
from tests.faults.test_silence import Shown
from tests.waiting import comes_true, eventually

WITHIN = 120.0
SLOW = """\
#!/bin/sh
[ "$1" = --version ] || while [ ! -e {go} ]; do sleep 0.2; done
exec {real} "$@"
"""


@pytest.mark.parametrize("name", ["g++", "clang++", "x86_64-linux-gnu-g++-12", "clang-17", "nvcc"])
def test_compilers(name: str) -> None:
    assert compiler._COMPILER.fullmatch(name)


@pytest.mark.parametrize("name", ["bash", "python", "cat", "ccache-stats", "sh"])
def test_other_programs(name: str) -> None:
    assert not compiler._COMPILER.fullmatch(name)


def test_children_are_listed_only_while_the_main_thread_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(compiler, "running", lambda: looks.append(1))
    watch = CompilerWatch()
    for step in range(100):  # a loop that goes on
        assert watch.look(("line", step), step * 0.2) is None
    assert looks == []
    for step in range(100, 111):
        watch.look("place", step * 0.2)
    assert len(looks) <= (2.0 - STANDS_FOR) / LOOK_EVERY + 1


@pytest.mark.slow
def test_a_first_compilation_is_reported(tmp_path: Path) -> None:
    """MLX's own, with a compiler that is as slow as the test likes."""
    real = shutil.which("g++")
    if real is None:
        pytest.skip("there is no g++")
    go, slow = tmp_path / "go", tmp_path / "g++"
    slow.write_text(SLOW.format(go=go, real=real))
    slow.chmod(0o755)
    new = int.from_bytes(os.urandom(3), "big")  # no kernel of this name was made before
    with Cluster(2, backend="ring", name="compiles", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as cluster:
        cell = cluster.begin(
            f"f = mx.compile(lambda x: mx.exp(x) * {new}.5 + mx.sin(x))\n"
            "y = mx.distributed.all_sum(mx.ones(7))\nmx.eval(y)\n"
            "if rank == 1: mx.eval(f(mx.ones(7)))\n"
            "mx.distributed.all_sum(mx.array(1)).item()",
            screen=(shown := Shown()),
        )
        release = threading.Timer(WITHIN, go.touch)
        release.start()
        with ThreadPoolExecutor() as following:
            result = following.submit(cell.finish, WITHIN)
            seen = comes_true(cluster, lambda now: (now.ranks[1].compiling or 0) >= 10, WITHIN / 2)
            doing, said = cluster.snapshot.ranks[1].doing, repr(cluster)
            assert eventually(lambda: "g++ has been compiling" in shown.text)
            release.cancel()
            go.touch()
            assert seen, doing
            assert [each.value for each in result.result().check().values()] == [2, 2]
        assert re.match(r"compiling with g\+\+ for \d\d", doing), doing
        assert "running line 4: if rank == 1: mx.eval(f" in doing and "compiling with g++ for" in said
        assert "(1,): g++ has been compiling for line 4 for " in shown.text
        assert "(0,): g++" not in shown.text
        assert comes_true(cluster, lambda now: now.ranks[1].compiler is None, WITHIN)
