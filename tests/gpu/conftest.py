"""What ran where stands at the head of the report: docs/hardware.md is filled in from it."""

from __future__ import annotations

import pytest

from tests.gpu import worlds


def pytest_report_header(config: pytest.Config) -> list[str]:
    return worlds.machine() if any("gpu" in str(each) for each in config.args) else []
