"""Runs on a host under the Python that is to run ranks, whatever its version; nothing need be installed.

``probe NAME...`` tells, as one line of JSON, versions, libraries and what each host's name resolves to there.
``probe --reach PORT SECONDS COUNT ADDRESS:PORT...`` listens until COUNT hosts have connected, and meanwhile tries to
connect to each ADDRESS:PORT.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import platform
import socket
import sys
import threading
import time
from typing import Any


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


def mlx_devices() -> dict[str, Any]:
    try:
        import mlx.core as mx

        return {"gpu": bool(mx.is_available(mx.gpu)), "cuda": bool(mx.cuda.is_available())}
    except Exception as error:
        return {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}


def facts(names: list[str]) -> dict[str, Any]:
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


def reach(port: int, seconds: float, count: int, others: list[str]) -> dict[str, str]:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("0.0.0.0", port))
        listener.listen(64)
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, str(error))}
    end = time.time() + seconds
    answers: dict[str, str] = {}

    def connect(other: str) -> None:
        address, _, its_port = other.rpartition(":")
        said = ""
        while time.time() < end:
            try:
                socket.create_connection((address, int(its_port)), max(0.2, end - time.time())).close()
                answers[other] = ""
                return
            except socket.timeout:  # noqa: UP041  (TimeoutError from Python 3.10 on)
                said = "timed out"
            except OSError as error:
                said = errno.errorcode.get(error.errno or 0, str(error))
                time.sleep(0.1)  # it may not listen yet
        answers[other] = said

    threads = [threading.Thread(target=connect, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    came = 0
    while came < count and time.time() < end:
        listener.settimeout(max(0.01, end - time.time()))
        try:
            listener.accept()[0].close()
            came += 1
        except OSError:  # nobody came in time
            break
    for thread in threads:
        thread.join()
    return answers


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reach"]:
        print(json.dumps(reach(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])))
    else:
        print(json.dumps(facts(sys.argv[1:])))
