"""What is asked of MLX's functions, in a plain process and on a rank alike: `PROBES` are expressions, `SETUP` precedes.

This file is also the program of the plain processes. It needs nothing but MLX, numpy and cloudpickle there.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

SETUP = """
import collections.abc, copy, functools, gc, inspect, pickle, pydoc, traceback, types, typing, weakref
import cloudpickle, numpy
import mlx.core as mx
D, array = mx.distributed, mx.array([1.0, 2.0])

def square(x):
    "Square it."
    return (x * x).sum()
square.note = "mine"

def frames(call):
    try:
        call()
    except Exception as error:
        return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]

def broken(x):
    raise KeyError("k")

def stack(x):
    names.append([frame.name for frame in traceback.extract_stack()][-2:])
    return x.sum()
names = []

def with_frames(transform):
    names.clear()
    transform(stack)(array)
    return names[0]

def traces(compilations, delete=False):
    seen = []
    def step(x):
        seen.append(1)
        return x + 1
    made = [mx.compile(step) for _ in range(compilations)]
    for each in made * 2:
        each(array)
    if delete:
        del made[0], each
        made[0](array)
    return len(seen)

class Holder:
    reduce, many = D.all_sum, mx.eval
    compiled, gradient, mapped = mx.compile(square), mx.grad(square), mx.vmap(lambda x: x + 1)

class Layer:
    def __init__(self):
        self.step = mx.compile(self._step)
    def _step(self, x):
        return x * 3

def assign(thing, name):
    setattr(thing, name, 1)

def remove(thing, name):
    delattr(thing, name)
"""

FUNCTIONS = {
    **{
        f"D.{name}": name
        for name in ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv", "recv_like", "init")
    },
    **{
        f"mx.{name}": name
        for name in ("compile", "grad", "value_and_grad", "vmap", "checkpoint", "vjp", "jvp", "eval", "async_eval")
    },
    **{f"mx.{name}": name for name in ("new_stream", "new_thread_local_stream", "new_thread_unsafe_stream")},
    "D.Group.split": "split",
    "D.init().split": "split",
}
MADE = [f"mx.{name}(square)" for name in ("compile", "grad", "value_and_grad", "vmap", "checkpoint")]
ATTRIBUTES = ("doc", "name", "qualname", "module", "text_signature", "signature", "wrapped", "dict", "class", "self")
OF_EACH = [
    *(f"{{0}}.__{name}__" for name in ATTRIBUTES),
    "{0}.__nb_signature__",
    "{0}.__annotations__",
    "{0}.__defaults__",
    "{0}.note",
    "repr({0})",
    "inspect.signature({0})",
    "pydoc.render_doc({0}, renderer=pydoc.plaintext).replace('__main__', '')",
    "dir({0})",
    "vars({0})",
    "callable({0})",
    "isinstance({0}, type({0}))",
    "isinstance({0}, types.FunctionType)",
    "isinstance({0}, types.MethodType)",
    "(inspect.isfunction({0}), inspect.isroutine({0}), inspect.isbuiltin({0}), inspect.ismethod({0}))",
    "(type({0}).__name__, type({0}).__module__, type({0}).__qualname__)",
    "hasattr(type({0}), '__get__')",
    "hasattr({0}, '__get__')",
    "pickle.dumps({0})",
    "cloudpickle.loads(cloudpickle.dumps({0}))",
    "copy.copy({0})",
    "copy.deepcopy({0})",
    "weakref.ref({0})",
    "assign({0}, 'other')",
    "assign({0}, '__doc__')",
    "remove({0}, 'other')",
    "{0} == {0}",
    "{0} != 3",
    "type(hash({0}))",
    "bool({0})",
    "{0}()",
    "{0}(unknown=1)",
    "{0}(None, unknown=1)",
    "{0}(object())",
    "{0}(object(), object(), object(), object(), object())",
    "frames(lambda: {0}(None, unknown=1))",
    "functools.partial({0}).func is not None",
    "inspect.getdoc({0})",
    "inspect.getmodule({0}).__name__",
    "inspect.getsource({0})",
    "inspect.iscoroutinefunction({0})",
    "typing.get_type_hints({0})",
    "isinstance({0}, collections.abc.Callable)",
    "type({0})",
    "type({0}).__mro__",
    "type({0}).__call__",
    "dir(type({0}))",
    "functools.wraps({0})(lambda x: x).__name__",
    "functools.lru_cache({0}).__doc__",
    "{0}.__code__.co_name",
    "callable({0}.__call__)",
    "'{{}}'.format({0})",
    "format({0}, 'x')",
    "{0} < 1",
    "{0}[0]",
    "iter({0})",
    "len({0})",
]
PROBES = [
    *(probe.format(each) for probe in OF_EACH for each in [*FUNCTIONS, *MADE]),
    *(f"{each} is {each}" for each in FUNCTIONS),
    *(
        f"D.{op}({argument}, group='x')"
        for op in ("all_sum", "all_gather", "sum_scatter", "recv_like")
        for argument in ("array", "3")
    ),
    *(
        f"D.all_sum({value})"
        for value in ("'x'", "[1, 2]", "None", "range(3)", "1 << 70", "array, None", "x=array, y=1")
    ),
    *(f"D.all_sum({value}).dtype" for value in ("3", "True", "2.5", "1j", "1 << 40", "numpy.int8(1)", "numpy.ones(3)")),
    "D.all_sum(array, stream='x')",
    "D.all_sum.__call__(array).shape",
    "D.all_gather(numpy.ones((2, 3))).shape",
    "D.send(array, 'x')",
    "D.send(array)",
    "D.send(array, 7)",
    "D.recv((2,), 'float32', 1)",
    "D.recv(2, mx.float32, 1)",
    "D.recv((2,), mx.float32, 9)",
    "D.recv([2, 3], mx.int8, 1).shape",
    "D.recv_like(array, 1).shape",
    "D.init(foo=1)",
    "D.init(1)",
    "D.init(True, 3)",
    "D.init(True, 'any', None, 4)",
    "D.init(backend='unknown')",
    "D.init(backend='mpi', strict=1)",
    "D.init(backend='ring', all_gather_factory=3)",
    "D.init(backend='ring', all_gather_factory=lambda rank, size: None)",
    "D.init(all_gather_factory=lambda rank, size: None)",
    "D.init(backend='jaccl', all_gather_factory=lambda rank, size: None, strict=True)",
    "(D.init().rank(), D.init(True, 'ring').size())",
    "D.init() is D.init()",
    "D.init().split('x')",
    "D.init().split(0)",
    "D.Group.split(D.init(), 'x')",
    "D.Group.split(3, 0)",
    "mx.eval(D.sum_scatter(array))",
    *(
        f"mx.{name}({value})"
        for name in ("compile", "grad", "vmap", "vjp")
        for value in ("3", "'x'", "square, 1, 2, 3, 4, 5")
    ),
    "mx.compile(print).__name__",
    "mx.compile(functools.partial(square)).__name__",
    "mx.compile(fun=square)(array).item()",
    "mx.compile(square)('x')",
    "mx.compile(square)(array, array)",
    "mx.compile(square).__call__(array).item()",
    "mx.compile(mx.compile(square))(array).item()",
    "mx.compile(mx.grad(square))(array).tolist()",
    "mx.grad(mx.compile(square))(array).tolist()",
    "mx.grad(square)('x')",
    "mx.grad(square, argnums=3)(array)",
    "mx.value_and_grad(fun=square)(array)",
    "mx.vmap(square, in_axes=5)(array)",
    "mx.vjp(square, [array], [mx.array(1.0)])",
    "mx.vjp(square, 3, 4)",
    "mx.jvp(square, [array], [array])",
    "mx.eval(3)",
    "mx.eval('x')",
    "mx.eval(array, [array, {'a': array}], None)",
    "mx.async_eval(x=array)",
    "mx.compile(lambda x: mx.eval(x + 1))(array)",
    "mx.new_stream(3)",
    "mx.compile(D.all_sum)(array).shape",
    "mx.vmap(D.all_sum)(mx.ones((2, 3))).shape",
    "mx.compile(D.all_sum).__name__",
    "mx.vjp(D.all_sum, [array], [array])[0][0].shape",
    "mx.grad(lambda x: D.all_sum(x).sum())(array).shape",
    "mx.custom_function(mx.compile(square))(array).item()",
    "mx.checkpoint(mx.compile(square))(array).item()",
    "mx.grad(mx.vmap(lambda x: x * x), argnums=())(array)",
    "mx.compile(Layer()._step)(array).tolist()",
    "list(map(mx.compile(lambda x: x + 1), [array]))[0].tolist()",
    "functools.partial(mx.compile, shapeless=True)(square)(array).item()",
    "mx.compile(square, shapeless='x')",
    "mx.compile(square, inputs=3)(array)",
    "mx.compile(lambda x: {'a': (x, [x + 1])})(array)['a'][1][0].tolist()",
    "mx.compile(lambda x, y=1: x + y)(array, y=mx.array(2.0)).tolist()",
    "mx.compile(lambda x: x.nothing)(array)",
    "mx.compile(lambda x: [x, object()])(array)",
    *(f"traces({count})" for count in (1, 2, 3)),
    "traces(2, delete=True)",
    "Holder().reduce(array).shape",
    "Holder().reduce is D.all_sum",
    "Holder().many(array)",
    "Holder().compiled(array).item()",
    "Holder().compiled is Holder.compiled",
    "Holder().gradient(array).tolist()",
    "Holder().gradient is Holder.gradient",
    "Holder().mapped(array).tolist()",
    "Layer().step(array).tolist()",
    "D.init().split is D.init().split",
    "type(D.all_sum) is type(mx.add)",
    "type(D.all_sum.__call__)",
    "type(mx.compile(square)) is type(mx.grad(square))",
    "isinstance(D.all_sum, type(mx.add))",
    *(
        f"frames(lambda: mx.{name}(broken)(array))"
        for name in ("compile", "grad", "value_and_grad", "vmap", "checkpoint")
    ),
    "frames(lambda: mx.grad(mx.compile(broken))(array))",
    "frames(lambda: mx.vjp(broken, [array], [array]))",
    *(
        f"frames(lambda: {call})"
        for call in ("D.all_sum('x')", "D.send(array, 7)", "mx.eval('x')", "mx.compile(3)", "D.init(foo=1)")
    ),
    "frames(lambda: D.init().split('x'))",
    "with_frames(mx.compile)",
    "with_frames(mx.grad)",
]


def answers(names: dict[str, Any]) -> dict[str, str]:
    """What each probe gives, or raises, as text."""
    exec(SETUP, names)
    found = {}
    for probe in PROBES:
        try:
            text = repr(eval(probe, names))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        found[probe] = re.sub(r"0x[0-9a-f]+", "0x", text)
    return found


if __name__ == "__main__":
    import mlx.core as mx

    mx.distributed.init(strict=True, backend="ring")
    json.dump(answers({"__name__": "__main__"}), sys.stdout)
