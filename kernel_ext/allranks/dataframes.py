"""Helpers of all functions that return a pandas DataFrame."""

from __future__ import annotations

from typing import Any

from allranks.errors import UsageError


def imported_pandas(function: str) -> Any:
    """Import pandas, which is not a dependency. Raises UsageError that names the user's `function`."""
    try:
        import pandas
    except ImportError:
        raise UsageError(f"{function} returns a DataFrame: pip install pandas.") from None
    return pandas


def utc(seconds: Any) -> Any:
    """Convert Unix times in seconds to timestamps in UTC."""
    return imported_pandas("utc()").to_datetime(seconds, unit="s", utc=True)
