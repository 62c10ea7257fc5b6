"""Helpers for functions that return a pandas DataFrame."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from allranks.errors import UsageError

if TYPE_CHECKING:
    import pandas


def imported_pandas(function: str) -> ModuleType:
    """Import pandas. Raises UsageError, which names the `function` that the user called, if pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise UsageError(f"{function} returns a DataFrame: pip install pandas.") from None
    module: ModuleType = pandas
    return module


def utc(seconds: object) -> pandas.DatetimeIndex | pandas.Series:
    """Convert Unix times in seconds to timestamps in UTC."""
    return imported_pandas("utc()").to_datetime(seconds, unit="s", utc=True)
