"""The hosts of a world that runs on one machine, as a backend is asked about them."""

from __future__ import annotations

from allranks_backends.plan import Platform, Site


def on_one(platform: Platform, size: int) -> tuple[Site, ...]:
    """Return a tuple with this machine as the only host, on which all `size` ranks of a world run."""
    return (Site("localhost", platform, size),)
