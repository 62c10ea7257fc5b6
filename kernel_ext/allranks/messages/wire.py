"""How a message looks on its way: MessagePack of one of the types in this room, followed by raw buffers.

MessagePack and not JSON, since a logged loss may be NaN. What a library made, and no type here can foresee (a figure,
the state of a widget), travels inside as JSON text, which its maker chose it to fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar, Union

import msgspec

M = TypeVar("M")
JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
Buffer: TypeAlias = "bytes | bytearray | memoryview"


class NotUnderstood(ValueError):
    """Bytes that fit no message: says which field, and what was expected there."""


class Reader(Generic[M]):
    """Decodes messages of one type, or of any type made from a common base."""

    def __init__(self, kind: type[M]) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(_any_of(kind))

    def read(self, data: Buffer) -> M:
        """Raises NotUnderstood, whatever the bytes are."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise NotUnderstood(str(error)) from None


def encode(message: msgspec.Struct) -> bytes:
    """The message as bytes; text that is no Unicode (lone surrogates) is escaped."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(escaped(msgspec.to_builtins(message, builtin_types=(bytes,))))


def question_number(data: Buffer) -> int | None:
    """The number of a question that could not be read otherwise; None where there is none."""
    try:
        return _numbered.read(data).number or None
    except NotUnderstood:
        return None


def to_json(value: object) -> bytes:
    """What a library made, as JSON text; of what JSON has no word for, its ``str``."""
    return json.dumps(value, default=str).encode()


def from_json(data: bytes) -> JSON:
    """What `to_json` was given. Raises NotUnderstood."""
    try:
        found: JSON = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(str(error)) from None
    return found


def dict_from_json(data: bytes) -> dict[str, JSON]:
    """The same, of a dict. Raises NotUnderstood."""
    found = from_json(data)
    if not isinstance(found, dict):
        raise NotUnderstood(f"expected a JSON object, got {type(found).__name__}")
    return found


class _Numbered(msgspec.Struct):
    number: int


_encoder = msgspec.msgpack.Encoder()


def _any_of(kind: type[M]) -> type[M]:
    """The type itself, or the union of all that are made from it."""
    leaves = tuple(_leaves(kind))
    return Union[leaves] if len(leaves) > 1 else kind  # type: ignore[return-value]  # noqa: UP007, made while it runs


def _leaves(kind: type[M]) -> Iterable[type[M]]:
    below: list[type[M]] = kind.__subclasses__()
    if not below:
        yield kind
    for each in below:
        yield from _leaves(each)


def escaped(value: object) -> object:
    """The value with each text that is no Unicode (lone surrogates) as one that is; tuples become lists."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escaped(key): escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(each) for each in value]
    return value


_numbered = Reader(_Numbered)
