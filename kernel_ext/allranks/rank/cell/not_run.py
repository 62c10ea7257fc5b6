"""Cells that fail on this rank without running: they never arrived, or came with options that it cannot read.

Called in the main thread, as everything that begins and ends a cell.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from allranks.messages.cell_options import CellOptions, CellRequest

from .recorder import CellRecorder


def undelivered(recorder: CellRecorder, request: CellRequest, because: str) -> None:
    """The cell never arrived. It does not run if it comes after all."""
    _fail(recorder, request, "CellLost", because)


def refused(recorder: CellRecorder, sent: Any, because: str) -> None:
    """The cell came with options that cannot be; one that has no number cannot even be answered."""
    number, sender = (sent.get("number"), sent.get("sender", "")) if isinstance(sent, Mapping) else (None, "")
    if isinstance(number, int) and isinstance(sender, str):
        request = CellRequest(number=number, count=number, options=CellOptions(), sender=sender)
        _fail(recorder, request, "CellRefused", because)
    else:
        logging.getLogger("allranks").error("a cell was dropped: %s", because)


def _fail(recorder: CellRecorder, request: CellRequest, ename: str, because: str) -> None:
    if not recorder.is_copy(request):
        recorder.begin(request, None)
        recorder.error({"ename": ename, "evalue": because, "traceback": [f"{ename}: {because}"]})
        recorder.end(None, False)
