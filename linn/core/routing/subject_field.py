"""The fields of a message that routing can examine, in their notation: `label.region`, `header["my kind"]`, `key`.

`size` is the size of the value in bytes. Names with characters other than ASCII letters, digits, `_`, `-` and dots
between them stand in brackets and quotes. `labels` and `headers` are synonyms of `label` and `header`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Literal, NamedTuple

from linn.core.routing.exchange import Subject

FieldKind = Literal["label", "header", "key", "routing_key", "size"]
FieldValue = str | int | float | bool | bytes

_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


class SubjectField(NamedTuple):
    """One field; equal ones examine the same thing."""

    kind: FieldKind
    name: str = ""
    """The name of the label or header; otherwise empty."""

    @property
    def asks(self) -> str | None:
        """The field's name in the exchange port; None if every exchange is given it anyway."""
        if self.kind == "header":
            return f"header:{self.name}"
        return self.kind if self.kind in ("key", "size") else None

    @property
    def holds(self) -> str:
        """The type of its values, worded for an error."""
        if self.kind == "label":
            return "text, a number, true or false"
        return "a number" if self.kind == "size" else "text"

    def reader(self) -> Callable[[Subject], FieldValue | None]:
        """Make a function that reads the field; it returns None if the message has none."""
        name = self.name
        if self.kind == "label":
            return lambda subject: subject.labels.get(name)
        if self.kind == "header":
            return lambda subject: subject.headers.get(name)
        return attrgetter(self.kind)

    def as_read(self, value: str | int | float | bool) -> FieldValue:
        """A literal in the type that the reader returns: headers and keys are bytes, and are compared as UTF-8."""
        return value.encode() if isinstance(value, str) and self.kind in ("key", "header") else value

    def __str__(self) -> str:
        if self.kind not in ("label", "header"):
            return self.kind
        return f"{self.kind}.{self.name}" if _NAME.fullmatch(self.name) else f"{self.kind}[{quoted(self.name)}]"


def quoted(text: str) -> str:
    """Text as a predicate's literal: in double quotes, with escapes for invisible characters."""
    return '"' + "".join(_ESCAPED.get(character) or _printable(character) for character in text) + '"'


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
