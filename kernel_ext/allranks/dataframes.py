"""What all functions share that return a pandas DataFrame."""

from __future__ import annotations

from typing import Any

from allranks.errors import UsageError


def imported_pandas(function: str) -> Any:
    """The module, which is no dependency. Raises UsageError, in which the user's `function` is named."""
    try:
        import pandas
    except ImportError:
        raise UsageError(f"{function} returns a DataFrame: pip install pandas.") from None
    return pandas


def utc(seconds: Any) -> Any:
    """Unix times in seconds as timestamps in UTC."""
    return imported_pandas("utc()").to_datetime(seconds, unit="s", utc=True)
