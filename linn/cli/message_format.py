"""How a message is printed: its value, a line of JSON, or a template with its fields in braces."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import typer

from linn.client.message import Message
from linn.core.errors.nearest import did_you_mean

LineOf = Callable[[Message], bytes]
_Field = Callable[[Message], bytes]

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([^{}]+)|[{}]")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def line_format(form: str, option: str = "--format") -> LineOf:
    """What `--format` says. Raises BadParameter."""
    if form == "text":
        return value_line
    if form == "json":
        return json_line
    if "{" not in form:
        raise typer.BadParameter(
            f'{form!r} is not text, json or a template like "{{offset}} {{value}}"', param_hint=option
        )
    parts = [_part(found, option) for found in _PART.finditer(form)]
    return lambda message: b"".join([part(message) for part in parts]) + b"\n"


def _part(found: re.Match[str], option: str) -> _Field:
    text, name = found[0], found[1]
    if name is not None:
        return _field(name, option)
    if text in "{}":
        raise typer.BadParameter(f'a lone "{text}" in the template; write "{text * 2}" for one', param_hint=option)
    plain = {"{{": "{", "}}": "}"}.get(text, text)
    literal = re.sub(r"\\[nt\\]", lambda escape: _ESCAPES[escape[0]], plain).encode(errors="surrogateescape")
    return lambda message: literal


def _field(name: str, option: str) -> _Field:
    kind, dot, own = name.partition(".")
    if dot and own and kind == "label":
        return lambda message: _label(message, own)
    if dot and own and kind == "header":
        return lambda message: next((value or b"" for key, value in message.headers if key == own), b"")
    if name not in FIELDS:
        known = [*FIELDS, "label.NAME", "header.NAME"]
        raise typer.BadParameter(f"a message has no {{{name}}}{did_you_mean(name, known)}", param_hint=option)
    return FIELDS[name]


def _text(of: Callable[[Message], Any]) -> _Field:
    return lambda message: str(of(message)).encode(errors="surrogateescape")


def _label(message: Message, name: str) -> bytes:
    value = message.labels.get(name, "")
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _time(message: Message) -> str:
    return datetime.fromtimestamp(message.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


FIELDS: dict[str, _Field] = {
    "value": lambda message: message.value or b"",
    "key": lambda message: message.key or b"",
    "routing_key": _text(lambda message: message.routing_key),
    "topic": _text(lambda message: message.topic),
    "partition": _text(lambda message: message.partition),
    "offset": _text(lambda message: message.offset),
    "attempt": _text(lambda message: message.attempt),
    "id": _text(lambda message: message.id),
    "timestamp": _text(_time),
    "timestamp_ms": _text(lambda message: message.timestamp_ms),
    "size": _text(lambda message: len(message.value or b"")),
    "labels": lambda message: json.dumps(dict(message.labels), ensure_ascii=False).encode(),
}
"""What may stand in a template's braces, beside label.NAME and header.NAME."""


def value_line(message: Message) -> bytes:
    """The value, and a line's end. A tombstone is an empty line."""
    return (message.value or b"") + b"\n"


def json_line(message: Message) -> bytes:
    """Everything about a message as one line of JSON. Bytes that are not UTF-8 become {"base64": "..."}."""
    record = message.record()
    data = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "attempt": message.attempt,
        "id": str(record.id),
        "timestamp_ms": record.timestamp_ms,
        "key": readable(record.key),
        "routing_key": record.routing_key,
        "labels": dict(record.labels),
        "headers": [[name, readable(value)] for name, value in record.headers],
        "value": readable(record.value),
    }
    return json.dumps(data, ensure_ascii=False).encode() + b"\n"


def readable(data: bytes | None) -> Any:
    """Bytes for JSON: text where they are UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
