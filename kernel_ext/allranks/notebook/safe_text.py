"""Make remote text safe to show: colours are kept, and other controls of a terminal or a notebook are removed."""

from __future__ import annotations

import re

_SUSPECT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, C1 included; all but newline and tab."""

# The length of a control string (OSC: titles, hyperlinks, the clipboard; DCS, SOS, PM, APC) is limited, so that an
# unclosed string costs only a bounded look-ahead and no text is lost: the last branch then removes just its opening.
_ESCAPE = re.compile(
    r"\x1b(?:"
    r"(?P<sgr>\[[0-9;:]*m)"
    r"|[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)"
    r"|\[[0-?]*[ -/]*[@-~]"
    r"|[ -/]+[0-~]"
    r"|[0-~]"
    r")?"
)
_SGR = re.compile(r"\x1b\[([0-9;:]*)m")
RESET = "\x1b[0m"


def clean(text: str) -> str:
    """``text`` as a terminal would show it: carriage returns applied, SGR colours kept, other controls removed."""
    if not _SUSPECT.search(text):
        return text
    if "\x1b" in text:
        text = _ESCAPE.sub(lambda match: match[0] if match["sgr"] else "", text)
    if "\r" in text:
        text = "\n".join([_overlaid(line) if "\r" in line else line for line in text.split("\n")])
    return _SUSPECT.sub(lambda match: "\x1b" if match[0] == "\x1b" else "", text)


def plain(text: str) -> str:
    """``clean`` text without colours."""
    return _SGR.sub("", clean(text))


def _overlaid(line: str) -> str:
    """The visible text of a line with carriage returns: the last part that is not empty."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def closed_lines(text: str) -> str:
    """Clean text in which each line closes the colours that it opened, and the next line opens them again.

    Otherwise a colour that spans lines would also apply to the labels in front of the lines.
    """
    if "\x1b" not in text:
        return text
    lines, open_codes = text.split("\n"), ""
    for i, line in enumerate(lines):
        start = open_codes
        for match in _SGR.finditer(line):
            codes = match[1]
            open_codes = "" if codes in ("", "0") else open_codes + match[0] if len(open_codes) < 64 else match[0]
        lines[i] = start + line + (RESET if open_codes else "")
    return "\n".join(lines)
