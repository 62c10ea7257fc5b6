"""How MLX ends a rank at an error of NCCL: ``CHECK_NCCL`` writes a line on stderr and calls C's exit(1) (0.32.4)."""

NCCL_ERROR = "NCCL error nccl.cpp:356 'unhandled cuda error (run with NCCL_DEBUG=INFO for details)'"
EXITS = f"import ctypes\nlibc = ctypes.CDLL(None)\nlibc.dprintf(2, {(NCCL_ERROR + chr(10)).encode()!r})\nlibc.exit(1)"
"""A cell that does it: no exception, none of Python's own clean-up, and C's destructors under the other threads."""
EXITS_AT_ONCE = EXITS.replace("ctypes.CDLL", "ctypes.PyDLL")
"""The same while no other thread of the rank can run Python."""
