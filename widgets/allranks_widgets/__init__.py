"""The pictures of a world: each draws a Snapshot, and knows nothing of clusters."""

from .status import human_bytes, status_html, status_text

__all__ = ["human_bytes", "status_html", "status_text"]
