"""Cells that fail on this rank without running, since it cannot read the options that they came with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from allranks.messages.cell_options import CellOptions, CellRequest

from .recorder import CellRecorder


def refused(recorder: CellRecorder, sent: Mapping[str, Any], because: str) -> None:
    """End the cell with an error; one that has no number cannot be answered at all. In the main thread."""
    number, sender = sent.get("number"), sent.get("sender", "")
    if not isinstance(number, int) or not isinstance(sender, str):
        logging.getLogger("allranks").error("a cell was dropped: %s", because)
        return
    request = CellRequest(number=number, count=number, options=CellOptions(), sender=sender)
    if not recorder.is_copy(request):
        recorder.begin(request, None)
        name = "CellRefused"
        recorder.error({"ename": name, "evalue": because, "traceback": [f"{name}: {because}"]})
        recorder.end(None, False)
