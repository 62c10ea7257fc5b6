"""Finds the IPython shell of this process without importing IPython, which scripts do not need."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def running_shell() -> InteractiveShell | None:
    """The shell of this notebook or terminal; None in a script."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def autoreloads() -> bool:
    """Whether this process is a notebook or IPython that reloads all imported modules (`%autoreload 2`)."""
    shell = running_shell()
    magics = shell.magics_manager.registry.get("AutoreloadMagics") if shell is not None else None
    reloader = getattr(magics, "_reloader", None)  # IPython 9.18
    return bool(reloader is not None and reloader.enabled and reloader.check_all)
