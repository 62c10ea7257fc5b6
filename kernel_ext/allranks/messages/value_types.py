"""Type aliases for values from users' code. Such a value may be of any type."""

from __future__ import annotations

from typing import Any, TypeAlias

Namespace: TypeAlias = dict[str, Any]
"""The user's variables, by name."""
Args: TypeAlias = tuple[Any, ...]
"""The positional arguments of a call by the user's code."""
Kwargs: TypeAlias = dict[str, Any]
"""The keyword arguments of a call by the user's code."""
