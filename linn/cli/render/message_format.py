"""Formats of messages: the value, a line of JSON, indented JSON, or a template with fields in braces."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from datetime import UTC
from typing import Any

import typer

from linn.cli.moment import moment_text
from linn.client.consume.message import Message
from linn.core.errors.texts import did_you_mean, printable

LineOf = Callable[[Message], bytes]
_Field = Callable[[Message], bytes]

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([^{}]+)|[{}]")
_CELL_CHARACTERS_MAX = 40
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def line_format(form: str, *, time: bool = False, raw: bool = False, printed: bool = True) -> LineOf:
    """Return the format for `--format`, `--time` and `--raw`. Raises BadParameter.

    `printed`: the lines go to stdout. If that is a terminal, values are shown without the characters that it would act
    on, unless `raw`, and pretty JSON is coloured.
    """
    on_terminal = printed and sys.stdout.isatty()
    if raw and form in ("json", "pretty"):
        instead = f"{form} escapes control characters everywhere"
        raise typer.BadParameter(f"works only with text and templates; {instead}", param_hint="--raw")
    line_of = _line_format(form, time=time, coloured_output=on_terminal)
    if raw or not on_terminal or form == "pretty":
        return line_of
    return lambda message: printable(line_of(message).decode(errors="backslashreplace")).encode()


def _line_format(form: str, *, time: bool, coloured_output: bool) -> LineOf:
    if time and form != "text":
        instead = "a template has {time}" if "{" in form else f"{form} has the time of each message"
        raise typer.BadParameter(f"works only with --format text; {instead}", param_hint="--time")
    if form == "text":
        return timed_line if time else value_line
    if form == "json":
        return json_line
    if form == "pretty":
        return coloured if coloured_output else pretty
    if "{" not in form:
        raise typer.BadParameter(
            f'{form!r} is not text, json, pretty or a template like "{{offset}} {{value}}"', param_hint="--format"
        )
    parts = [_part(found) for found in _PART.finditer(form)]
    return lambda message: b"".join([part(message) for part in parts]) + b"\n"


def _part(found: re.Match[str]) -> _Field:
    text, name = found[0], found[1]
    if name is not None:
        return _field(name)
    if text in "{}":
        raise typer.BadParameter(f'a lone "{text}" in the template; write "{text * 2}" for one', param_hint="--format")
    plain = {"{{": "{", "}}": "}"}.get(text, text)
    literal = re.sub(r"\\[nt\\]", lambda escape: _ESCAPES[escape[0]], plain).encode(errors="surrogateescape")
    return lambda message: literal


def _field(name: str) -> _Field:
    kind, dot, own = name.partition(".")
    if dot and own and kind == "label":
        return lambda message: _label(message, own)
    if dot and own and kind == "header":
        return lambda message: next((value or b"" for key, value in message.headers if key == own), b"")
    if name not in FIELDS:
        known = [*FIELDS, "label.NAME", "header.NAME"]
        raise typer.BadParameter(f"a message has no {{{name}}}{did_you_mean(name, known)}", param_hint="--format")
    return FIELDS[name]


def _text(of: Callable[[Message], Any]) -> _Field:
    return lambda message: str(of(message)).encode(errors="surrogateescape")


def _label(message: Message, name: str) -> bytes:
    value = message.labels.get(name, "")
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _utc(message: Message) -> str:
    return moment_text(message.timestamp_ms, UTC, "milliseconds")


def _local(message: Message) -> str:
    """Format the local time as `--since` takes it."""
    return moment_text(message.timestamp_ms)


FIELDS: dict[str, _Field] = {
    "value": lambda message: message.value or b"",
    "key": lambda message: message.key or b"",
    "routing_key": _text(lambda message: message.routing_key),
    "topic": _text(lambda message: message.topic),
    "partition": _text(lambda message: message.partition),
    "offset": _text(lambda message: message.offset),
    "attempt": _text(lambda message: message.attempt),
    "id": _text(lambda message: message.id),
    "time": _text(_local),
    "timestamp": _text(_utc),
    "timestamp_ms": _text(lambda message: message.timestamp_ms),
    "size": _text(lambda message: len(message.value or b"")),
    "labels": lambda message: json.dumps(dict(message.labels), ensure_ascii=False).encode(),
}
"""Fields that a template can name, beside label.NAME and header.NAME."""


def value_line(message: Message) -> bytes:
    """Format the value and a line feed. A tombstone is an empty line."""
    return (message.value or b"") + b"\n"


def timed_line(message: Message) -> bytes:
    """Format the time, a space, and the value."""
    return _local(message).encode() + b" " + value_line(message)


def json_line(message: Message) -> bytes:
    """Format all fields as one line of JSON. Bytes that are not UTF-8 become {"base64": "..."}."""
    return json_escaped(json.dumps(_everything(message), ensure_ascii=False)).encode() + b"\n"


def pretty(message: Message) -> bytes:
    """Format all fields as indented JSON, for people: with the time as text, and a JSON value unpacked."""
    return _indented(message).encode() + b"\n"


def coloured(message: Message) -> bytes:
    """Format as `pretty`, in the colours that the terminal has."""
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    from linn.cli.render.console import console

    text = Text(_indented(message))
    JSONHighlighter().highlight(text)
    with console().capture() as captured:
        console().print(text, soft_wrap=True)
    return captured.get().encode()


def _indented(message: Message) -> str:
    data: dict[str, Any] = {}
    for name, content in _everything(message).items():
        data[name] = content
        if name == "timestamp_ms":
            data["time"] = _local(message)
    value = data["value"]
    data["value"] = _unpacked(value) if isinstance(value, str) else value
    try:
        text = json.dumps(data, ensure_ascii=False, indent=2)
    except RecursionError:
        text = json.dumps(data | {"value": value}, ensure_ascii=False, indent=2)
    return json_escaped(text)


def json_escaped(text: str) -> str:
    """Write control characters in a JSON text as its escapes, and surrogates, which UTF-8 does not have."""
    if text.isprintable():
        return text
    return "".join(part if part.isprintable() or part == "\n" else json.dumps(part)[1:-1] for part in text)


def _unpacked(text: str) -> Any:
    """Decode a text that is JSON, or return it as it is."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> None:
    """Raise ValueError for NaN and infinities, which Python decodes although JSON does not have them."""
    raise ValueError(constant)


def _everything(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "attempt": message.attempt,
        "id": str(message.id),
        "timestamp_ms": message.timestamp_ms,
        **properties_of(message),
        "value": readable(message.value),
    }


def properties_of(message: Message) -> dict[str, Any]:
    """Return the properties that a producer gives a message, in a form for JSON."""
    record = message.record()
    return {
        "key": readable(record.key),
        "routing_key": record.routing_key,
        "labels": dict(record.labels),
        "headers": [[name, readable(value)] for name, value in record.headers],
    }


def beginning_of(data: bytes | None) -> str:
    """Return the beginning of a value or a key, for a cell of a table."""
    text = (data or b"")[: 4 * _CELL_CHARACTERS_MAX].decode(errors="replace")
    return text if len(text) <= _CELL_CHARACTERS_MAX else f"{text[: _CELL_CHARACTERS_MAX - 3]}..."


def readable(data: bytes | None) -> Any:
    """Return bytes in a form for JSON: text where they are UTF-8, else base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
