"""Has the text of a cell transformed at most once, and searched once for `await`.

ipykernel (7.4) does both to find out whether the cell awaits. If it does not, IPython (9.18) does both again. The
transformation takes longer than the rest of IPython's work for a short cell, and 0.6 ms for 30 lines: it splits them
into tokens to look for magics and commands. Text without any is not split.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

_SPECIAL = re.compile(
    r"^[^\S\n]*(?:[%!?,;/]|>>>|\.\.\.|In |\[(?:ins|nav))"  # at the beginning of a line: magics, commands, prompts
    r"|^[^\S\n]+$"  # of blanks only: IPython removes them
    r"|=[\s\\]*[%!]"  # assigned from a magic or a command
    r"|\?"  # at the end of a line: help
    r"|[\r\v\f\x1c-\x1e\x85\u2028\u2029]",  # where a line may begin as well
    re.MULTILINE,
)


def is_plain(text: str) -> bool:
    """Whether IPython's own transformers leave this text as it is; False also for some that they leave so."""
    return text != "" and not text[0].isspace() and not _SPECIAL.search(text)


class TransformOnce:
    """Keeps what IPython's shell found out about a cell's text, from `begin` until the cell's code runs."""

    def __init__(self, shell: Any) -> None:
        self._transform: Callable[[str], str] = shell.transform_cell
        self._awaits: Callable[..., bool] = shell.should_run_async
        self._keeps = False
        self._texts = dict[str, str]()
        self._answers = dict[str, bool]()
        shell.transform_cell, shell.should_run_async = self._transform_once, self._look_once
        self._manager: Any = shell.input_transformer_manager
        if type(self._manager) is TransformerManager:
            made: Any = TransformerManager
            self._ipythons_own = _transformers(made())
            vars(self._manager)["transform_cell"] = self._transform_text
        shell.events.register("pre_execute", self._end)
        # ipykernel reads this signature for each cell; Python does not work it out again if the function has it.
        run = type(shell).run_cell_async
        run.__signature__ = inspect.signature(run)

    def begin(self) -> None:
        """Keep what is found out from here on: a cell is about to run."""
        self._end()
        self._keeps = True

    def _end(self) -> None:
        """Keep nothing any more: the cell's own calls may find other magics and transformers."""
        self._keeps = False
        self._texts.clear()
        self._answers.clear()

    def _transform_once(self, raw_cell: str) -> str:
        if not self._keeps:
            return self._transform(raw_cell)
        if raw_cell not in self._texts:
            self._texts[raw_cell] = self._transform(raw_cell)
        return self._texts[raw_cell]

    def _transform_text(self, text: str) -> str:
        if is_plain(text) and _transformers(self._manager) == self._ipythons_own:
            return text if text.endswith("\n") else text + "\n"
        return str(TransformerManager.transform_cell(self._manager, text))

    def _look_once(self, raw_cell: str, *, transformed_cell: str | None = None, **kwargs: Any) -> bool:
        if not self._keeps or transformed_cell is None or kwargs.get("preprocessing_exc_tuple") is not None:
            return self._awaits(raw_cell, transformed_cell=transformed_cell, **kwargs)
        if transformed_cell not in self._answers:
            self._answers[transformed_cell] = self._awaits(raw_cell, transformed_cell=transformed_cell, **kwargs)
        return self._answers[transformed_cell]


def _transformers(manager: Any) -> tuple[list[Any], ...]:
    return manager.cleanup_transforms, manager.line_transforms, manager.token_transformers
