"""Pictures and recordings of a world, made from Snapshots and logged values without access to the cluster."""

from typing import TYPE_CHECKING, Any

from .status import human_bytes, status_html, status_text

if TYPE_CHECKING:
    from .dashboard import Dashboard
    from .recording import Recorder, replay
    from .snapshot_json import from_json, to_json

__all__ = [
    "Dashboard",
    "Recorder",
    "from_json",
    "human_bytes",
    "replay",
    "status_html",
    "status_text",
    "to_json",
]


def __getattr__(name: str) -> Any:
    # A script that never shows a picture must not wait for the import of anywidget.
    if name == "Dashboard":
        from .dashboard import Dashboard

        return Dashboard
    if name in ("Recorder", "replay"):
        from . import recording

        return getattr(recording, name)
    if name in ("from_json", "to_json"):
        from . import snapshot_json

        return getattr(snapshot_json, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
