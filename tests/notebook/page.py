"""A page in memory, and blocks to show on it."""

from __future__ import annotations

from typing import Any

from IPython.core.displaypub import DisplayPublisher

from allranks.notebook.fold import Block

ALL = (0, 1, 2, 3)
PNG = {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}


class Page(DisplayPublisher):
    """What a front end makes of what is published: outputs in order, updates in place, clears."""

    outputs: list[list[Any]]  # [stream name, text] or [display id, data]
    waiting = False
    clears = 0

    def publish(self, data: Any, metadata: Any = None, source: Any = None, **how: Any) -> None:
        name, update = (how.get("transient") or {}).get("display_id"), how.get("update", False)
        if not update:
            self.add([name, dict(data)])
        for output in self.outputs if update else ():
            if output[0] == name:
                output[1] = dict(data)

    def clear_output(self, wait: bool = False) -> None:
        self.clears += 1
        self.waiting = wait
        if not wait:
            self.outputs.clear()

    def add(self, output: list[Any]) -> None:
        if self.waiting:
            self.outputs.clear()
            self.waiting = False
        self.outputs.append(output)

    def text(self) -> str:
        return "".join(shown if isinstance(shown, str) else f"<{shown_form(shown)}>\n" for _, shown in self.outputs)


def shown_form(data: dict[str, Any]) -> str:
    return str(next((data[mime] for mime in ("text/html", "image/png", "text/plain") if mime in data), ""))


class Stream:
    def __init__(self, page: Page, name: str) -> None:
        self.page, self.name = page, name

    def write(self, text: str) -> None:
        self.page.add([self.name, text])

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def text(content: str, ranks: tuple[int, ...] = ALL, stream: str = "stdout") -> Block:
    return Block("text", ranks, content, stream)


def rich(kind: Any, data: dict[str, Any] | str, ranks: tuple[int, ...] = ALL, name: str | None = None) -> Block:
    data = {"text/plain": data} if isinstance(data, str) else data
    content: dict[str, Any] = {"data": data, "metadata": {}, "display_id": name}
    if name:
        content["ids"] = dict.fromkeys(ranks, name)
    return Block(kind, ranks, content)


def html(body: str) -> dict[str, Any]:
    return {"text/html": body, "text/plain": "plain"}
