"""Runs on a host under the Python that is to run ranks, whatever its version; no package needs to be installed.

With host names as arguments, it prints one line of JSON: versions, which libraries load, and the addresses to which
these names and its own host name resolve there.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import socket
import sys


def versions() -> dict[str, str]:
    try:
        from importlib.metadata import PackageNotFoundError, version
    except ImportError:
        return {}
    found = {}
    for package in ("allranks", "ipyparallel", "ipykernel", "mlx"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def resolved(name: str) -> list[str]:
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError:
        return []


def loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
        return True
    except OSError:
        return False


def nccl() -> bool:
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        package = None
    folders = package.submodule_search_locations if package is not None else None
    for folder in folders or ():
        library = os.path.join(folder, "lib")
        if os.path.isdir(library) and any(loads(os.path.join(library, each)) for each in os.listdir(library)):
            return True
    return loads("libnccl.so.2")


def mpi_library() -> tuple[str, bool]:
    name = "libmpi.40.dylib" if platform.system() == "Darwin" else "libmpi.so.40"
    beside = os.path.join(os.path.dirname(os.path.dirname(sys.executable)), "lib", name)
    path = beside if os.path.exists(beside) else name
    return path, loads(path)


def mlx_devices() -> dict[str, object]:
    try:
        import mlx.core as mx

        return {"gpu": bool(mx.is_available(mx.gpu)), "cuda": bool(mx.cuda.is_available())}
    except Exception as error:
        return {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}


def facts(names: list[str]) -> dict[str, object]:
    own = socket.gethostname()
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": versions(),
        "hostname": own,
        "names": {name: resolved(name) for name in {own, *names}},
        "mpi library": mpi_library(),
        "nccl": nccl(),
        "mlx": mlx_devices(),
    }


if __name__ == "__main__":
    print(json.dumps(facts(sys.argv[1:])))
