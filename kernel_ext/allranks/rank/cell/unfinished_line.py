"""The text of one of a cell's streams since the last print that ended a line.

Programs write lines in pieces (``print(x, end=" ")``), a character at a time, or over themselves (progress bars).
Earlier text is never processed again, so the time for a line is proportional to the number of its pieces.
"""

from __future__ import annotations

import io


def overlaid(text: str) -> str:
    """The text as a terminal shows it after carriage returns: the last non-empty segment of each line."""
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(next((part for part in reversed(line.split("\r")) if part), "") for line in lines)


class Unfinished:
    """The whole lines of a print that has yet to end, and the line after them. For one thread at a time."""

    def __init__(self) -> None:
        self.since = 0.0
        """The time.monotonic at which the print began."""
        self._lines, self._line = io.StringIO(), io.StringIO()
        self._returned = False
        """Whether the line ends with a carriage return, so that the next text replaces it."""
        self._blank = True
        self._overwritten = False
        """Whether text of the line replaced earlier text."""
        self.is_bar = False
        """Whether all of the text is one line that was overwritten, such as a progress bar."""
        self.size = 0
        self.has_lines = False

    def add(self, text: str) -> None:
        """Add written text, and apply its carriage returns."""
        if "\n" in text:
            text = self._end_lines(text)
        if "\r" in text:
            self._overlay(text)
        elif text:
            self._append(text)
        if self._line.tell() or not self.has_lines:
            self.is_bar = self._overwritten and not self.has_lines
        self.size = self._lines.tell() + self._line.tell()

    def last(self, size: int) -> str:
        """The last `size` characters of the text, as a terminal shows them."""
        line = _last(self._line, size)
        return _last(self._lines, size - len(line)) + line

    def take_lines(self) -> str:
        """Remove the whole lines, and return them."""
        lines, self._lines = self._lines.getvalue(), io.StringIO()
        self.has_lines, self.is_bar, self.size = False, False, self._line.tell()
        return lines

    def take(self) -> str:
        """Remove all text, and return it."""
        line = self._line.getvalue()
        self._replace("")
        if not self.has_lines:
            self.is_bar, self.size = False, 0
            return line
        return self.take_lines() + line

    def _append(self, text: str) -> None:
        if self._returned:
            self._replace(text)
        else:
            self._line.write(text)
            self._blank = self._blank and text.isspace()

    def _replace(self, text: str) -> None:
        self._overwritten = bool(text) and (self._overwritten or self._line.tell() > 0)
        self._line, self._returned, self._blank = io.StringIO(text), False, not text or text.isspace()
        self._line.seek(len(text))

    def _overlay(self, text: str) -> None:
        """Add text with carriage returns but without line ends."""
        first, *rest = text.split("\r")
        if first:
            self._append(first)
        for over in list(filter(None, rest))[-2:]:  # the last part, and one that it replaces
            self._replace(over)
        self._returned = text.endswith("\r")
        if self._blank:  # a progress bar has erased itself with blanks
            self._replace("")

    def _end_lines(self, text: str) -> str:
        """Add all whole lines of a text, and return the rest."""
        first, _, rest = text.partition("\n")
        over = list(filter(None, first.split("\r")))
        if over:
            self._append(over[0]) if first[0] != "\r" else self._replace(over[0])
            for part in over[1:][-2:]:
                self._replace(part)
        lines, newline, rest = rest.rpartition("\n")
        self.is_bar = self._overwritten and not self.has_lines and not newline
        self._lines.write(f"{self._line.getvalue()}\n{overlaid(lines + newline)}")
        self._replace("")
        self.has_lines = True
        return rest


def _last(text: io.StringIO, size: int) -> str:
    """The last `size` characters of a text whose position is at its end."""
    text.seek(max(0, text.tell() - max(0, size)))
    return text.read()
