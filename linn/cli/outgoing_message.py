"""Messages to be published, and their JSON form: the lines that `linn consume --format json` prints."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from linn.core.batch.record import RESERVED_LABELS, Labels, LabelValue
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import MessageInvalid

_KEYS = ("value", "key", "routing_key", "labels", "headers")
_IGNORED = ("topic", "partition", "offset", "attempt", "id", "timestamp_ms")
"""Keys that are ignored: the target assigns new values."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """Message to be published."""

    value: bytes | None
    key: bytes | None = None
    routing_key: str = ""
    labels: Mapping[str, LabelValue] | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def size(self) -> int:
        """Bytes of value, key and headers, which `message_bytes_max` bounds."""
        headers = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.value or b"") + len(self.key or b"") + headers


def without_reserved(
    labels: Labels, headers: Sequence[tuple[str, bytes | None]]
) -> tuple[dict[str, LabelValue], list[tuple[str, bytes | None]]]:
    """Return labels and headers of a copy: labels that only the broker writes become headers of the same name.

    A copy of a dead letter keeps its story so, for people and predicates, and `linn dead-letters replay` does not
    follow it.
    """
    kept = {name: value for name, value in labels.items() if not name.startswith(RESERVED_LABELS)}
    told = [
        (name, (value if isinstance(value, str) else json.dumps(value)).encode())
        for name, value in labels.items()
        if name not in kept
    ]
    return kept, [*headers, *told]


def message_from_json(line: bytes, number: int, defaults: OutgoingMessage) -> OutgoingMessage:
    """Decode line `number` of the input; missing fields are taken from `defaults`.

    Raises MessageInvalid.
    """
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise MessageInvalid('must be an object: {"value": "...", "key": "..."}')
        return _message(document, defaults)
    except (ValueError, RecursionError) as error:
        raise MessageInvalid(f"line {number}: not JSON: {error}") from error
    except MessageInvalid as error:
        raise MessageInvalid(f"line {number}: {error.text}") from error


def _message(document: dict[str, Any], defaults: OutgoingMessage) -> OutgoingMessage:
    unknown = [key for key in document if key not in _KEYS and key not in _IGNORED]
    if unknown:
        raise MessageInvalid(f'there is no key "{unknown[0][:80]}"{did_you_mean(unknown[0], _KEYS)}')
    if "value" not in document:
        raise MessageInvalid('"value" is missing')
    changes: dict[str, Any] = {"value": _bytes("value", document["value"])}
    if "key" in document:
        changes["key"] = _bytes("key", document["key"])
    if "routing_key" in document:
        changes["routing_key"] = _checked(document, "routing_key", str, "text")
    if "headers" in document:
        changes["headers"] = _headers(document["headers"])
    if "labels" in document:
        labels = _checked(document, "labels", dict, "an object")
        headers = changes.get("headers", defaults.headers)
        changes["labels"], changes["headers"] = without_reserved(labels, headers)
    return replace(defaults, **changes)


def _checked(document: dict[str, Any], key: str, kind: type, words: str) -> Any:
    if not isinstance(document[key], kind):
        raise MessageInvalid(f'"{key}" must be {words}')
    return document[key]


def _headers(document: Any) -> list[tuple[str, bytes | None]]:
    pairs = list(document.items()) if isinstance(document, dict) else document
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise MessageInvalid('"headers" must be an object, or a list of [name, value]')
    return [(name, _bytes(f"headers.{name}", value)) for name, value in pairs]


def _bytes(name: str, document: Any) -> bytes | None:
    if document is None:
        return None
    if isinstance(document, str):
        try:
            return document.encode()
        except UnicodeEncodeError as error:
            raise MessageInvalid(f'"{name}" holds half a surrogate pair, which is not valid Unicode') from error
    if isinstance(document, dict) and list(document) == ["base64"] and isinstance(document["base64"], str):
        try:
            return base64.b64decode(document["base64"], validate=True)
        except binascii.Error as error:
            raise MessageInvalid(f'"{name}" is not base64: {error}') from error
    raise MessageInvalid(f'"{name}" must be text, null or {{"base64": "..."}}; a JSON document goes in as text')
