"""Compile the lab against the installed MLX, once for each version of MLX and of the lab's sources.

``python -m tests.jaccl.lab.build`` says where it is and how to use it.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "jaccl-lab"
HEADERS = ("infiniband/verbs.h", "nlohmann/json.hpp")
INCLUDES = (Path("/usr/include"), Path("/usr/local/include"))
# The loops ask for a version of macOS; from 26.3 on they use all sizes of buffers.
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w", "-D__builtin_available(...)=true")


@dataclass(frozen=True)
class Built:
    verbs: Path
    """The verbs library; its soname is that of macOS's."""
    glue: Path
    """What MLX is made to call; it has the table of verbs, in a library that is named as the one on macOS."""


def missing() -> str | None:
    """Why the lab cannot be built here; None where it can."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "the lab for JACCL needs x86-64 Linux"
    if shutil.which("g++") is None:
        return "the lab for JACCL needs g++ (apt-get install g++)"
    absent = [name for name in HEADERS if not any((folder / name).exists() for folder in INCLUDES)]
    if absent:
        return f"the lab for JACCL needs {absent[0]} (apt-get install libibverbs-dev nlohmann-json3-dev)"
    return None


def build() -> Built:
    """The lab for the installed MLX. Raises CalledProcessError where it does not compile."""
    folder = CACHE / f"{importlib.metadata.version('mlx')}-{_hash()}"
    built = Built(folder / "librdma.so", folder / "libjaccl.so")
    with _locked():
        if not built.glue.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _compile(HERE / "verbs", built.verbs, ["-Wl,-soname,librdma.dylib"])
            mlx = _mlx()
            headers = [f"-I{mlx / 'include'}", f"-I{mlx / 'include/mlx/distributed/jaccl/lib'}"]
            _compile(HERE / "glue", built.glue, [f"-L{mlx / 'lib'}", "-lmlx", "-fvisibility=hidden", *headers])
    return built


def _mlx() -> Path:
    """The folder of MLX, without importing it."""
    spec = importlib.util.find_spec("mlx")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def _hash() -> str:
    sources = sorted(HERE.glob("*/*.cpp")) + sorted(HERE.glob("*/*.h")) + [Path(__file__)]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]


@contextmanager
def _locked() -> Iterator[None]:
    """Two workers of pytest build it once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(sources: Path, library: Path, flags: list[str]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: _object(source, library.parent, flags), sorted(sources.glob("*.cpp"))))
    made = library.with_suffix(".new")
    _run(["g++", "-shared", "-o", str(made), *map(str, objects), *flags, "-ldl", "-pthread"])
    made.rename(library)


def _object(source: Path, folder: Path, flags: list[str]) -> Path:
    made = folder / f"{source.parent.name}-{source.stem}.o"
    _run(["g++", *FLAGS, "-c", str(source), "-o", str(made), *(flag for flag in flags if not flag.startswith("-Wl,"))])
    return made


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr[-4000:])


if __name__ == "__main__":
    if (why := missing()) is not None:
        sys.exit(why)
    at = build()
    print(f"allranks: JACCL's loops for this machine are in {at.glue.parent}.")
    print("To use them, start JupyterLab, or any other command, with 4 ranks and 2 pretended cables between every two:")
    print("  .venv/bin/python -m tests.jaccl.lab.shell 4 2 .venv/bin/jupyter lab")
    print("and form the world in a notebook:")
    print("  %distributed up --hostfile $LAB_HOSTFILE --backend jaccl")
