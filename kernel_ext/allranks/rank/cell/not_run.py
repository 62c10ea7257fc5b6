"""Cells that fail on this rank without running, because the rank cannot read their options."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from allranks.messages.cell_options import CellOptions, CellRequest

from .recorder import CellRecorder


def refused(recorder: CellRecorder, sent: Mapping[str, object], because: str) -> None:
    """End the cell with an error, in the main thread; a cell without a valid number or sender is only logged."""
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
