"""What this machine can run, found out without joining a world."""

from __future__ import annotations

import platform

from allranks_backends.plan import Platform
from allranks_backends.protocol import BackendError
from allranks_backends.runtimes.mpi import find_mpirun, loads, mpi_library


def this_platform(mpirun: str | None = None) -> Platform:
    """Return this machine's ``Platform``, in about 0.2 s. ``mpirun`` is a path that the user named, if any.

    MLX for CUDA starts the CUDA driver in this process, so this process must not fork ranks afterwards. Raises
    BackendError if MLX cannot be imported.
    """
    try:
        import mlx.core as mx  # imported here, so that planning for other machines needs no mlx
    except ImportError as error:
        raise BackendError(f"MLX cannot be imported: {error}. {import_advice(str(error))}".rstrip()) from error

    found = find_mpirun(mpirun)
    jaccl = mx.distributed.is_available("jaccl")
    available = {
        "ring": mx.distributed.is_available("ring"),
        "jaccl": jaccl,
        "jaccl-ring": jaccl,
        # mlx is not asked: it would open MLX_MPI_LIBNAME once in this process and cache the answer.
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


def import_advice(error: str) -> str:
    """Return advice for an import of MLX that failed with `error`; empty if there is no advice.

    MLX for CUDA (0.32.4) allocates memory through the driver on import, so the import fails without a driver.
    """
    if "cuda" in error.lower():
        return (
            "This MLX is built for CUDA: it needs an NVIDIA GPU and its driver (nvidia-smi shows both)."
            ' For CPU ranks, install "allranks[cpu]" into an environment of its own'
        )
    if "cannot open shared object" in error:
        return (
            "A library that MLX needs is missing. Install it again with all it needs: pip install --force-reinstall"
            ' "mlx[cpu]", or "mlx[cuda12]" or "mlx[cuda13]" with NVIDIA GPUs'
        )
    return ""
