"""Dotted keys of settings: one key of a table changes, and the others stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from linn.cli.config_edit import ConfigEdit
from linn.core.config.dotted_keys import key_path, without_dots
from linn.core.errors.tree import ConfigError

SINK = {"path": "lake", "options": {"a": "1"}}


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("retention", ("retention",)),
        ("spark_sink.schema", ("spark_sink", "schema")),
        ('spark_sink.options."catalog.uri"', ("spark_sink", "options", "catalog.uri")),
        (".".join("abcdefgh"), tuple("abcdefgh")),
        (".".join("abcdefghi"), ("a.b.c.d.e.f.g.h.i",)),
        ('a."%s"' % ("b" * 1000), ("a", "b" * 1000)),
        ('a."%s"' % ("b" * 1024), ('a."%s"' % ("b" * 1024),)),
        *((key, (key,)) for key in ("", ".", "a.", ".a", "a..b", "a.b = 1\nc", "a.b#", 'a."b', "ä.b", "a." * 100_000)),
    ],
)
def test_the_parts_of_a_key_are_those_of_toml(key: str, parts: tuple[str, ...]) -> None:
    assert key_path(key) == parts


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({"retention": "1d"}, {"retention": "1d"}),
        ({"spark_sink.path": "b"}, {"spark_sink": {**SINK, "path": "b"}}),
        ({"spark_sink.value": "json"}, {"spark_sink": {**SINK, "value": "json"}}),
        ({"spark_sink.options.b": "2"}, {"spark_sink": {**SINK, "options": {"a": "1", "b": "2"}}}),
        ({"spark_sink.path": None}, {"spark_sink": {"options": {"a": "1"}}}),
        ({"spark_sink.none": None}, {"spark_sink": SINK}),
        ({"spark_sink.a": 1, "spark_sink.b": 2}, {"spark_sink": {**SINK, "a": 1, "b": 2}}),
        ({"spark_sink": {"a": 1}, "spark_sink.b": 2}, {"spark_sink": {"a": 1, "b": 2}}),
        ({"spark_sink": None}, {"spark_sink": None}),
        ({"other.key": 1}, {"other": {"key": 1}}),
        ({"retention.x": 1}, {"retention.x": 1}),
        ({"spark_sink.path.x": 1}, {"spark_sink.path.x": 1}),
    ],
)
def test_a_dotted_key_changes_one_key_of_the_table_that_there_is(changes: Any, whole: Any) -> None:
    existing = {"retention": "14d", "spark_sink": SINK}
    assert without_dots(changes, existing) == whole
    assert existing == {"retention": "14d", "spark_sink": {"path": "lake", "options": {"a": "1"}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '[topics.orders]\nkind = "stream"\n\n[topics.orders.spark_sink]  # to the lake\npath = "a"  # ours\n',
            '[topics.orders]\nkind = "stream"\n\n[topics.orders.spark_sink]  # to the lake\npath = "b"  # ours\n',
        ),
        (
            '[topics.orders]\nkind = "stream"\nspark_sink = { path = "a", value = "string" }\n',
            '[topics.orders]\nkind = "stream"\nspark_sink = { path = "b", value = "string" }\n',
        ),
        (
            '[topics.orders]\nkind = "stream"\n',
            '[topics.orders]\nkind = "stream"\n\n[topics.orders.spark_sink]\npath = "b"\n',
        ),
    ],
)
def test_a_file_keeps_the_rest_of_the_table(tmp_path: Path, before: str, after: str) -> None:
    file = tmp_path / "linn.toml"
    file.write_text(before)
    with ConfigEdit(str(file), "orders", {"spark_sink.path": "b"}).written():
        assert file.read_text() == before
    assert file.read_text() == after


def test_a_file_in_which_it_is_no_table_stays(tmp_path: Path) -> None:
    file = tmp_path / "linn.toml"
    file.write_text('[topics.orders]\nretention = "1d"\n')
    with pytest.raises(ConfigError):
        ConfigEdit(str(file), "orders", {"retention.x": "b"})
