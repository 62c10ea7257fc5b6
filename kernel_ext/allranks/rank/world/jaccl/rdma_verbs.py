"""The verbs of RDMA that MLX's JACCL calls, as functions of a library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeAlias

from allranks.rank.world.shared_libraries import NotInPlace, address_of

LIBRARY = "librdma.dylib"
"""macOS's library, under the name by which MLX loads it (0.32.4)."""
VERBS = [
    "get_device_list",
    "get_device_name",
    "open_device",
    "free_device_list",
    "close_device",
    "alloc_pd",
    "create_qp",
    "create_cq",
    "destroy_cq",
    "destroy_qp",
    "dealloc_pd",
    "query_port",
    "query_gid",
    "modify_qp",
    "reg_mr",
    "dereg_mr",
]
"""Names of the verbs without ``ibv_``, in the order of ``IBVWrapper`` in mlx's ``jaccl/rdma.h`` (0.32.4)."""
P, INT = ctypes.c_void_p, ctypes.c_int
CType: TypeAlias = "type[ctypes._SimpleCData[Any]]"
"""The type of an argument or a result."""
MADE_BY: dict[str, tuple[str, list[CType]]] = {
    "create_qp": ("destroy_qp", [P, P]),
    "reg_mr": ("dereg_mr", [P, P, ctypes.c_size_t, INT]),
    "create_cq": ("destroy_cq", [P, INT, P, P, INT]),
    "alloc_pd": ("dealloc_pd", [P]),
    "open_device": ("close_device", [P]),
}
"""Maps each verb that makes a resource to the verb that frees it, and to the types of the first verb's arguments.

Resources are freed in this order."""


class RdmaVerbs:
    """All sixteen verbs of a library."""

    def __init__(self, library: str = LIBRARY) -> None:
        """`library` is a file or a name for ``dlopen``. Raises NotInPlace if it cannot be loaded or lacks a verb."""
        try:
            self.library = ctypes.CDLL(library, use_errno=True)
            self.addresses = {name: address_of(getattr(self.library, f"ibv_{name}")) for name in VERBS}
        except (OSError, AttributeError) as error:
            raise NotInPlace(f"{library} is not as expected ({error})") from None

    def call(self, name: str, arguments: list[CType], result: CType | None = INT) -> Callable[..., Any]:
        """A verb as a Python callable with these types of arguments and result."""
        return ctypes.CFUNCTYPE(result, *arguments, use_errno=True)(self.addresses[name])
