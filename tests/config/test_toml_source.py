from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.config.toml_source import Path, TomlSource, key_lines
from linn.core.errors.tree import ConfigUnreadable

TEXT = '''# a comment with [brackets] and key = "value"
[broker]
data_dir = "x" # data_dir = "y"
"quoted key".'and.this' = 1

[topics.delays] # ]
note = """
[not.a.table]
key = 1 \\""" ""\"""
kind = 'queue'

[[topics.delays.bindings]]
exchange = "a"
[[topics.delays.bindings]]
exchange = "b"
key = """one line"""
  [topics.delays.bindings.more]
  deep.down = [
    # nothing here
    1979-05-27 07:32:00, '#]',
    {x = 1, y.z = "}"},
  ]

[topics."delays.dead"]
kind = "queue"
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("broker",), 2),
        (("broker", "data_dir"), 3),
        (("broker", "quoted key"), 4),
        (("broker", "quoted key", "and.this"), 4),
        (("topics",), 6),
        (("topics", "delays", "note"), 7),
        (("topics", "delays", "kind"), 10),
        (("topics", "delays", "bindings", 0), 12),
        (("topics", "delays", "bindings", 0, "exchange"), 13),
        (("topics", "delays", "bindings", 1, "exchange"), 15),
        (("topics", "delays", "bindings", 1, "key"), 16),
        (("topics", "delays", "bindings", 1, "more"), 17),
        (("topics", "delays", "bindings", 1, "more", "deep", "down"), 18),
        (("topics", "delays", "bindings", 1, "more", "deep", "down", 1), 20),
        (("topics", "delays", "bindings", 1, "more", "deep", "down", 2, "y", "z"), 21),
        (("topics", "delays.dead", "kind"), 25),
        (("topics", "delays.dead", "missing"), 24),
        (("topics", "nowhere"), 6),
        (("nowhere", 3), 1),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_key_is_found_on_its_line(path: Path, line: int, newline: str) -> None:
    assert TomlSource(TEXT.replace("\n", newline), "linn.toml").line_of(path) == line


def test_a_tables_line_is_where_it_is_opened_and_not_where_it_is_implied() -> None:
    lines = key_lines("[a.b]\nx = 1\n[a]\ny = 2\n")
    assert lines[("a",)] == 3
    assert lines[("a", "b")] == 1


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[broker]\nname = \n", "linn.toml:2:8: not TOML: Invalid value"),
        ("a = 1\na = 2\n", "linn.toml:2:6: not TOML: Cannot overwrite a value"),
        ("a = [1,\n", "linn.toml:2:1: not TOML: Invalid value"),
        ("a = '''\n\n", "linn.toml:3:1: not TOML: Expected \"'''\""),
        ("a = " + "[" * 100_000, "linn.toml:1:1: not readable as TOML: nested too deeply"),
        ("a = 1\nb = " + "9" * 5_000, "linn.toml:2:5: not readable as TOML: a number of 5000 digits"),
    ],
)
def test_invalid_toml_is_refused_with_line_and_column(text: str, where: str) -> None:
    with pytest.raises(ConfigUnreadable, match=f"^{re.escape(where)}"):
        TomlSource(text, "linn.toml")


# --- any document: what the scanner finds is what tomllib reads, on the lines where the writer put it -----------------

keys = st.text(max_size=6) | st.sampled_from(["a", "b", "a.b", "[x]", "#", '"', "=", "k-1"])
tricky = st.sampled_from(["", "#", "[a]", "a = 1", '"', "'", "\\", "}", "]", ",", "\n[a]\nb = 1\n", "'''", '"""'])
scalars = st.integers(-9, 9) | st.booleans() | st.text(max_size=8) | tricky | st.lists(tricky, max_size=3).map("".join)
inline = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)


class Table(dict[str, Any]):
    """Written under a header of its own."""


tables = st.recursive(
    st.dictionaries(keys, inline, max_size=3).map(Table),
    lambda inner: st.dictionaries(keys, inline | inner | st.lists(inner, min_size=1, max_size=3), max_size=4).map(
        Table
    ),
    max_leaves=6,
)


class Writer:
    """Writes a document in styles that it draws, and notes the line of every key outside inline values."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.text = ""
        self.lines: dict[Path, int] = {}

    def table(self, table: Table, path: Path, header: list[str]) -> None:
        later = []
        for key, value in table.items():
            if isinstance(value, Table) or (isinstance(value, list) and value and isinstance(value[0], Table)):
                later.append((key, value))
                continue
            self._noise()
            self.lines[(*path, key)] = self._line()
            self.text += (
                f"{self._key(key)} {self._pick('= ', '=	')}{self._value(value)}{self._pick('', ' # k = [1')}\n"
            )
        for key, value in later:
            names = [*header, self._key(key)]
            if isinstance(value, Table):
                self._header((*path, key), f"[{self._pick('.', ' . ').join(names)}]")
                self.table(value, (*path, key), names)
                continue
            for index, item in enumerate(value):
                self._header((*path, key, index), f"[[{'.'.join(names)}]]")
                self.table(item, (*path, key, index), names)

    def _header(self, path: Path, text: str) -> None:
        self._noise()
        self.lines[path] = self._line()
        self.text += f"{self._pick('', '  ')}{text}{self._pick('', ' # ]')}\n"

    def _noise(self) -> None:
        self.text += self._pick("", "\n", "# [x]\n", "\t# k = '''\n\n")

    def _line(self) -> int:
        return self.text.count("\n") + 1

    def _pick(self, *options: str) -> str:
        return self._data.draw(st.sampled_from(options))

    def _key(self, key: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9_-]+", key):
            return self._pick(key, quoted(key))
        return quoted(key)

    def _value(self, value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self._key(key)} = {self._value(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            between = self._pick(", ", ",\n", " ,# ]\n\n")
            opening = self._pick("[", "[# [\n")
            return opening + between.join(map(self._value, value)) + self._pick("]", "\n]")
        if not isinstance(value, str):
            return json.dumps(value)
        styles = [quoted(value), f'"""{quoted(value)[1:-1]}"""']
        if "\\" not in value:
            body = quoted(value)[1:-1].replace("\\n", "\n")
            styles.append(f'"""\n{body}"""')
        if value.isprintable() and "'" not in value:
            styles += [f"'{value}'", f"'''{value}'''", f"'''\n{value}'''"]
        return self._pick(*styles)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def paths_of(value: Any, path: Path = ()) -> set[Path]:
    """Every path into a document that tomllib read."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path}.union(*(paths_of(item, (*path, key)) for key, item in items))


@given(tables, st.data())
def test_every_key_of_any_document_has_its_right_line(document: Table, data: st.DataObject) -> None:
    writer = Writer(data)
    writer.table(document, (), [])
    assert tomllib.loads(writer.text) == document
    lines = key_lines(writer.text)
    assert set(lines) | {()} == paths_of(document)
    assert {path: lines[path] for path in writer.lines} == writer.lines
