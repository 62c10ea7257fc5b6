"""``tqdm.notebook`` on a rank draws text bars, unless the notebook's page shows the rank's widgets.

A text bar reaches the notebook as an unfinished line that is updated. Equal lines of several ranks are folded.
rich shows the last state of its bars as a display (rich 15.0), which becomes such a line.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from allranks.messages.events import OverwrittenLine

from .stdio import note

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

MODULE = "tqdm.notebook"
AS_TEXT = "tqdm.notebook draws text bars on ranks here: its widgets cannot reach the page."


RICH_BAR = re.compile(r"[^\n]*[━╸╺][^\n]*\d%[^\n]*\n?")
RICH_NOTHING = re.compile(r"<pre style=[^>]*></pre>\s*")
ELAPSED = re.compile(r"(\d+):(\d\d):(\d\d)")


def drawn_by_rich(data: Mapping[str, object]) -> OverwrittenLine | None:
    """The line of the bar that rich displays as text and HTML; empty if it erases one; None if it is no bar."""
    text, html = data.get("text/plain"), data.get("text/html")
    if not (isinstance(text, str) and isinstance(html, str) and len(data) == 2):
        return None
    if not RICH_BAR.fullmatch(text) and (text or not RICH_NOTHING.fullmatch(html)):
        return None
    line, times = OverwrittenLine(text), ELAPSED.findall(text)
    hours, minutes, seconds = map(int, times[-1]) if times else (0, 0, 0)
    line.seconds = 3600 * hours + 60 * minutes + seconds
    return line


class _BarFinder(importlib.abc.MetaPathFinder):
    """Finds ``tqdm.notebook`` with the other finders, and patches it when it has been loaded."""

    def __init__(self, has_widgets: Callable[[], bool]) -> None:
        self._has_widgets = has_widgets

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _choose(module, self._has_widgets)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install(has_widgets: Callable[[], bool]) -> None:
    """Patch ``tqdm.notebook`` now, or at its first import if it is not imported yet."""
    if MODULE in sys.modules:
        _choose(sys.modules[MODULE], has_widgets)
    else:
        sys.meta_path.insert(0, _BarFinder(has_widgets))


def _choose(module: Any, has_widgets: Callable[[], bool]) -> None:
    class TextBar(module.std_tqdm):
        """tqdm's own text bar, which accepts the arguments of the notebook's bar."""

        _told = False

        def __init__(self, *args: object, **kwargs: object) -> None:
            if not TextBar._told and not kwargs.get("disable"):
                TextBar._told = True
                note(AS_TEXT)
            kwargs.pop("display", None)
            if isinstance(kwargs.get("ncols"), str):  # a width of the page, such as "100%"
                del kwargs["ncols"]
            super().__init__(*args, **kwargs)

    class Bar(module.tqdm_notebook):
        """A bar of the kind that the page of the running cell can show."""

        def __new__(cls, *args: object, **kwargs: object) -> Any:
            if has_widgets() and module.IProgress is not None:
                return super().__new__(cls, *args, **kwargs)
            return TextBar(*args, **kwargs)

    def trange(*args: int, **kwargs: object) -> object:
        return Bar(range(*args), **kwargs)

    module.tqdm = module.tqdm_notebook = Bar
    module.trange = module.tnrange = trange
