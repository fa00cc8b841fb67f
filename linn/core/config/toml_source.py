"""A TOML text with positions: tomllib gives the values, a small scanner finds the line of each key.

Laws: only tomllib decides whether a text is TOML; the scanner only reads text that tomllib has accepted, and only when
a problem needs a line number.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from typing import Any

from linn.core.errors.tree import ConfigUnreadable

Path = tuple[str | int, ...]
"""A place in a TOML document: keys, and indexes into arrays, such as ("topics", "delays", "bindings", 0, "key")."""

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|[A-Za-z0-9_-]+')
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})|' + r"'''.*?'''(?:'{0,2})|" + r'"(?:[^"\\]|\\.)*"|' + r"'[^']*'", re.DOTALL
)
_PLAIN = re.compile(r"[^,\]}#\n]+")
_DIGITS = re.compile(r"[0-9][0-9_]{2000,}")
"""A number with more digits than any setting needs, and fewer than the limit of int()."""
_POSITION = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


class TomlSource:
    """A TOML document: its file name, its values, and the lines of its keys."""

    def __init__(self, text: str, file: str) -> None:
        """Parse `text`; `file` is its name in messages.

        Raises:
            ConfigUnreadable: the text is not TOML; with file, line and column.
        """
        self.file = file
        self.text = text
        self._lines: dict[Path, int] | None = None
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigUnreadable(f"{file}:{_where(str(error), text)}") from error
        except ValueError as error:
            raise ConfigUnreadable(f"{file}:{_where_digits(text)}") from error
        except RecursionError as error:
            raise ConfigUnreadable(f"{file}:1:1: not readable as TOML: nested too deeply") from error

    def line_of(self, path: Path) -> int:
        """The line, from 1, of the key at `path`, or of the innermost enclosing table in the text."""
        if self._lines is None:
            self._lines = key_lines(self.text)
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


def key_lines(text: str) -> dict[Path, int]:
    """The line, from 1, of every table, key and array item in a text that tomllib accepts."""
    scanner = _Scanner(text)
    # tomllib parsed the same nesting; if the stack ends earlier here, the keys found so far are right.
    try:
        scanner.document()
    except RecursionError:
        return scanner.lines
    return scanner.lines


def _where(error_text: str, text: str) -> str:
    """ "LINE:COLUMN: not TOML: reason" from a tomllib message."""
    match = _POSITION.fullmatch(error_text)
    if match is None:
        return f"1:1: not TOML: {error_text}"
    line, column = match[2], match[3]
    if line is None:
        line = str(text.count("\n") + 1)
        column = str(len(text) - (text.rfind("\n") + 1) + 1)
    return f"{line}:{column}: not TOML: {match[1]}"


def _where_digits(text: str) -> str:
    """ "LINE:COLUMN: reason" for the longest number: int() refuses it, and tomllib lets that error through."""
    match = max(_DIGITS.finditer(text), key=lambda found: len(found[0]), default=None)
    at = match.start() if match is not None else 0
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    count = len(match[0].replace("_", "")) if match is not None else 0
    return f"{line}:{column}: not readable as TOML: a number of {count} digits"


class _Scanner:
    """A scanner of TOML text that walks from statement to statement and records the lines of keys."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._array_counts: dict[Path, int] = {}
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def document(self) -> None:
        table: Path = ()
        while self._peek():
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text[self.at] == "[":
                table = self._header(1)
            else:
                self._pair(table)

    def _peek(self) -> str:
        """Skip blanks, line breaks and comments; return the next character, or "" at the end."""
        self.at = self._end(_BLANK)
        return self.text[self.at : self.at + 1]

    def _end(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        assert match is not None, "tomllib accepted this text"
        return match.end()

    def _line(self) -> int:
        return bisect.bisect_left(self._breaks, self.at) + 1

    def _header(self, brackets: int) -> Path:
        """Read `[a.b]` or `[[a.b]]`; return the path of the table that it opens."""
        line = self._line()
        self.at += brackets
        *parents, last = self._dotted()
        self.at += brackets
        path: Path = ()
        for part in parents:
            path = self._latest((*path, part))
            self.lines.setdefault(path, line)
        path = (*path, last)
        if brackets == 2:
            self.lines.setdefault(path, line)
            self._array_counts[path] = self._array_counts.get(path, 0) + 1
            path = self._latest(path)
        self.lines[path] = line
        return path

    def _latest(self, path: Path) -> Path:
        """The last table of an array of tables, for a header that continues it."""
        count = self._array_counts.get(path)
        return path if count is None else (*path, count - 1)

    def _dotted(self) -> list[str]:
        """Read `a . "b.c" . d`, up to but without the following `=` or `]`."""
        parts = []
        while True:
            self._peek()
            start, self.at = self.at, self._end(_KEY)
            parts.append(_unquoted(self.text[start : self.at]))
            if self._peek() != ".":
                return parts
            self.at += 1

    def _pair(self, table: Path) -> None:
        """Read `key = value`, in a table or an inline table."""
        line = self._line()
        *parents, last = self._dotted()
        path = table
        for part in parents:
            path = (*path, part)
            self.lines.setdefault(path, line)
        path = (*path, last)
        self.lines[path] = line
        self.at += 1
        self._value(path)

    def _value(self, path: Path) -> None:
        first = self._peek()
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self.at = self._end(_STRING if first in "\"'" else _PLAIN)

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while self._peek() != "]":
            self.lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1
            if self._peek() == ",":
                self.at += 1
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while self._peek() != "}":
            self._pair(path)
            if self._peek() == ",":
                self.at += 1
        self.at += 1


def _unquoted(key: str) -> str:
    if key[0] == '"':
        value = tomllib.loads(f"key = {key}")["key"]
        assert isinstance(value, str)
        return value
    return key[1:-1] if key[0] == "'" else key
