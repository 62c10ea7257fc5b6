"""What an aborted collective delivers shows it by itself, or is named; a rank it was aborted on is never ok."""

from __future__ import annotations

import cmath
import textwrap
from collections.abc import Iterator, Sequence

import pytest

from allranks import Cluster
from allranks.cluster.cell_result import CellResult
from allranks_backends.views import Snapshot
from tests.conftest import Worlds
from tests.faults.absent import DIES, blocked
from tests.faults.kept import sums_are_right
from tests.faults.stop import waiting
from tests.faults.test_break import wait_until_waiting
from tests.faults.test_invalid import Said
from tests.waiting import comes_true

WITHIN = 60.0
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool_")
ENTERED = ("all_sum", "all_max", "all_min", "all_gather")
PREPARE = """
import numpy as np
import mlx.nn as nn
class Box: pass
box = Box()
def numbers(array):
    if array.dtype in (mx.bfloat16, mx.float16):
        array = array.astype(mx.float32)
    return np.array(array).reshape(-1).tolist()
def local(dtype):
    with mx.stream(mx.cpu):
        array = (mx.arange(9) + 1).astype(getattr(mx, dtype))
        mx.eval(array)
    return array
"""


@pytest.fixture(params=["ring", "mpi"])
def two(request: pytest.FixtureRequest, worlds: Worlds) -> Iterator[Cluster]:
    """Two ranks of each backend."""
    if request.param == "mpi":
        request.getfixturevalue("need_mpi")
    cluster = worlds.get(request.param, 2, __name__)
    cluster.run(PREPARE).check()
    yield cluster
    assert sums_are_right(cluster)


def abort(cluster: Cluster, code: str, screen: Said | None = None) -> CellResult:
    """What becomes of a cell in which rank 1 stays away, when rank 0 waits in its collective."""
    cell = cluster.begin("if rank != 1:\n" + textwrap.indent(code, "    "), screen=screen)
    wait_until_waiting(cluster, 0)
    cluster.abort_collectives()
    return cell.finish(WITHIN)


def held(cluster: Cluster, what: str) -> list[complex]:
    """The numbers in an array on rank 0."""
    value = cluster.run(f"numbers({what})", ranks=0).check()[0].value
    assert isinstance(value, list) and value
    return value


def invalid(numbers: Sequence[complex]) -> bool:
    """Whether none of them looks like a number."""
    return not any(cmath.isfinite(number) for number in numbers)


def call(op: str, dtype: str) -> str:
    return f"mx.distributed.recv((9,), mx.{dtype}, 1)" if op == "recv" else f"mx.distributed.{op}(local({dtype!r}))"


def evaluated(op: str, dtypes: Sequence[str]) -> str:
    """Code that evaluates what is computed from one collective of each dtype; an object holds all of it."""
    lines = [f"box.{dtype} = {call(op, dtype)}\nbox.twice_{dtype} = box.{dtype} + box.{dtype}" for dtype in dtypes]
    return "with mx.stream(mx.cpu):\n" + textwrap.indent(
        "\n".join([*lines, f"mx.eval({', '.join(f'box.twice_{dtype}' for dtype in dtypes)})"]), "    "
    )


@pytest.mark.parametrize("op", ["all_sum", "all_gather", "recv"])
def test_a_ring_delivers_nan_in_every_dtype_that_has_it(op: str, ring2: Cluster) -> None:
    ring2.run(PREPARE).check()
    result = abort(ring2, evaluated(op, FLOATS))
    assert not result[0].ok and result[0].unblocked and result[0].unmarked == ()
    for dtype in FLOATS:
        for what in (f"box.{dtype}", f"box.twice_{dtype}"):
            numbers = held(ring2, what)
            assert invalid(numbers[9:] if op == "all_gather" else numbers), (what, numbers)
            if op == "all_gather":
                assert not invalid(numbers[:9]), "what a rank has of its own is right"


@pytest.mark.parametrize("op", ["all_max", "all_min"])
def test_a_ring_delivers_infinity_where_numbers_are_compared(op: str, ring2: Cluster) -> None:
    ring2.run(PREPARE).check()
    for dtype in FLOATS:
        result = abort(ring2, evaluated(op, [dtype]))
        assert not result[0].ok and result[0].unmarked == ()
        assert invalid(held(ring2, f"box.{dtype}") + held(ring2, f"box.twice_{dtype}")), dtype


@pytest.mark.parametrize("op", ENTERED)
def test_mpi_delivers_nan_or_infinity(op: str, restarted_mpi2: Cluster) -> None:
    restarted_mpi2.run(PREPARE).check()
    for dtype in FLOATS:
        result = abort(restarted_mpi2, evaluated(op, [dtype]))
        assert not result[0].ok and result[0].unblocked and result[0].unmarked == ()
        numbers = held(restarted_mpi2, f"box.{dtype}") + held(restarted_mpi2, f"box.twice_{dtype}")
        if op == "all_gather":
            assert not invalid(numbers[:9]) and not invalid(numbers[18:27])
            numbers = numbers[9:18] + numbers[27:]
        assert invalid(numbers), (dtype, numbers)


@pytest.mark.parametrize("op", [*ENTERED, "recv"])
def test_a_ring_delivers_zeros_in_integers_and_names_what_it_cannot_mark(op: str, ring2: Cluster) -> None:
    ring2.run(PREPARE).check()
    screen = Said()
    result = abort(ring2, evaluated(op, INTEGERS), screen)
    assert not result[0].ok and len(result[0].unmarked) == 5 and "could not be set to NaN" in screen.text
    for dtype in INTEGERS:
        numbers = held(ring2, f"box.{dtype}")
        assert set(numbers) <= set(range(10)), "zeros, or the rank's own: nothing that could not be an index"
        assert 0 in numbers, numbers


@pytest.mark.parametrize("op", ENTERED)
def test_mpi_enters_zeros_in_integers_and_names_what_it_cannot_mark(op: str, restarted_mpi2: Cluster) -> None:
    restarted_mpi2.run(PREPARE).check()
    for dtype in INTEGERS if op == "all_gather" else INTEGERS[:-1]:  # MPI has no reduction of bool
        result = abort(restarted_mpi2, evaluated(op, [dtype]))
        assert not result[0].ok and [each.split()[0] for each in result[0].unmarked] == [op]
        assert set(held(restarted_mpi2, f"box.{dtype}")) <= set(range(10))


def test_where_integers_are_in_flight_too_floats_are_named(ring2: Cluster) -> None:
    """An index of all ones would end the process; so all get zeros, and that is said."""
    ring2.run(PREPARE + "table = mx.arange(10) * 1.0\nmx.eval(table)").check()
    screen = Said()
    result = abort(
        ring2,
        "index = mx.distributed.all_max(mx.array([3], mx.uint32))\n"
        "box.taken = table[index]\nbox.sum = mx.distributed.all_sum(mx.ones(4))\nmx.eval(box.taken, box.sum)",
        screen,
    )
    assert ring2.state == "whole" and not result[0].ok
    assert [each.split()[0] for each in result[0].unmarked] == ["all_max", "all_sum"]
    assert "could not be set to NaN" in screen.text


def test_integers_that_came_to_their_end_before_do_not_count(ring2: Cluster) -> None:
    ring2.run(PREPARE).check()
    cell = ring2.begin(
        "tokens = mx.distributed.all_sum(mx.array([3], mx.int32))\nmx.eval(tokens)\n"
        "if rank == 0:\n    box.sum = mx.distributed.all_sum(mx.ones(4))\n    mx.eval(box.sum)"
    )
    assert comes_true(ring2, lambda now: now.ranks[1].state == "idle" and waiting(0)(now), WITHIN)
    ring2.abort_collectives()
    result = cell.finish(WITHIN)
    assert result[0].unmarked == () and result[0].invalid == ()
    assert invalid(held(ring2, "box.sum"))


def test_a_maximum_beside_a_sum_is_named(ring2: Cluster) -> None:
    """One stream of bytes serves both: the sum is NaN, the maximum keeps a share of the rank's own numbers."""
    ring2.run(PREPARE).check()
    result = abort(
        ring2,
        "box.sum, box.max = mx.distributed.all_sum(local('float32')), mx.distributed.all_max(local('float32'))\n"
        "mx.eval(box.sum, box.max)",
    )
    assert [each.split()[0] for each in result[0].unmarked] == ["all_max"]
    assert invalid(held(ring2, "box.sum"))


TRANSFORMED = {
    "gradients averaged": "box.y = nn.average_gradients({'w': local('float32')})['w']",
    "backward": "box.y = mx.grad(lambda w: (mx.distributed.all_sum(w) ** 2).sum())(local('float32'))",
    "forward": "box.y = mx.jvp(lambda w: mx.distributed.all_sum(w), [local('float32')], [local('float32')])[1][0]",
    "gathered, backward": ("box.y = mx.grad(lambda w: (mx.distributed.all_gather(w).sum() ** 2))(local('float32'))"),
    "compiled": "box.y = mx.compile(lambda w: mx.distributed.all_sum(w) * 2)(local('float32'))",
}


@pytest.mark.parametrize("how", TRANSFORMED)
def test_in_transformations(how: str, two: Cluster) -> None:
    result = abort(two, f"{TRANSFORMED[how]}\nmx.eval(box.y)")
    assert not result[0].ok
    assert invalid(held(two, "box.y"))


def test_in_vmap(ring2: Cluster) -> None:
    """Not on MPI, where ranks enter what the ledger knows: inside vmap that is the shape of one slice."""
    ring2.run(PREPARE).check()
    abort(ring2, "box.y = mx.vmap(lambda w: mx.distributed.all_sum(w))(local('float32').reshape(3, 3))\nmx.eval(box.y)")
    assert invalid(held(ring2, "box.y"))


HOLDERS = """
import asyncio, collections, concurrent.futures, contextvars, copy, dataclasses, functools, os, queue, tempfile
import threading
import types, weakref
import mlx.optimizers as optim
class Slots: __slots__ = ("y", "__weakref__")
class Class: y = None
class Property:
    @property
    def y(self): return self.of.y
class Calls:
    def __call__(self): return self.y
@dataclasses.dataclass(frozen=True)
class Frozen: y: object
Pair = collections.namedtuple("Pair", "x y")
local_state, setting, futures = threading.local(), contextvars.ContextVar("setting"), concurrent.futures.Future
def closure(y): return lambda: y
def default(y): return lambda y=y: y
@functools.lru_cache
def cached(key): return made[key]
def generator(y):
    yield
    yield y
"""
HOLD = """
with mx.stream(mx.cpu):
    made = {}
    cached.cache_clear()
    y = made["y"] = CALL
    z = y * 3 + 1
    loop = asyncio.new_event_loop()
    held = [Slots(), Class, types.ModuleType("of_the_user"), collections.deque([None]), types.SimpleNamespace(),
        Property(),
            queue.Queue(), Calls(), futures(), nn.Module(), loop.create_future(), ValueError(z), ValueError(), Calls()]
    for each in (0, 1, 2, 4, 7, 9, 12): held[each].y = z
    held[3][0], held[5].of, local_state.y, Calls.made = z, held[4], z, staticmethod(lambda: z)
    held[6].put(z)
    held[8].set_result(z)
    held[10].set_result(z)
    setting.set(z)
    rows = np.empty(2, object)
    rows[1] = z
    waits, runs = generator(z), iter([z])
    next(waits)
    buffer, numbers_list, text, shown = np.ones(z.size, "complex64"), [], [], []
    state = {"w": z}
    fetch = {
        "slots": lambda: held[0].y, "class": lambda: Class.y, "module": lambda: held[2].y, "deque": lambda: held[3][0],
        "namespace": lambda: held[4].y, "property": lambda: held[5].y, "queue": lambda: held[6].queue[0],
        "callable": held[7], "future": held[8].result, "layer": lambda: held[9].y, "awaitable": held[10].result,
        "error": lambda: held[11].args[0], "attribute of an error": lambda: held[12].y,
        "thread's own": lambda box=local_state.__dict__: box["y"],
        "context": lambda held=contextvars.copy_context(): held[setting],
        "closure": closure(z), "default": default(z), "partial": functools.partial(lambda y: y, z),
        "static": held[13].made,
        "cached": functools.partial(cached, "y"), "intermediate": lambda: made["y"],
        "frozen": lambda held=Frozen(z): held.y, "tuple": lambda held=Pair(1, (z,)): held.y[0],
        "default dict": lambda held=collections.defaultdict(list, y=[z]): held["y"][0],
        "chain": lambda held=collections.ChainMap({}, {"y": z}): held["y"], "objects": lambda: rows[1],
        "reference": lambda: weakref.ref(z)(), "generator": lambda: next(waits), "iterator": lambda: next(runs),
        "state": lambda: state["w"], "computed later": lambda held=z * 2 - z: held,
        "transposed": lambda held=z.reshape(-1, 1).T: held, "copy": lambda held=copy.copy(z): held,
    }
    path = os.path.join(tempfile.mkdtemp(), "checkpoint.safetensors")
    try:
        mx.eval(z)
    finally:
        if SAVES: mx.save_safetensors(path, {"w": z})
        buffer[:] = np.array(z.astype(mx.complex64))
        numbers_list += z.astype(mx.complex64).tolist()
        text.append(repr(z.astype(mx.complex64).tolist()))
"""


def others_part(op: str, numbers: list[complex]) -> list[complex]:
    """What a rank does not have of its own."""
    return numbers[len(numbers) // 2 :] if op == "all_gather" else numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "dtype"),
    [*((op, "float32") for op in ENTERED), *(("all_gather", dtype) for dtype in FLOATS if dtype != "float32")],
)
def test_whatever_holds_it_shows_it(op: str, dtype: str, two: Cluster) -> None:
    two.run(HOLDERS).check()
    saves = dtype not in ("complex64", "float64")  # safetensors has no complex numbers, and a float64 takes a stream
    result = abort(two, HOLD.replace("CALL", call(op, dtype)).replace("SAVES", str(saves)))
    assert not result[0].ok and result[0].unmarked == ()
    code = "with mx.stream(mx.cpu):\n    seen = {name: numbers(get()) for name, get in fetch.items()}\nseen"
    kept = two.run(code, ranks=0).check()[0].value
    assert len(kept) == 33
    looks_right = {name: seen for name, seen in kept.items() if not invalid(others_part(op, seen))}
    assert looks_right == {}
    loaded = "numbers(mx.load(path)['w'])" if saves else "numbers_list"
    *taken, text = two.run(f"{loaded}, buffer.tolist(), numbers_list, text[0]", ranks=0).check()[0].value
    assert all(invalid(others_part(op, seen)) for seen in taken), taken
    assert text.count("nan") + text.count("inf") >= 9, text


TRAINER = """
import mlx.optimizers as optim
class Trainer:
    __slots__ = ("model", "optimizer", "train")
    def __init__(self):
        self.model, self.optimizer = nn.Linear(3, 1), optim.Adam(0.1)
        self.train = nn.value_and_grad(self.model, lambda x: self.model(x).sum())
        mx.eval(self.model.parameters(), self.optimizer.state)
    def step(self):
        loss, grads = self.train(mx.ones((4, 3)))
        self.optimizer.update(self.model, nn.average_gradients(grads))
        mx.eval(loss, self.model.parameters(), self.optimizer.state)
trainer = Trainer()
"""


def test_a_model_that_an_object_holds(two: Cluster) -> None:
    two.run(TRAINER).check()
    abort(two, "trainer.step()")
    for name in ("weight", "bias"):
        assert invalid(held(two, f"trainer.model.{name}"))


def test_a_rank_that_dies_leaves_nan_on_its_neighbours_too(worlds: Worlds) -> None:
    with Cluster(3, backend="ring", name="death") as cluster:
        cluster.run(PREPARE).check()
        many = "".join(f"{name} = mx.distributed.all_sum(local('float32'))\n" for name in ("a", "b", "box.c"))
        result = blocked(cluster, f"{many}mx.eval(a, b, box.c)", DIES)
        assert result[0].unblocked and result[2].unblocked
        assert "ranks 0, 2 kept all variables;" in str(cluster.heal()), "in place, however many were in flight"
        for rank in (0, 2):
            for what in ("a", "b", "box.c"):
                assert invalid(cluster.run(f"numbers({what})", ranks=rank).check()[rank].value)
        assert sums_are_right(cluster)


# A rank on which a collective was aborted is never ok.

SWALLOWED = {
    "ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN)\nmx.eval(y)",
    "delayed": "signal.signal(signal.SIGINT, lambda *_: noted.append(1))\nmx.eval(y)",
    "caught": "try:\n    mx.eval(y)\nexcept BaseException:\n    pass",
    "ignored and caught": (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntry:\n    mx.eval(y)\nexcept BaseException:\n    pass"
    ),
    "ignored, and not by mx.eval": "signal.signal(signal.SIGINT, signal.SIG_IGN)\ny.tolist()",
}
RESTORED = "finally:\n    signal.signal(signal.SIGINT, before)"


def swallowing(code: str) -> str:
    body = textwrap.indent(code, "    ")
    return f"import signal\nbefore, noted = signal.getsignal(signal.SIGINT), []\ntry:\n{body}\n{RESTORED}"


@pytest.mark.parametrize("how", SWALLOWED)
def test_a_swallowed_abort_fails_the_cell(how: str, two: Cluster) -> None:
    code = f"y = mx.distributed.all_sum(local('float32'))\n{SWALLOWED[how]}\nbox.done = True"
    two.run("box.done = False").check()
    result = abort(two, swallowing(code) + "\ny")
    assert result[0].unblocked and not result[0].ok and result[0].value is None
    assert result[0].invalid == ("y",) and result[1].ok
    assert not result.errors, "it is no culprit"
    raised = not two.run("box.done", ranks=0)[0].value
    assert raised == (how in ("ignored", "delayed")), "mx.eval raises where it returns, unless that is caught"


def test_the_next_collective_raises_too(two: Cluster) -> None:
    code = """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        y = mx.distributed.all_sum(local("float32"))
        y.tolist()
        try:
            mx.distributed.all_sum(local("float32"))
        except RuntimeError as error:
            box.why = str(error)
    """
    result = abort(two, swallowing(textwrap.dedent(code).strip()))
    assert not result[0].ok
    assert "broken" in (why := two.run("box.why", ranks=0)[0].value) or "aborted" in why


def test_it_is_raised_once(two: Cluster) -> None:
    """Code that cleans up after an abort can evaluate what is its own."""
    result = abort(
        two,
        "y = mx.distributed.all_sum(local('float32'))\ntry:\n    mx.eval(y)\n"
        "except BaseException:\n    mine = mx.ones(3) * 2\n    mx.eval(mine)\n    box.sum = sum(mine.tolist())",
    )
    assert not result[0].ok
    assert two.run("box.sum", ranks=0)[0].value == 6


def test_a_rank_that_comes_late_to_what_others_entered_for_it(restarted_mpi4: Cluster) -> None:
    """Rank 2 asked for the sum that others wait in, swallows the signal, and evaluates it when it is too late."""
    restarted_mpi4.run(PREPARE).check()
    code = """
        import allranks.rank.world.recompile as recompile, signal, time
        y = mx.distributed.all_sum(local("float32")) if rank != 1 else None
        if rank == 2:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            while recompile.Generation.ledger.refuse is None:
                time.sleep(0.01)
            try:
                y.tolist()
            finally:
                signal.signal(signal.SIGINT, before)
        elif rank != 1:
            mx.eval(y)
    """
    cell = restarted_mpi4.begin(textwrap.dedent(code))
    wait_until_waiting(restarted_mpi4, 0)
    wait_until_waiting(restarted_mpi4, 3)
    restarted_mpi4.abort_collectives()
    result = cell.finish(WITHIN)
    assert [each.ok for each in result.values()] == [False, True, False, False]
    assert not result.errors and invalid(restarted_mpi4.run("numbers(y)", ranks=2)[2].value)
    assert sums_are_right(restarted_mpi4)


def test_a_rank_that_has_no_part_in_it_stays_ok(restarted_mpi4: Cluster) -> None:
    """Rank 2 got what it asked for, and goes on alone while others are released."""
    code = """
        import allranks.rank.world.recompile as recompile, time
        first = mx.distributed.all_sum(mx.ones(3))
        mx.eval(first)
        if rank == 2:
            while not recompile.Generation.ledger.refuse:
                time.sleep(0.01)
            own = mx.ones(3) * 2
            mx.eval(own)
        elif rank != 1:
            mx.eval(mx.distributed.all_sum(mx.ones(3)))
        first.tolist()
    """
    cell = restarted_mpi4.begin(textwrap.dedent(code).strip())

    def alone(now: Snapshot) -> bool:
        second = waiting(0, 3)(now) and now.ranks[0].line == now.ranks[3].line == 10
        return second and now.ranks[1].state == "idle" and now.ranks[2].line in (5, 6)

    assert comes_true(restarted_mpi4, alone, WITHIN), restarted_mpi4.status()
    restarted_mpi4.abort_collectives(ranks=[0, 3])
    result = cell.finish(WITHIN)
    assert [each.ok for each in result.values()] == [False, True, True, False]
    assert result[2].value == [4, 4, 4]
    assert sums_are_right(restarted_mpi4)
