"""What users may have in their names, kind by kind: the cell that makes each, and what is to be found there later.

Each kind differs from rank to rank where it can, so that a value of another rank is noticed. Ranks have set `who` to
their number, and `folder`.
"""

from __future__ import annotations

IMPORTS = """
import abc, array, asyncio, collections, concurrent.futures, contextlib, contextvars, copy, ctypes, dataclasses
import datetime
import decimal, enum, fractions, functools, gc, io, ipaddress, itertools, logging, multiprocessing, operator, os
import pathlib
import queue, random, re, socket, sqlite3, string, struct, subprocess, tempfile, textwrap, threading, types, typing
import uuid
import sys, weakref, zoneinfo
from math import log as math_log
import numpy as np
import mlx.nn as nn
import mlx.optimizers as optim
"""
KEPT: dict[str, tuple[str, str]] = {
    # Functions.
    "cached": (
        """
        @functools.lru_cache(4)
        def cached(n): return n + who if n < 2 else cached(n - 1) + cached(n - 2)
        """,
        "cached(20), cached.cache_info().maxsize",
    ),
    "cached_method": (
        """
        class Asks:
            @functools.cache
            def ask(self, n): return n * 2 + who
            @functools.cached_property
            def known(self): return [who]
        cached_method = Asks()
        cached_method.ask(3), cached_method.known
        """,
        "cached_method.ask(3), cached_method.known",
    ),
    "dispatched": (
        """
        @functools.singledispatch
        def dispatched(x): return 'any'
        @dispatched.register
        def _of_int(x: int): return 'int'
        """,
        "dispatched(3), dispatched('x')",
    ),
    "closure": (
        """
        def _make():
            n = [who]
            count = 0
            def up():
                nonlocal count
                count += 1
            def get(): return count, n
            return up, get
        closure = _make()
        closure[0]()
        """,
        "closure[1]() if closure[0].__closure__[0] is closure[1].__closure__[0] else 'two counters'",
    ),
    "decorated": (
        """
        def _twice(f):
            @functools.wraps(f)
            def call(*args): return f(f(*args))
            return call
        @_twice
        def decorated(x, *, by=3): 'Adds.'; return x + by
        decorated.tag = [who]
        """,
        "decorated(1), decorated.__doc__, decorated.tag, decorated.__wrapped__(1)",
    ),
    "counts": (
        """
        total_calls = 0
        def counts():
            global total_calls
            total_calls += 1
            return total_calls
        counts()
        """,
        "total_calls, counts.__globals__ is globals()",
    ),
    "partial": (
        """
        partial = functools.partial(sorted, key=lambda x: -x * (who + 1))
        """,
        "partial([1, 3, 2])",
    ),
    "getters": (
        """
        getters = operator.itemgetter(1), operator.attrgetter('real'), operator.methodcaller('upper')
        """,
        "getters[0]([1, 2]), getters[1](3), getters[2]('a')",
    ),
    "bound": (
        """
        _held = [who]
        bound = [_held, _held.append, _held.__len__]
        """,
        "bound[1].__self__ is bound[0] is bound[2].__self__, bound[0]",
    ),
    "coroutine_function": (
        """
        async def coroutine_function(): return who
        """,
        "asyncio.iscoroutinefunction(coroutine_function)",
    ),
    "generator_function": (
        """
        def generator_function():
            yield who
        """,
        "list(generator_function())",
    ),
    "built_in": (
        """
        built_in = [len, math_log, np.add, mx.add, dict.get, str.upper, mx.distributed.all_sum]
        """,
        (
            "[each is other for each, other in zip(built_in, [len, math_log, np.add, mx.add, dict.get, str.upper, "
            "mx.distributed.all_sum])]"
        ),
    ),
    "code": (
        """
        code = compile('3 + who', 'x', 'eval')
        """,
        "eval(code)",
    ),
    # Classes and objects.
    "class_attributes": (
        """
        class Settings:
            rate = 0.1 * who
            weights = mx.ones(3) * who
            seen = []
        Settings.seen.append(who)
        Settings.later = {'set': who}
        class_attributes = [Settings, Settings()]
        """,
        (
            "class_attributes[0] is Settings is type(class_attributes[1]), Settings.weights.tolist(), "
            "Settings.seen, Settings.later, Settings.rate"
        ),
    ),
    "metaclass": (
        """
        class Registry(type):
            known = {}
            def __new__(meta, name, bases, body):
                made = super().__new__(meta, name, bases, body)
                meta.known[name] = made
                return made
        class First(metaclass=Registry): pass
        class Second(First): pass
        metaclass = Second()
        """,
        "sorted(Registry.known), Registry.known['Second'] is Second is type(metaclass), type(First) is Registry",
    ),
    "abstract": (
        """
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self): ...
        class Square(Shape):
            def area(self): return who
        abstract = Square()
        Shape.register(int)
        """,
        "abstract.area(), isinstance(abstract, Shape), Shape.__abstractmethods__ == {'area'}, isinstance(3, Shape)",
    ),
    "slots": (
        """
        class Slots:
            __slots__ = ('x', 'unset', '__weakref__')
        slots = Slots()
        slots.x = [who]
        """,
        "slots.x, hasattr(slots, 'unset'), hasattr(slots, '__dict__')",
    ),
    "properties": (
        """
        class Celsius:
            def __init__(self): self._t = who
            @property
            def t(self): return self._t
            @t.setter
            def t(self, new): self._t = new * 2
            @classmethod
            def make(cls): return cls()
            @staticmethod
            def zero(): return 0
        properties = Celsius()
        properties.t = 4
        """,
        "properties.t, properties.make()._t, properties.zero(), type(Celsius.__dict__['t']).__name__",
    ),
    "descriptor": (
        """
        class Typed:
            def __set_name__(self, owner, name): self.name = '_' + name
            def __get__(self, one, owner): return self if one is None else getattr(one, self.name)
            def __set__(self, one, value): setattr(one, self.name, value + 1)
        class Uses:
            x = Typed()
        descriptor = Uses()
        descriptor.x = who
        """,
        "descriptor.x, Uses.x.name",
    ),
    "subclasses": (
        """
        class MyDict(dict): pass
        class MyList(list): pass
        class MyInt(int): pass
        class MyStr(str): pass
        class MyTuple(tuple): pass
        class MyArray(np.ndarray): pass
        subclasses = [MyDict(a=1), MyList([who]), MyInt(3), MyStr('s'), MyTuple((1,)), np.arange(3).view(MyArray)]
        for _each in subclasses[:-1]: _each.mark = who
        """,
        (
            "[type(each).__name__ for each in subclasses], [each.mark for each in subclasses[:-1]], "
            "list(subclasses[1]), subclasses[5].tolist()"
        ),
    ),
    "hooked": (
        """
        class Base:
            kinds = []
            def __init_subclass__(cls, **more):
                Base.kinds.append(cls)
        class Child(Base): pass
        hooked = Child()
        """,
        "[kind.__name__ for kind in Base.kinds], Base.kinds[0] is Child",
    ),
    "super_calls": (
        """
        class Low:
            def f(self): return [who]
        class High(Low):
            def f(self): return super().f() + [1]
        super_calls = High()
        """,
        "super_calls.f(), High.__mro__[1] is Low",
    ),
    "generic": (
        """
        T = typing.TypeVar('T')
        class Box(typing.Generic[T]):
            def __init__(self, x: T): self.x = x
        generic = [Box[int](who), Box[int], list[int], int | str, typing.Optional[int], T]
        """,
        (
            "generic[0].x, generic[1].__origin__ is Box, generic[2:5] == [list[int], int | str, "
            "typing.Optional[int]], generic[5] is T is Box.__parameters__[0]"
        ),
    ),
    "own_new": (
        """
        class Point(tuple):
            def __new__(cls, x, y): return super().__new__(cls, (x, y))
            def __getnewargs__(self): return tuple(self)
        own_new = Point(1, who)
        """,
        "type(own_new) is Point, tuple(own_new)",
    ),
    "singleton": (
        """
        class Only:
            one = None
            def __new__(cls):
                cls.one = cls.one or super().__new__(cls)
                return cls.one
        singleton = Only()
        singleton.x = who
        """,
        "singleton is Only() is Only.one, singleton.x",
    ),
    "made_by_type": (
        """
        made_by_type = type('Made', (dict,), {'x': who})
        """,
        "made_by_type.x, made_by_type.__mro__[1] is dict",
    ),
    "nested_class": (
        """
        class Outer:
            class Inner:
                x = who
        nested_class = Outer.Inner()
        """,
        "nested_class.x, type(nested_class) is Outer.Inner",
    ),
    "dataclass": (
        """
        @dataclasses.dataclass(frozen=True, slots=True)
        class Batch:
            x: object
            n: int = dataclasses.field(default=3)
            more: list = dataclasses.field(default_factory=list, compare=False)
        dataclass = Batch(mx.ones(2) * who, more=[who])
        """,
        (
            "dataclass.x.tolist(), dataclass.n, dataclass.more, "
            "[each.name for each in dataclasses.fields(dataclass)], Batch(1) == Batch(1)"
        ),
    ),
    "named_tuples": (
        """
        Pair = collections.namedtuple('Pair', 'a b', defaults=[2])
        class Typed2(typing.NamedTuple):
            a: int
            b: str = 'x'
        named_tuples = [Pair(who), Typed2(who)]
        """,
        "[tuple(each) for each in named_tuples], type(named_tuples[0]) is Pair, named_tuples[1].b",
    ),
    "enums": (
        """
        class Colour(enum.Enum):
            RED = 1
            BLUE = 2
            @property
            def low(self): return self.name.lower()
        class Bits(enum.IntFlag):
            A = 1
            B = 2
        enums = [Colour.RED, {Colour.BLUE: who}, Bits.A | Bits.B]
        """,
        (
            "enums[0] is Colour.RED, enums[1][Colour.BLUE], enums[2] == Bits(3), enums[0].low, "
            "list(Colour)[0] is enums[0]"
        ),
    ),
    "namespace": (
        """
        namespace = types.SimpleNamespace(x=who, y=[1])
        namespace.me = namespace
        """,
        "namespace.x, namespace.y, namespace.me is namespace",
    ),
    "own_module": (
        r"""
        own_module = types.ModuleType('mine_of_a_cell')
        exec('x = 3\ndef f(): return x', vars(own_module))
        own_module.x = who
        """,
        "own_module.f(), own_module.x",
    ),
    "modules": (
        """
        import xml.dom.minidom as modules
        """,
        "modules.__name__",
    ),
    "proxying": (
        """
        class Proxying:
            def __init__(self): self.__dict__['of'] = {'a': who}
            def __getattr__(self, name):
                try: return self.__dict__['of'][name]
                except KeyError: raise AttributeError(name) from None
            def __setattr__(self, name, value): self.of[name] = value
        proxying = Proxying()
        proxying.b = 2
        """,
        "proxying.a, proxying.b",
    ),
    "hash_by_value": (
        """
        class Key:
            def __init__(self, n): self.n = n
            def __hash__(self): return hash(self.n)
            def __eq__(self, other): return self.n == other.n
        hash_by_value = {Key(1): who, Key(2): 5}, {Key(3)}
        """,
        "hash_by_value[0][Key(1)], Key(3) in hash_by_value[1]",
    ),
    # Errors.
    "two_arguments": (
        """
        class Two(Exception):
            def __init__(self, where, why):
                super().__init__(where + why)
                self.why = why
        two_arguments = Two('a', 'b')
        """,
        "str(two_arguments), two_arguments.why",
    ),
    "caused": (
        """
        try:
            try:
                1 / 0
            except ZeroDivisionError as _error:
                raise ValueError('bad', who) from _error
        except ValueError as _error:
            caused = _error
        caused.add_note('look')
        """,
        "caused.args, str(caused.__cause__), caused.__notes__, caused.__suppress_context__",
    ),
    "error_group": (
        """
        error_group = ExceptionGroup('several', [ValueError(who), OSError(2, 'no', 'f')])
        """,
        "str(error_group), error_group.exceptions[0].args, error_group.exceptions[1].filename",
    ),
    "everything_mock": (
        """
        import unittest.mock
        everything_mock = unittest.mock.MagicMock(x=who)
        """,
        "everything_mock.x",
    ),
    # Plain things.
    "bytes_and_more": (
        r"""
        bytes_and_more = [b'\x00\xff', bytearray(b'ab'), array.array('d', [1.5, who])]
        """,
        "bytes_and_more",
    ),
    "view_of_bytes": (
        """
        _buffer = bytearray(b'abcdef')
        view_of_bytes = [_buffer, memoryview(_buffer)]
        """,
        "type(view_of_bytes[1]).__name__, bytes(view_of_bytes[1]), view_of_bytes[1].obj is view_of_bytes[0]",
    ),
    "big_numbers": (
        """
        big_numbers = [10 ** 6000 + who, -0.0, float('inf'), 1e-320, 2 ** 64, 1j, True, None, ..., NotImplemented]
        """,
        (
            "[hex(big_numbers[0]) == hex(10 ** 6000 + who)] + big_numbers[1:8], big_numbers[8] is ..., "
            "big_numbers[9] is NotImplemented"
        ),
    ),
    "nans": (
        """
        nans = [float('nan')] * 2
        """,
        "repr(nans)",
    ),
    "decimals": (
        """
        decimals = [decimal.Decimal('1.10'), fractions.Fraction(who, 7), decimal.Context(prec=5)]
        """,
        "repr(decimals[:2]), decimals[2].prec",
    ),
    "times": (
        """
        times = [datetime.datetime(2024, 2, 29, tzinfo=zoneinfo.ZoneInfo('UTC')), datetime.timedelta(who, 5),
            datetime.date(2000, 1, 1)]
        """,
        "repr(times)",
    ),
    "patterns": (
        r"""
        patterns = re.compile(r'(\w)(?P<x>\d)', re.I)
        """,
        "patterns.match('A1').groupdict(), patterns.flags",
    ),
    "path": (
        """
        path = [pathlib.Path('/tmp') / str(who), pathlib.PurePosixPath('x')]
        """,
        "path",
    ),
    "identifiers": (
        """
        identifiers = [uuid.UUID(int=who), ipaddress.ip_address('10.0.0.1'), string.Template('$x')]
        """,
        "str(identifiers[:2]), identifiers[2].substitute(x=who)",
    ),
    "ranges": (
        """
        ranges = [range(2, 9, 3), slice(1, None, 2), frozenset([who]), (), '', set()]
        """,
        "ranges",
    ),
    "collections_": (
        """
        collections_ = [collections.OrderedDict(b=1, a=2), collections.defaultdict(list, x=[who]),
            collections.Counter('aab'), collections.ChainMap({}, {'a': who}), collections.deque([1, who], 5),
            collections.UserDict(a=1)]
        """,
        "repr(collections_), collections_[4].maxlen, collections_[1].default_factory()",
    ),
    "default_of_lambda": (
        """
        default_of_lambda = collections.defaultdict(lambda: who + 5)
        """,
        "default_of_lambda['x']",
    ),
    "shared": (
        """
        shared = [who]
        shares_it = {'x': shared, 'y': (shared,)}
        """,
        "shares_it['x'] is shared is shares_it['y'][0]",
    ),
    "recursive": (
        """
        recursive = [who, {}]
        recursive[1]['me'] = recursive
        _pair = ([],)
        _pair[0].append(_pair)
        recursive.append(_pair)
        """,
        "recursive[1]['me'] is recursive, recursive[2][0][0] is recursive[2], recursive[0]",
    ),
    "linked": (
        """
        class Node: pass
        linked, _second = Node(), Node()
        linked.next, _second.previous, linked.who = _second, linked, who
        """,
        "linked.next.previous is linked, linked.who",
    ),
    "views_of_dict": (
        """
        _dict = {'a': who}
        views_of_dict = [_dict, _dict.keys(), _dict.values(), _dict.items()]
        """,
        "views_of_dict[0].update(b=2), [list(each) for each in views_of_dict[1:]], views_of_dict[0].pop('b')",
    ),
    "read_only_dict": (
        """
        _dict2 = {'a': who}
        read_only_dict = [_dict2, types.MappingProxyType(_dict2)]
        """,
        "read_only_dict[0].update(b=2), dict(read_only_dict[1]), read_only_dict[0].pop('b')",
    ),
    "weak_set": (
        """
        class Member: pass
        _members = [Member(), Member()]
        weak_set = [_members, weakref.WeakSet(_members)]
        """,
        "len(weak_set[1]), weak_set[0][0] in weak_set[1]",
    ),
    "weak": (
        """
        class Referent: pass
        referent = Referent()
        referent.x, weak = who, weakref.ref(referent)
        """,
        "weak() is referent, weak().x",
    ),
    "weak_mappings": (
        """
        weak_mappings = [weakref.WeakValueDictionary(), weakref.WeakKeyDictionary()]
        weak_mappings[0]['x'], weak_mappings[1][referent] = referent, who
        """,
        "weak_mappings[0]['x'] is referent, weak_mappings[1][referent], len(weak_mappings[0])",
    ),
    "iterators": (
        """
        iterators = [iter([1, 2, who]), enumerate('ab'), zip([1], [2]), map(str, [who]), reversed([1, 2]),
            itertools.count(3), itertools.cycle([1, who]), itertools.chain([1], [2]), iter({'a': 1}), iter(range(3))]
        next(iterators[0])
        """,
        "[list(itertools.islice(copy.deepcopy(each), 3)) for each in iterators]",
    ),
    "own_iterator": (
        """
        class Batches:
            def __init__(self): self.at = 0
            def __iter__(self): return self
            def __next__(self):
                self.at += 1
                return self.at
        own_iterator = Batches()
        next(own_iterator)
        """,
        "own_iterator.at",
    ),
    "strings_io": (
        r"""
        strings_io = [io.StringIO('a\nb'), io.BytesIO(b'abc')]
        strings_io[0].readline()
        strings_io[1].read(1)
        """,
        "[each.tell() for each in strings_io], strings_io[0].getvalue()",
    ),
    "structs": (
        """
        structs = struct.Struct('<if')
        """,
        "structs.format, structs.size",
    ),
    "logger": (
        """
        logger = logging.getLogger('of.a.cell')
        """,
        "logger is logging.getLogger('of.a.cell')",
    ),
    "formatter": (
        """
        formatter = logging.Formatter('%(message)s')
        """,
        "formatter._fmt",
    ),
    "asyncio_things": (
        """
        asyncio_things = [asyncio.Lock(), asyncio.Event(), asyncio.Queue(3)]
        """,
        "asyncio_things[2].maxsize",
    ),
    "environment": (
        """
        environment = os.environ
        """,
        "environment is os.environ",
    ),
    "standard_streams": (
        """
        standard_streams = [sys.stdout, sys.stderr]
        """,
        "standard_streams[0] is sys.stdout, standard_streams[1] is sys.stderr",
    ),
    "größe": (
        """
        größe = {'ключ': who}
        """,
        "größe",
    ),
    # numpy.
    "numpy_kinds": (
        """
        numpy_kinds = [np.array(['a', None], object), np.array('2024-01-01', 'M8[D]'), np.float16(who),
            np.ma.array([1, 2], mask=[0, 1]), np.zeros((0, 3)), np.asfortranarray(np.ones((2, 3))), np.array(['é'])]
        """,
        "repr(numpy_kinds), numpy_kinds[5].flags.f_contiguous",
    ),
    "numpy_slices": (
        """
        numpy_slices = [np.asfortranarray(np.arange(12).reshape(3, 4))]
        numpy_slices += [numpy_slices[0][::-1, 1], numpy_slices[0].T.view('u1')]
        """,
        (
            "[each.tolist() for each in numpy_slices], np.shares_memory(*numpy_slices[:2]), "
            "numpy_slices[0].flags.f_contiguous"
        ),
    ),
    "numpy_records": (
        """
        numpy_records = np.array([(who, 2.5)], dtype=[('a', 'i4'), ('b', 'f8')]).view(np.recarray)
        """,
        "numpy_records.a.tolist(), type(numpy_records).__name__",
    ),
    "numpy_views": (
        """
        numpy_views = [np.arange(10) + who]
        numpy_views += [numpy_views[0][2:8:2], numpy_views[0].reshape(2, 5).T]
        """,
        (
            "[each.tolist() for each in numpy_views], np.shares_memory(numpy_views[0], numpy_views[1]), "
            "np.shares_memory(numpy_views[0], numpy_views[2])"
        ),
    ),
    "numpy_view_names": (
        """
        whole_array = np.arange(6.0)
        part_of_it = whole_array[1:3]
        """,
        "whole_array.tolist(), part_of_it.tolist(), np.shares_memory(whole_array, part_of_it)",
    ),
    "numpy_read_only": (
        """
        numpy_read_only = np.arange(3)
        numpy_read_only.setflags(write=False)
        """,
        "numpy_read_only.flags.writeable",
    ),
    "memory_map": (
        """
        _file = f'{folder}/{who}.bin'
        memory_map = np.memmap(_file, dtype='float32', mode='w+', shape=(4, 2), offset=8)
        memory_map[:] = who + 1
        memory_map = [memory_map, memory_map[1:], memory_map.filename]
        """,
        (
            "memory_map[0].tolist(), memory_map[1].shape, np.shares_memory(memory_map[0], memory_map[1]), "
            "np.fromfile(memory_map[2], 'float32', offset=8).tolist(), type(memory_map[1]).__name__"
        ),
    ),
    "numpy_random": (
        """
        numpy_random = [np.random.default_rng(who), np.random.RandomState(who)]
        numpy_random[0].random()
        """,
        "copy.deepcopy(numpy_random[0]).random(), copy.deepcopy(numpy_random[1]).rand()",
    ),
    "python_random": (
        """
        python_random = random.Random(who)
        python_random.random()
        """,
        "copy.copy(python_random).random()",
    ),
    # MLX.
    "arrays": (
        """
        arrays = {str(d): (mx.arange(6) * (who + 1)).astype(d) for d in (mx.float32, mx.bfloat16, mx.float16,
            mx.int8, mx.uint64, mx.bool_, mx.complex64)}
        arrays['empty'], arrays['scalar'] = mx.zeros((0, 3)), mx.array(who)
        arrays['turned'] = mx.arange(6).reshape(2, 3).T
        arrays['same'] = arrays['scalar']
        """,
        (
            "{name: (each.tolist(), str(each.dtype), each.shape) for name, each in arrays.items()}, "
            "arrays['same'] is arrays['scalar']"
        ),
    ),
    "double": (
        """
        with mx.stream(mx.cpu): double = mx.array([1 / 3], mx.float64)
        mx.eval(double)
        """,
        "double.tolist(), str(double.dtype)",
    ),
    "pending": (
        """
        pending = mx.exp(mx.ones(3) * who) + 1
        """,
        "pending.tolist()",
    ),
    "mlx_things": (
        """
        mlx_things = [mx.float16, mx.cpu, mx.Device(mx.cpu, 0), mx.inf, mx.random.key(who), mx.floating]
        """,
        (
            "mlx_things[0] == mx.float16, repr(mlx_things[1]), repr(mlx_things[2]), mlx_things[4].tolist(), "
            "mlx_things[5] == mx.floating"
        ),
    ),
    "streams": (
        """
        streams = [mx.new_stream(mx.cpu), mx.default_stream(mx.cpu)]
        streams.append(streams[0])
        """,
        (
            "mx.add(mx.ones(1), who, stream=streams[0]).tolist(), streams[1] == mx.default_stream(mx.cpu), "
            "streams[0] is streams[2] != streams[1]"
        ),
    ),
    "mlx_state": (
        """
        mx.random.seed(who)
        mlx_state = [mx.random.state]
        """,
        "mlx_state[0] is mx.random.state, [key.tolist() for key in mx.random.state]",
    ),
    "module_of_layers": (
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
                self.b.weight = self.a.weight
                self.norm, self.drop = nn.BatchNorm(4), nn.Dropout(0.5)
                self._hidden = [who]
            def __call__(self, x): return self.b(self.a(x))
        module_of_layers = Net()
        module_of_layers.a.freeze()
        module_of_layers.eval()
        mx.eval(module_of_layers.parameters())
        """,
        (
            "module_of_layers(mx.ones(4)).tolist(), module_of_layers.a.weight is module_of_layers.b.weight, "
            "module_of_layers.training, module_of_layers.norm.training, "
            "sorted(module_of_layers.trainable_parameters()['a']), module_of_layers._hidden, "
            "type(module_of_layers) is Net"
        ),
    ),
    "quantized": (
        """
        quantized = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.GELU(approx='fast'))
        nn.quantize(quantized, group_size=32, bits=4)
        """,
        "quantized(mx.ones((1, 64))).sum().item(), quantized.layers[0].bits",
    ),
    "optimizer": (
        """
        optimizer_model = nn.Linear(3, 1)
        optimizer = optim.AdamW(optim.cosine_decay(0.1, 100))
        _loss = nn.value_and_grad(optimizer_model, lambda x: optimizer_model(x).square().sum())
        for _ in range(2): optimizer.update(optimizer_model, _loss(mx.ones((2, 3)))[1])
        """,
        (
            "optimizer.step.item(), optimizer.state['weight']['m'].tolist(), optimizer_model.weight.tolist(), "
            "optimizer.learning_rate.item()"
        ),
    ),
    "several_optimizers": (
        """
        several_optimizers = optim.MultiOptimizer([optim.SGD(0.1 + who, momentum=0.9), optim.Lion(0.2)],
            [lambda name, _: 'bias' in name])
        """,
        "[each.learning_rate.item() for each in several_optimizers.optimizers]",
    ),
    "scheduled": (
        """
        scheduled = optim.join_schedules([optim.linear_schedule(0, 1, 10), optim.step_decay(1, 0.5, 5)], [10])
        """,
        "scheduled(mx.array(5)).item(), scheduled(mx.array(12)).item()",
    ),
    "compiled": (
        """
        @mx.compile
        def compiled(x): return mx.exp(x) * (who + 1)
        """,
        "compiled(mx.ones(2)).tolist(), compiled.__name__",
    ),
    "compiled_state": (
        """
        stepped = nn.Linear(2, 1)
        stepper = optim.SGD(0.1, momentum=0.5)
        _state = [stepped.state, stepper.state, mx.random.state]
        _loss_of = nn.value_and_grad(stepped, lambda x: stepped(x).square().sum())
        @functools.partial(mx.compile, inputs=_state, outputs=_state)
        def compiled_state(x):
            loss, grads = _loss_of(x)
            stepper.update(stepped, grads)
            return loss
        compiled_state(mx.ones((3, 2)))
        mx.eval(_state)
        """,
        (
            "(lambda before: [compiled_state(mx.ones((3, 2))).item() > 0, mx.array_equal(before, "
            "stepped.weight).item()])(stepped.weight + 0)"
        ),
    ),
    "gradients": (
        """
        gradients = [mx.grad(lambda x: (x ** 2).sum() * (who + 1)), mx.vmap(lambda x: x.sum()),
            mx.value_and_grad(lambda x: x.sum()), mx.checkpoint(lambda x: x * 2)]
        """,
        (
            "gradients[0](mx.ones(2)).tolist(), gradients[1](mx.ones((2, 3))).tolist(), "
            "gradients[2](mx.ones(2))[1].tolist(), gradients[3](mx.ones(1)).tolist()"
        ),
    ),
    "groups": (
        """
        groups = {'world': world, 'deep': [[world]]}
        """,
        "groups['world'] is world is groups['deep'][0][0]",
    ),
    "tables": (
        """
        import pandas as pd
        tables = pd.DataFrame({'a': [1, who]}, index=pd.Index(['x', 'y'], name='i'))
        """,
        "tables.to_dict(), tables.index.name",
    ),
    "trees": (
        """
        import mlx.utils
        trees = mlx.utils.tree_flatten({'a': mx.ones(1), 'b': [mx.ones(2) * who]})
        """,
        "[(name, each.tolist()) for name, each in trees]",
    ),
}
"""Each as the cell that makes it, and an expression whose value is to be the same before and after."""
LEFT: dict[str, str] = {
    "lock": "lock = threading.Lock()",
    "rlock": "rlock = threading.RLock()",
    "condition": "condition = threading.Condition()",
    "event": "event = threading.Event()",
    "semaphore": "semaphore = threading.Semaphore(2)",
    "thread_local": """
        thread_local = threading.local()
        thread_local.x = 1
        """,
    "thread": "thread = threading.Thread(target=print)",
    "timer": "timer = threading.Timer(600, print)",
    "queue_of_threads": """
        queue_of_threads = queue.Queue()
        queue_of_threads.put(1)
        """,
    "simple_queue": "simple_queue = queue.SimpleQueue()",
    "pool": "pool = concurrent.futures.ThreadPoolExecutor(1)",
    "future": "future = concurrent.futures.Future()",
    "mp_lock": "mp_lock = multiprocessing.Lock()",
    "mp_queue": "mp_queue = multiprocessing.Queue()",
    "process": "process = multiprocessing.Process(target=print)",
    "popen": """
        popen = subprocess.Popen(['true'])
        popen.wait()
        """,
    "generator": """
        generator = (i for i in range(5))
        next(generator)
        """,
    "coroutine": """
        async def _co(): pass
        coroutine = _co()
        """,
    "async_generator": """
        async def _agen():
            yield 1
        async_generator = _agen()
        """,
    "holds_generator": "holds_generator = {'deep': [1, (i for i in range(3))]}",
    "file_read": r"""
        _path = f'{folder}/{who}'
        open(_path, 'w').write('one\ntwo\n')
        file_read = open(_path)
        file_read.readline()
        """,
    "file_binary": "file_binary = open(_path, 'rb')",
    "file_write": "file_write = open(_path + 'w', 'w')",
    "file_closed": """
        file_closed = open(_path)
        file_closed.close()
        """,
    "temporary_file": "temporary_file = tempfile.NamedTemporaryFile()",
    "temporary_directory": "temporary_directory = tempfile.TemporaryDirectory()",
    "finalizer": """
        class _Fin: pass
        _fin = _Fin()
        finalizer = weakref.finalize(_fin, print)
        """,
    "socket_open": "socket_open = socket.socket()",
    "database": "database = sqlite3.connect(':memory:')",
    "weak_proxy": """
        class Weakly: pass
        _weakly = Weakly()
        weak_proxy = weakref.proxy(_weakly)
        """,
    "match": "match = re.match('(.)', 'abc')",
    "found_iterator": "found_iterator = re.finditer('.', 'abc')",
    "handler": "handler = logging.StreamHandler()",
    "context_variable": """
        context_variable = contextvars.ContextVar('of_a_cell')
        context_variable.set(who)
        """,
    "context": "context = contextvars.copy_context()",
    "loop": "loop = asyncio.new_event_loop()",
    "frame": """
        import sys
        frame = sys._getframe()
        """,
    "traceback": "traceback = caused.__traceback__",
    "pointer": "pointer = ctypes.pointer(ctypes.c_int(3))",
    "callback": "callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 3)",
    "manager": """
        @contextlib.contextmanager
        def _manage():
            yield 1
        manager = _manage()
        manager.__enter__()
        """,
    "deep_list": """
        deep_list = []
        for _ in range(100_000): deep_list = [deep_list]
        """,
    "rude": """
        class Rude:
            def __reduce__(self): raise SystemExit('no')
        rude = Rude()
        """,
    "raises_when_loaded": """
        class Stubborn:
            def __init__(self): self.x = 1
            def __setstate__(self, state): raise ValueError('not again')
        raises_when_loaded = [Stubborn()]
        """,
    "exits_when_loaded": """
        class Exits:
            def __reduce__(self): return os._exit, (3,)
        exits_when_loaded = Exits()
        """,
    "recurses_when_loaded": """
        class Recurses:
            def __init__(self): self.of = {}
            def __getattr__(self, name): return self.of[name]
        recurses_when_loaded = Recurses()
        """,
    "c_types": """
        class _CPair(ctypes.Structure):
            _fields_ = [('a', ctypes.c_int), ('b', ctypes.c_double)]
        c_types = [ctypes.c_int(who), _CPair(who, 2.5), (ctypes.c_int * 2)(1, 2)]
        """,
    "custom_gradient": """
        @mx.custom_function
        def custom_gradient(x): return x * 3
        @custom_gradient.vjp
        def _back(primals, cotangents, outputs): return cotangents * 7
        """,
}
"""What no other process can have: each must be named before any is ended."""
