"""On PYTHONPATH: has MLX call the lab's JACCL as soon as ``mlx.core`` is imported, in every process."""

import ctypes
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "mlx.core":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                if code := ctypes.CDLL(os.environ["LAB_GLUE"]).jaccl_lab_install():
                    raise ImportError(f"the lab for JACCL does not fit this version of MLX ({code})")

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if "LAB_GLUE" in os.environ:
    sys.meta_path.insert(0, _Finder)
