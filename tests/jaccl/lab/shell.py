"""Run a command in the lab: ``python -m tests.jaccl.lab.shell RANKS WIRES COMMAND...``; see `make jaccl-lab`."""

from __future__ import annotations

import os
import subprocess
import sys

from .build import build
from .lab import Lab


def main(ranks: str, wires: str, *command: str) -> int:
    lab = Lab(build(), int(ranks), int(wires))
    try:
        return subprocess.run(command, env={**os.environ, **lab.env(LAB_HOSTFILE=str(lab.hostfile()))}).returncode
    finally:
        lab.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
