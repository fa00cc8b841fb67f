from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linn.core.batch.steps import run_steps
from linn.core.config.decoder import decode_settings, encode_settings, fields_of, rest_of
from linn.core.config.problem import Problems
from linn.core.config.tables import BrokerSettings
from linn.core.config.topic_checks import Surroundings, decode_topic
from linn.core.config.topic_settings import (
    NEW_KEYS,
    BindingSettings,
    TopicSettings,
    changed_keys,
    delivery_settings_of,
    with_defaults,
)
from linn.core.errors.tree import ConfigError, ConfigNotLive, ConfigUnknownKey, PluginUnknown
from linn.core.queue.lease import LeaseSettings
from linn.plugins.orders import linn_register_order

AROUND = Surroundings(
    broker=BrokerSettings(),
    topics={"dead"},
    exchanges={"flights"},
    storage={"segmented-log", "dram"},
    delivery={"at-least-once": LeaseSettings(max_deliveries=7)},
    orders={kind.name: kind for kind in linn_register_order()},
)


def test_a_topic_made_over_the_wire_is_checked_and_filled_in_as_in_toml() -> None:
    table = {"dead_letter": "dead", "lease": "1m", "bindings": [{"exchange": "flights"}]}
    topic = run_steps(decode_topic("a", table, AROUND))
    assert topic.lease_ms == 60_000
    assert topic.max_deliveries == 7
    assert topic.storage == "segmented-log"
    assert topic.bindings == (BindingSettings("flights"),)


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ({"retenton": "1d"}, ConfigUnknownKey, 'topics.a.retenton: unknown key; did you mean "retention"?'),
        ({"partitions": 0}, ConfigError, "topics.a.partitions: must be a whole number >= 1, not 0"),
        ({"dead_letter": "daed"}, ConfigError, 'topics.a.dead_letter: there is no topic "daed"'),
        ({"order": "priorty"}, PluginUnknown, 'topics.a.order: there is no order "priorty"; did you mean "priority"?'),
        (
            {"order": "fair", "order_by": "tenant"},
            ConfigError,
            'topics.a.order_by: is "label.NAME" or "routing_key", not "tenant"',
        ),
        ({"order": "priority", "levels": 1}, ConfigError, "topics.a.levels: must be a whole number >= 2, not 1"),
        ({"order": "priority", "levels": 257}, ConfigError, "topics.a.levels: must be a whole number <= 256, not 257"),
        (
            {"dead_letter_exchange": "fligths"},
            ConfigError,
            'topics.a.dead_letter_exchange: there is no exchange "fligths"',
        ),
        ({"storage": "drma"}, PluginUnknown, 'topics.a.storage: there is no storage "drma"; did you mean "dram"?'),
    ],
)
def test_a_wrong_topic_over_the_wire_is_one_line_with_its_key(
    table: dict[str, Any], error: type[ConfigError], text: str
) -> None:
    with pytest.raises(error) as raised:
        run_steps(decode_topic("a", table, AROUND))
    assert raised.value.text == text


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0", "a\r\nb", "é", "\u202ea", "__a", "a" * 250])
def test_a_name_that_would_do_harm_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name") as raised:
        run_steps(decode_topic(name, {}, AROUND))
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "_a", "...", "a" * 249])
def test_kafkas_names_are_good_names(name: str) -> None:
    assert run_steps(decode_topic(name, {}, AROUND)).kind == "queue"


sizes = st.none() | st.integers(1, 1 << 50)
delays = st.none() | st.integers(0, 604_800_000)
topics = st.builds(
    TopicSettings,
    kind=st.sampled_from(["queue", "stream", "both"]),
    partitions=st.integers(1, 4096),
    storage=st.none() | st.just("dram"),
    retention_ms=sizes,
    retention_bytes=sizes,
    max_deliveries=st.none() | st.integers(1, 99),
    lease_ms=st.none() | st.integers(1, 604_800_000),
    redelivery_delay_ms=delays,
    redelivery_delay_max_ms=delays,
    keep_ms=st.none() | st.integers(1, 10**9),
    ttl_ms=st.none() | st.integers(1, 10**9),
    redelivery_backoff=st.none() | st.sampled_from(["fixed", "linear", "exponential"]),
    bytes_max=sizes,
    records_max=st.none() | st.integers(1, 99),
    overflow=st.sampled_from(["block", "reject", "drop-head", "dead-letter"]),
    order=st.sampled_from(["fifo", "fair"]),
    order_by=st.none() | st.just("label.tenant"),
    weights=st.none() | st.dictionaries(st.text(max_size=3), st.integers(1, 1_000), max_size=3),
    levels=st.none() | st.integers(2, 256),
    order_window=st.integers(1, 1 << 31),
    bindings=st.lists(
        st.builds(BindingSettings, st.text(max_size=3), st.text(max_size=3), st.just({}) | st.just({"where": "x"})),
        max_size=2,
    ).map(tuple),
)


@given(topics)
def test_settings_survive_the_way_over_the_wire_and_back(topic: TopicSettings) -> None:
    problems = Problems()
    wire = msgspec.json.decode(msgspec.json.encode(encode_settings(topic)))
    assert decode_settings(TopicSettings, wire, ("topics", "a"), problems) == topic
    assert problems.found == []


@pytest.mark.parametrize("settings", [BrokerSettings(), BrokerSettings(drain_timeout_s=1.5), LeaseSettings()])
def test_other_settings_survive_it_as_well(settings: msgspec.Struct) -> None:
    assert decode_settings(type(settings), encode_settings(settings), (), Problems()) == settings


@given(topics)
def test_stored_records_are_read_back(topic: TopicSettings) -> None:
    filled = with_defaults(topic, {"storage": "dram", "delivery": "d", "message_bytes_max": 9}, LeaseSettings())
    assert msgspec.json.decode(msgspec.json.encode(filled), type=TopicSettings) == filled


@given(topics)
def test_filling_in_defaults_keeps_given_values_and_is_done_once(topic: TopicSettings) -> None:
    defaults = {"storage": "segmented-log", "delivery": "d", "message_bytes_max": 9}
    once = with_defaults(topic, defaults, LeaseSettings(max_deliveries=7, lease_ms=5))
    assert with_defaults(once, {}, LeaseSettings(max_deliveries=8)) == once
    assert once.max_deliveries == (topic.max_deliveries or 7)
    assert once.lease_ms == (topic.lease_ms or 5)


def test_a_topics_semantics_gets_the_topics_own_settings() -> None:
    settings = delivery_settings_of(TopicSettings(lease_ms=5), LeaseSettings(lease_ms=9, max_deliveries=3))
    assert (settings.lease_ms, settings.max_deliveries) == (5, 3)


def test_live_keys_change_in_place_and_are_named() -> None:
    old = TopicSettings(kind="queue", partitions=2)
    new = TopicSettings(kind="stream", partitions=3, retention_ms=1, lease_ms=5, overflow="reject", max_deliveries=4)
    assert changed_keys(old, new) == ("kind", "partitions", "retention", "max_deliveries", "lease", "overflow")
    assert changed_keys(old, old) == ()


@pytest.mark.parametrize(
    ("new", "key"),
    [
        (TopicSettings(storage="dram", partitions=2), "storage"),
        (TopicSettings(delivery="x", partitions=2), "delivery"),
        (TopicSettings(partitions=1), "partitions"),
    ],
)
def test_fixed_keys_say_that_they_are(new: TopicSettings, key: str) -> None:
    with pytest.raises(ConfigNotLive, match=f"^{key} can't change while the topic exists"):
        changed_keys(TopicSettings(partitions=2), new)


KEYS_BEFORE = [
    "kind",
    "partitions",
    "partitioner",
    "storage",
    "delivery",
    "replicas",
    "min_in_sync",
    "retention",
    "retention_bytes",
    "max_deliveries",
    "dead_letter",
    "lease",
    "redelivery_delay",
    "redelivery_delay_max",
    "redelivery_backoff",
    "message_bytes_max",
    "bytes_max",
    "overflow",
    "interceptors",
    "bindings",
]
"""Keys that brokers of the version before know."""


def test_a_key_that_brokers_of_the_version_before_do_not_know_is_stored_only_where_it_is_set() -> None:
    keys = [field.encode_name for field in fields_of(TopicSettings) if field is not rest_of(TopicSettings)]
    assert [key for key in keys if key not in KEYS_BEFORE] == list(NEW_KEYS)
