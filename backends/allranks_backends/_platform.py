"""What this machine can run, asked of mlx without joining any world."""

from __future__ import annotations

import platform

from ._plan import Platform
from .mpi import find_mpirun, loads, mpi_library


def this_platform(mpirun: str | None = None) -> Platform:
    """This machine's ``Platform``, in about 0.2 s. ``mpirun`` is a path the user named, if any.

    Counts CUDA devices, which starts the CUDA driver in this process: do not fork ranks from it afterwards.
    """
    import mlx.core as mx  # here, so that planning for other machines needs no mlx

    found = find_mpirun(mpirun)
    jaccl = mx.distributed.is_available("jaccl")
    available = {
        "ring": mx.distributed.is_available("ring"),
        "jaccl": jaccl,
        "jaccl-ring": jaccl,
        # Not asked of mlx: it opens MLX_MPI_LIBNAME once, in this process, and remembers the answer for good.
        "mpi": found is not None and loads(mpi_library(found)),
        "nccl": mx.distributed.is_available("nccl"),
    }
    mac = platform.system() == "Darwin"
    return Platform(
        system=platform.system(),
        release=platform.mac_ver()[0] if mac else platform.release(),
        available=available,
        cuda_devices=mx.device_count(mx.gpu) if mx.cuda.is_available() else 0,
        mlx=getattr(mx, "__version__", ""),
        mpirun=found,
    )
