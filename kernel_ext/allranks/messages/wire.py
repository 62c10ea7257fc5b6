"""The encoding of messages: one of the types of `messages` as MessagePack, followed by raw buffers.

MessagePack is used instead of JSON since a logged loss may be NaN. Data of other libraries, such as a figure or a
widget's state, has no type here: it is sent inside a message as JSON text, for which those libraries designed it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar, Union

import msgspec

M = TypeVar("M")
JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
Buffer: TypeAlias = "bytes | bytearray | memoryview"
MESSAGE_FORMAT = 1
"""Number of the form of all messages: a notebook attaches only to ranks with the same. Raise it if the previous release
cannot read the new messages, or this one not the old. 0 means that a release had no number."""


class NotUnderstood(ValueError):
    """Bytes that match no message; the text names the field and what was expected there."""


class Reader(Generic[M]):
    """Decodes messages of one type, or of any type derived from a common base."""

    def __init__(self, kind: type[M]) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(_any_of(kind))

    def read(self, data: Buffer) -> M:
        """Decode a message. Raises only NotUnderstood, whatever the bytes are."""
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise NotUnderstood(str(error)) from None


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message; text that is not valid Unicode (lone surrogates) is escaped."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(escaped(msgspec.to_builtins(message, builtin_types=(bytes,))))


def question_number(data: Buffer) -> int | None:
    """The number of a question, even if its other fields cannot be read; None if it has none."""
    try:
        return _numbered.read(data).number or None
    except NotUnderstood:
        return None


def to_json(value: object) -> bytes:
    """Encode a library's data as JSON text; values that JSON does not support become their ``str``."""
    return json.dumps(value, default=str).encode()


def from_json(data: bytes) -> JSON:
    """Decode the output of `to_json`. Raises NotUnderstood."""
    try:
        found: JSON = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(str(error)) from None
    return found


def dict_from_json(data: bytes) -> dict[str, JSON]:
    """Same as `from_json`, for a dict. Raises NotUnderstood also if the value is not a dict."""
    found = from_json(data)
    if not isinstance(found, dict):
        raise NotUnderstood(f"expected a JSON object, got {type(found).__name__}")
    return found


class _Numbered(msgspec.Struct):
    number: int


_encoder = msgspec.msgpack.Encoder()


def _any_of(kind: type[M]) -> type[M]:
    """The type itself if it has no subclasses; otherwise the union of its subclasses that have none."""
    leaves = tuple(_leaves(kind))
    return Union[leaves] if len(leaves) > 1 else kind  # type: ignore[return-value]  # noqa: UP007, made while it runs


def _leaves(kind: type[M]) -> Iterable[type[M]]:
    below: list[type[M]] = kind.__subclasses__()
    if not below:
        yield kind
    for each in below:
        yield from _leaves(each)


def escaped(value: object) -> object:
    """Replace text that is not valid Unicode (lone surrogates) by escapes; tuples become lists."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {escaped(key): escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(each) for each in value]
    return value


_numbered = Reader(_Numbered)
