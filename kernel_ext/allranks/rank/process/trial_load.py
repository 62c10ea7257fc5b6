"""Load saved variables in a process that ends afterwards, to test whether another rank could load them.

``python -m allranks.rank.process.trial_load FILE SETTINGS`` starts as a rank does but joins no world. It prints lines
of JSON: each name before it is loaded, and at the end the names that could not be loaded, with the reasons.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

from allranks.rank.values.ask_trial_load import SMALL

if TYPE_CHECKING:
    from mlx.core import array as Array

    from allranks.messages.value_types import Namespace
    from allranks.messages.wire import Buffer


def main() -> None:
    from allranks.pickling import pickle_values
    from allranks.rank.values import checkpoint

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the user's code must not mix with these lines
    threading.Thread(target=_end_with_the_rank, daemon=True).start()
    settings = json.loads(sys.argv[2])
    sys.path[:] = settings["path"]

    def say(**told: object) -> None:
        print(json.dumps(told), file=out, flush=True)

    namespace = _namespace(settings["rank"], settings["size"])
    pickle_values.array_from_buffer = _placeholder(pickle_values.array_from_buffer)
    loaded = checkpoint.load(Path(sys.argv[1]), namespace, read=_read, begin=lambda name: say(loads=name))
    say(failed=loaded.failed)
    os._exit(0)


def _end_with_the_rank() -> None:
    os.read(0, 1)
    os._exit(1)


def _namespace(rank: int, size: int) -> Namespace:
    """A namespace like that of a rank's cells."""
    import mlx.core as mx

    from allranks.rank.functions import transforms
    from allranks.rank.world import recompile

    recompile.install(mx)
    transforms.install(mx)
    alone = mx.distributed.init(backend="ring")
    mx.distributed.init = lambda *_args, **_options: alone
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(mx=mx, world=alone, rank=rank, size=size)
    return vars(main)


def _read(file: IO[bytes], size: int) -> bytearray | mmap.mmap:
    """The next `size` bytes; a large buffer is not read, but replaced by zeros that the system need not allocate."""
    if size <= SMALL:
        return bytearray(file.read(size))
    file.seek(size, os.SEEK_CUR)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))


def _placeholder(make: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap `make` so that large arrays are broadcasts of one element, computed only if the code uses them."""

    def make_or_stand_in(name: str, shape: tuple[int, ...], buffer: Buffer) -> Array:
        import mlx.core as mx

        if (nbytes := memoryview(buffer).nbytes) <= SMALL:
            return make(name, shape, buffer)
        return mx.broadcast_to(make(name, (), bytes(nbytes // math.prod(shape))), shape, stream=mx.cpu)

    return make_or_stand_in


if __name__ == "__main__":
    main()
