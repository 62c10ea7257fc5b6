"""Snapshots as JSON, for pages and recordings. Fields that have their default are left out, and fields of newer
versions are ignored."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from allranks_backends.views import Snapshot

OLD_NAMES = {"epoch": "generation", "seq": "number"}
"""Maps the names of fields in recordings of version 0.1 to their present names."""
_NO_DEFAULT = object()


def to_dict(value: object) -> Any:
    """Convert a value to JSON types. A dataclass becomes a dict without the fields that have their default."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    plain = {}
    kind: Any = type(value)
    for name, default in _defaults(kind):
        held = getattr(value, name)
        if held is not default and held != default:
            plain[name] = to_dict(held)
    return plain


def from_dict(kind: Any, plain: Any) -> Any:
    """Convert ``plain`` to ``kind``, which is a dataclass or the annotation of a field; the inverse of `to_dict`."""
    origin = typing.get_origin(kind)
    if origin is types.UnionType or origin is typing.Union:
        return None if plain is None else from_dict(typing.get_args(kind)[0], plain)
    if origin is tuple:
        return tuple(from_dict(typing.get_args(kind)[0], item) for item in plain)
    if origin is not None and isinstance(plain, Mapping):
        return MappingProxyType(dict(plain))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields = _annotations(kind)
        plain = {OLD_NAMES.get(name, name): held for name, held in plain.items()}
        return kind(**{name: from_dict(fields[name], held) for name, held in plain.items() if name in fields})
    return plain


def to_json(snapshot: Snapshot) -> str:
    """Return the Snapshot as one line of JSON."""
    return json.dumps(to_dict(snapshot), separators=(",", ":"), ensure_ascii=False)


def from_json(text: str | bytes) -> Snapshot:
    """Return the Snapshot that `to_json` wrote, possibly in another version of allranks.

    Raises ValueError if the text is not JSON, and TypeError if a field without a default is missing.
    """
    snapshot: Snapshot = from_dict(Snapshot, json.loads(text))
    return snapshot


@cache
def _defaults(kind: Any) -> tuple[tuple[str, object], ...]:
    def default(field: dataclasses.Field[object]) -> object:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return _NO_DEFAULT if field.default is dataclasses.MISSING else field.default

    return tuple((field.name, default(field)) for field in dataclasses.fields(kind))


@cache
def _annotations(kind: type) -> dict[str, object]:
    return typing.get_type_hints(kind)
