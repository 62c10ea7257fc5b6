"""``mx.compile`` in a rank: compiled again for each world, and its collectives are in the ledger at each call."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn
import pytest

from allranks.pickling import pickle_values
from allranks.rank.collectives import wrap_collectives
from allranks.rank.collectives.ledger import Ledger
from allranks.rank.functions.replaced import is_replaced
from allranks.rank.world import recompile

nn: Any = mlx.nn  # it says nothing of what it exports


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    """mlx.core with our ``compile``, and a ledger of the calls of its ``distributed``; put back afterwards."""
    for name in ("compile", "eval", "async_eval"):
        monkeypatch.setattr(mx, name, getattr(mx, name))
    for name in ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv", "recv_like"):
        monkeypatch.setattr(mx.distributed, name, getattr(mx.distributed, name))
    monkeypatch.setattr(recompile.Generation, "ledger", None)
    recompile.install(mx)
    return mx


@pytest.fixture
def ledger(ours: Any, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger()
    wrap_collectives.install(made, mx, globals())
    monkeypatch.setattr(recompile.Generation, "ledger", made)
    return made


def test_it_computes_what_mlx_computes(ours: Any) -> None:
    double = mx.compile(lambda x: x * 2 + 1)
    assert double(mx.array([1, 2])).tolist() == [3, 5]
    assert double(mx.array([1.5])).tolist() == [4.0]


def test_a_function_is_traced_once_for_each_world(ours: Any) -> None:
    traces: list[int] = []

    @mx.compile
    def step(x: Any) -> Any:
        traces.append(1)
        return x + 1

    for _ in range(3):
        step(mx.ones(2))
    assert len(traces) == 1
    recompile.forget_traces()
    for _ in range(3):
        step(mx.ones(2))
    assert len(traces) == 2


def test_arguments_of_compile_pass_through(ours: Any) -> None:
    state = [mx.array(0.0)]

    def count(x: Any) -> Any:
        state[0] = state[0] + x
        return state[0] * 2

    step = mx.compile(count, inputs=state, outputs=state)
    for _ in range(2):
        recompile.forget_traces()
        step(mx.array(1.0))
        step(mx.array(1.0))
    assert state[0].item() == 4.0
    shapeless = mx.compile(lambda x: x + 1, shapeless=True)
    assert shapeless(mx.ones((2,))).shape == (2,) and shapeless(mx.ones((3, 3))).shape == (3, 3)


def test_it_looks_like_the_function(ours: Any) -> None:
    @mx.compile
    def forward(x: Any) -> Any:
        """Scale it."""
        return x * 3

    assert forward.__name__ == "forward" and forward.__doc__ == "Scale it."


def test_it_works_under_grad_and_on_modules(ours: Any) -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight = mx.array([[2.0, 3.0]])
    loss = mx.compile(lambda weight, x: (x @ weight.T).sum())
    grad = mx.grad(loss)(layer.weight, mx.ones((1, 2)))
    assert grad.tolist() == [[1.0, 1.0]]
    recompile.forget_traces()
    assert mx.grad(loss)(layer.weight, mx.ones((1, 2))).tolist() == [[1.0, 1.0]]


def test_it_travels_as_its_function(ours: Any) -> None:
    def add(x: Any) -> Any:
        return x + 5

    copy = pickle_values.unpack(pickle_values.pack(mx.compile(add, shapeless=True)))
    assert is_replaced(copy)
    assert copy(mx.array(1)).item() == 6


def test_installing_twice_wraps_once(ours: Any) -> None:
    before = mx.compile
    recompile.install(mx)
    assert mx.compile is before and is_replaced(before)


# The ledger.


def test_each_call_counts_though_only_the_first_is_traced(ledger: Ledger) -> None:
    step = mx.compile(lambda x: mx.distributed.all_sum(x) + mx.distributed.all_max(x))
    for calls in (1, 2, 3):
        step(mx.ones(3))
        assert ledger.seq == 2 * calls
    step_line = [(record.op, record.shape, record.dtype) for record in ledger.shared_since(0)]
    assert step_line == [("all_sum", (3,), "float32"), ("all_max", (3,), "float32")] * 3


def test_a_new_shape_is_recorded_with_its_own_sizes(ledger: Ledger) -> None:
    step = mx.compile(lambda x: mx.distributed.all_sum(x))
    for size in (3, 3, 5, 5):
        step(mx.ones(size))
    assert [record.shape for record in ledger.shared_since(0)] == [(3,), (3,), (5,), (5,)]


def test_the_line_is_that_of_the_call(ledger: Ledger) -> None:
    ns: dict[str, Any] = {"mx": mx}
    wrap_collectives.install(ledger, mx, ns)
    exec(compile("step = mx.compile(lambda x: mx.distributed.all_sum(x))\nstep(mx.ones(1))", "<one>", "exec"), ns)
    exec(compile("\n\n\nstep(mx.ones(1))", "<two>", "exec"), ns)
    assert [(record.file, record.line) for record in ledger.shared_since(0)] == [("<one>", 1), ("<two>", 4)]


def test_compiled_functions_in_compiled_functions_count_once_each(ledger: Ledger) -> None:
    inner = mx.compile(lambda x: mx.distributed.all_sum(x))
    outer = mx.compile(lambda x: inner(x) + inner(x + 1))
    outer(mx.ones(2))
    first = ledger.seq
    outer(mx.ones(2))
    assert ledger.seq == 2 * first == 4


def test_a_compiled_function_without_collectives_costs_the_ledger_nothing(ledger: Ledger) -> None:
    step = mx.compile(lambda x: x + 1)
    for _ in range(3):
        step(mx.ones(2))
    assert ledger.seq == 0 and ledger.last() is None


def test_in_a_broken_world_it_raises_before_it_hangs(ledger: Ledger) -> None:
    step, plain = mx.compile(lambda x: mx.distributed.all_sum(x)), mx.compile(lambda x: x + 1)
    step(mx.ones(2))
    plain(mx.ones(2))
    ledger.refuse = "the world is broken"
    with pytest.raises(RuntimeError, match="the world is broken"):
        step(mx.ones(2))
    assert plain(mx.ones(2)).tolist() == [2.0, 2.0]
    ledger.enter_world(ledger.seq, 1)
    recompile.forget_traces()
    assert step(mx.ones(2)).tolist() == [1.0, 1.0]


def test_a_guard_sees_every_call(ledger: Ledger) -> None:
    seen: list[int] = []
    ledger.begin_cell(guard=lambda record: seen.append(record.seq), ordered=False)
    step = mx.compile(lambda x: mx.distributed.all_sum(x))
    step(mx.ones(2))
    step(mx.ones(2))
    assert seen == [1, 2]


def test_compilations_of_one_function_share_a_trace_and_both_are_in_the_ledger(ledger: Ledger) -> None:
    traces: list[int] = []

    def step(x: Any) -> Any:
        traces.append(1)
        return mx.distributed.all_sum(x)

    one, other = mx.compile(step), mx.compile(step)
    for each in (one, other, one):
        each(mx.ones(2))
    assert (len(traces), ledger.seq) == (1, 3)
    recompile.forget_traces()
    new = mx.compile(step)  # called before the others compile again
    for each in (new, one, other):
        each(mx.ones(2))
    assert ledger.seq == 6
    assert len(traces) == 2, "what was traced in the world before is not called again"


def test_wrong_arguments_are_mlx_s_to_refuse_also_in_a_broken_world(ledger: Ledger) -> None:
    ledger.refuse = "the world is broken"
    wrong: Any = "x"
    with pytest.raises(TypeError, match="incompatible function arguments"):
        mx.distributed.all_sum(mx.ones(2), group=wrong)
    with pytest.raises(RuntimeError, match="the world is broken"):
        mx.distributed.all_sum(mx.ones(2))
    ledger.in_world = False  # MLX would try to join one
    with pytest.raises(RuntimeError, match="the world is broken"):
        mx.distributed.all_sum(mx.ones(2), group=wrong)
