"""The table of verbs by which MLX's JACCL calls RDMA, found in MLX's memory, and the resources made through it.

JACCL keeps pointers to librdma's functions in one static object: sixteen, in a fixed order (mlx 0.32.4). The table is
found by its content, the addresses of these functions, and nothing is written unless they occur exactly once. Ten of
the functions are replaced by Python functions that call them and record each resource made or freed. JACCL calls these
ten while a world is formed or left, and in no collective.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable

from allranks.rank.world.shared_libraries import address_of, only_place

from .rdma_verbs import INT, MADE_BY, VERBS, CType, P, RdmaVerbs


class VerbsTable(RdmaVerbs):
    """MLX's table of verbs; nothing is written before `install`."""

    def __init__(self) -> None:
        """Find the table. Raises NotInPlace."""
        super().__init__()
        wanted = [self.addresses[name] for name in VERBS]
        self._address = only_place(struct.pack(f"{len(VERBS)}Q", *wanted), "its table of verbs")
        self._ours: list[object] = []
        """Our functions, kept alive because the table points to their code."""
        self.lock = threading.RLock()
        """Taken while a resource is freed, and while other code uses resources in `held`."""
        self.held: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in MADE_BY}
        """By verb, the resources that it made and JACCL has not freed: maps their addresses to the verb's arguments."""

    def install(self) -> None:
        """Make JACCL call our functions."""
        for make, (free, arguments) in MADE_BY.items():
            self._replace(make, self._makes(make, arguments), P, arguments)
            self._replace(free, self._frees(make, free), INT, [P])

    def free_all(self) -> int:
        """Free all held resources, which no thread may use any more; returns how many the driver failed to free."""
        failed = 0
        with self.lock:
            for make, (free, _) in MADE_BY.items():
                release = self.call(free, [P])
                for made in list(self.held[make]):
                    failed += release(made) != 0
                self.held[make].clear()
        return failed

    def held_since(self, before: dict[str, set[int]]) -> dict[str, list[int]]:
        """The resources that are held now and were not held `before`, by the verb that made them."""
        return {make: [made for made in list(held) if made not in before[make]] for make, held in self.held.items()}

    def _replace(
        self, name: str, ours: Callable[..., int | None], result: CType | None, arguments: list[CType]
    ) -> None:
        function = ctypes.CFUNCTYPE(result, *arguments, use_errno=True)(ours)
        self._ours.append(function)
        ctypes.c_void_p.from_address(self._address + 8 * VERBS.index(name)).value = address_of(function)

    def _makes(self, make: str, arguments: list[CType]) -> Callable[..., int | None]:
        real, held = self.call(make, arguments, P), self.held[make]

        def call(*values: int) -> int | None:
            made: int | None = real(*values)
            if made:
                held[made] = values
            return made

        return call

    def _frees(self, make: str, free: str) -> Callable[..., int]:
        real, held = self.call(free, [P]), self.held[make]

        def call(made: int) -> int:
            with self.lock:
                code: int = real(made)
                if code == 0:
                    held.pop(made, None)
                return code

        return call
