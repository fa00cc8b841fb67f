"""A message on its way out, and how a line of JSON says one: the lines that `linn consume --format json` prints."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from linn.core.batch.record import LabelValue
from linn.core.errors.nearest import did_you_mean
from linn.core.errors.tree import MessageInvalid

_KEYS = ("value", "key", "routing_key", "labels", "headers")
_PASSED_OVER = ("topic", "partition", "offset", "attempt", "id", "timestamp_ms")
"""What a message has from where it was read; where it goes gives it others."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message."""

    value: bytes | None
    key: bytes | None = None
    routing_key: str = ""
    labels: Mapping[str, LabelValue] | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def size(self) -> int:
        """Bytes as `message_bytes_max` bounds them: of value, key and headers."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers


def from_json(line: bytes, number: int, rest: Outgoing) -> Outgoing:
    """The message that line `number` of the input says; what it does not say is as in `rest`.

    Raises MessageInvalid.
    """
    try:
        said = json.loads(line)
        if not isinstance(said, dict):
            raise MessageInvalid('must be an object: {"value": "...", "key": "..."}')
        return _message(said, rest)
    except (ValueError, RecursionError) as error:
        raise MessageInvalid(f"line {number}: not JSON: {error}") from error
    except MessageInvalid as error:
        raise MessageInvalid(f"line {number}: {error.text}") from error


def _message(said: dict[str, Any], rest: Outgoing) -> Outgoing:
    unknown = [key for key in said if key not in _KEYS and key not in _PASSED_OVER]
    if unknown:
        raise MessageInvalid(f'there is no key "{unknown[0][:80]}"{did_you_mean(unknown[0], _KEYS)}')
    if "value" not in said:
        raise MessageInvalid('"value" is missing')
    changes: dict[str, Any] = {"value": _bytes("value", said["value"])}
    if "key" in said:
        changes["key"] = _bytes("key", said["key"])
    if "routing_key" in said:
        changes["routing_key"] = _checked(said, "routing_key", str, "text")
    if "labels" in said:
        changes["labels"] = _checked(said, "labels", dict, "an object")
    if "headers" in said:
        changes["headers"] = _headers(said["headers"])
    return replace(rest, **changes)


def _checked(said: dict[str, Any], key: str, kind: type, words: str) -> Any:
    if not isinstance(said[key], kind):
        raise MessageInvalid(f'"{key}" must be {words}')
    return said[key]


def _headers(said: Any) -> list[tuple[str, bytes | None]]:
    pairs = list(said.items()) if isinstance(said, dict) else said
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise MessageInvalid('"headers" must be an object, or a list of [name, value]')
    return [(name, _bytes(f"headers.{name}", value)) for name, value in pairs]


def _bytes(what: str, said: Any) -> bytes | None:
    if said is None:
        return None
    if isinstance(said, str):
        try:
            return said.encode()
        except UnicodeEncodeError as error:
            raise MessageInvalid(f'"{what}" holds half a character, which UTF-8 has no bytes for') from error
    if isinstance(said, dict) and list(said) == ["base64"] and isinstance(said["base64"], str):
        try:
            return base64.b64decode(said["base64"], validate=True)
        except binascii.Error as error:
            raise MessageInvalid(f'"{what}" is not base64: {error}') from error
    raise MessageInvalid(f'"{what}" must be text, null or {{"base64": "..."}}; a JSON document goes in as text')
