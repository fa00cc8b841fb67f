"""Definitions as text: whatever a broker says of its exchanges and topics, TOML reads back."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.cli.definitions.export import tables_of, toml_text
from linn.core.errors.tree import ConfigError

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = (
    TEXTS | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = PLAIN | st.lists(PLAIN, max_size=2) | st.dictionaries(TEXTS, PLAIN | st.lists(PLAIN, max_size=2), max_size=2)
TABLES = st.dictionaries(TEXTS.filter(lambda key: key != "bindings"), VALUES, max_size=3)
NAMED = st.dictionaries(TEXTS, TABLES, max_size=2)
BINDINGS = st.lists(TABLES, min_size=1, max_size=2)


@given(exchanges=NAMED, topics=NAMED, bindings=BINDINGS)
def test_toml_reads_back_what_was_written(exchanges: Any, topics: Any, bindings: Any) -> None:
    found = {"exchanges": exchanges, "topics": {**topics, "bound.to": {"kind": "both", "bindings": bindings}}}
    expected = {top: tables for top, tables in found.items() if tables}
    assert tomllib.loads(toml_text(found)) == expected


def test_own_topics_and_defaults_without_effect_for_a_kind_are_left_out() -> None:
    filled = {"retention": "14d", "retention_bytes": "unlimited", "lease": "30s", "redelivery_backoff": "fixed"}
    topics: Any = [
        {"name": "queue", "settings": {"kind": "queue", **filled}},
        {"name": "set", "settings": {"kind": "queue", "retention": "3d"}},
        {"name": "stream", "settings": {"kind": "stream", **filled, "dead_letter": "queue"}},
        {"name": "both", "settings": {"kind": "both", **filled}},
        {"name": "__audit", "settings": {"kind": "stream", **filled}},
    ]
    assert {name: list(table)[1:] for name, table in tables_of([], topics)["topics"].items()} == {
        "both": list(filled),
        "queue": ["lease", "redelivery_backoff"],
        "set": ["retention"],
        "stream": ["retention", "retention_bytes", "dead_letter"],
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"key": "v"}, 'a binding of exchange shop has an argument "key": in TOML, that key has another meaning'),
        ({"labels": {"colour": None}}, "topics.orders.bindings[0].labels.colour: TOML has no null"),
    ],
)
def test_what_toml_can_not_say_is_named(arguments: dict[str, Any], said: str) -> None:
    bindings: Any = [{"topic": "orders", "key": "", "arguments": arguments}]
    shop: Any = {"name": "shop", "type": "odd", "alternate": None, "settings": {}, "bindings": bindings}
    topics: Any = [{"name": "orders", "settings": {"kind": "queue"}}]
    with pytest.raises(ConfigError) as refused:
        toml_text(tables_of([shop], topics))
    assert refused.value.text == said
