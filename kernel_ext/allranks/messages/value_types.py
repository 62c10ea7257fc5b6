"""Names for the types of values that belong to users' code: those may be anything."""

from __future__ import annotations

from typing import Any, TypeAlias

Namespace: TypeAlias = dict[str, Any]
"""The user's variables, by name."""
Args: TypeAlias = tuple[Any, ...]
"""The positional arguments of a call by the user's code."""
Kwargs: TypeAlias = dict[str, Any]
"""The keyword arguments of a call by the user's code."""
