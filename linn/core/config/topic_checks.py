"""Consistency checks of one topic's settings: with names defined elsewhere, with the broker's limits, and with each
other.

The same checks apply to `[topics.NAME]` in TOML and to a topic that is made or changed over the wire.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from linn.core.batch.steps import Steps
from linn.core.config.decoder import decode_items, decode_settings
from linn.core.config.problem import FirstProblem, Problems
from linn.core.config.service_tables import ServiceTables, check_tables_of
from linn.core.config.tables import BrokerSettings
from linn.core.config.toml_source import Path
from linn.core.config.topic_settings import (
    TRANSIENT_STORAGE,
    TopicSettings,
    deliveries_max,
    with_defaults,
    with_minimum,
    without_nulls,
)
from linn.core.errors.names import name_problem
from linn.core.errors.texts import counted, did_you_mean
from linn.core.errors.tree import ConfigError, LinnError, PluginUnknown
from linn.core.queue.dispatch_order import FIFO, OrderKind, OrderOptions
from linn.core.routing.partitioner import DEFAULT_PARTITIONER


class Replication(NamedTuple):
    """The defaults of a cluster for its topics."""

    replicas: int
    min_in_sync: int | None
    """None: all replicas but one."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Names and limits that a topic may refer to."""

    broker: BrokerSettings
    topics: Collection[str]
    exchanges: Collection[str]
    storage: Collection[str]
    delivery: Mapping[str, object]
    """The settings of each delivery, by name."""
    interceptors: Collection[str] = ()
    partitioners: Collection[str] = (DEFAULT_PARTITIONER,)
    services: Collection[ServiceTables] = ()
    replication: Replication | None = None
    """None: the broker has no links to others."""
    orders: Mapping[str, OrderKind] = field(default_factory=dict)


def decode_topic(name: str, table: Mapping[str, Any], around: Surroundings) -> Steps[TopicSettings]:
    """Decode, check and complete the settings of a request over the wire, in one step per binding.

    Raises:
        ConfigError: the first error; the text names its full key.
    """
    problems = FirstProblem()
    path: Path = ("topics", name)
    items_decoded = yield from decode_items(TopicSettings, table, path, problems)
    topic = decode_settings(TopicSettings, items_decoded, path, problems)
    assert topic is not None, "a table without problems decodes"
    return check_topic(name, topic, around, problems)


def check_topic(name: str, topic: TopicSettings, around: Surroundings, problems: Problems) -> TopicSettings:
    """Add a topic's errors to `problems`; returns it with all defaults filled in.

    An invalid key in a partly decoded topic leads to no further errors.
    """
    path: Path = ("topics", name)
    check_name(name, path, problems)
    topic = without_nulls(topic)
    defaults: dict[str, object] = {
        "storage": TRANSIENT_STORAGE if topic.is_transient else around.broker.default_storage,
        "delivery": around.broker.default_delivery,
        "message_bytes_max": around.broker.message_bytes_max,
    }
    if around.replication is not None:
        defaults["replicas"] = 1 if topic.is_transient else around.replication.replicas
    filled = with_defaults(topic, defaults, around.delivery.get(topic.delivery or around.broker.default_delivery))
    if around.replication is not None:
        filled = with_minimum(filled, around.replication.min_in_sync)
    _check_replicas(filled, around, path, problems)
    _check_end(topic, path, problems)
    check_tables_of(name, topic, around.services, problems)
    _check_references(name, topic, around, path, problems)
    _check_limits(filled, around.broker, path, problems)
    _check_overflow(topic, path, problems)
    _check_order(topic, around, path, problems)
    _warn_of_no_effect(topic, path, problems)
    _warn_of_attempts(filled, path, problems)
    return filled


def _check_replicas(filled: TopicSettings, around: Surroundings, path: Path, problems: Problems) -> None:
    if problems.any_wrong(path, "replicas", "min_in_sync"):
        return
    if filled.is_transient and filled.is_replicated:
        problems.add((*path, "replicas"), f'lifetime = "{filled.lifetime}" is for a queue that one broker holds')
    elif around.replication is None and filled.is_replicated:
        problems.add((*path, "replicas"), "other brokers hold a topic only in a [cluster] with a listener for them")
    elif (filled.min_in_sync or 1) > (filled.replicas or 1):
        problems.add((*path, "min_in_sync"), f"is over the topic's number of replicas, {filled.replicas or 1}")


def _check_end(topic: TopicSettings, path: Path, problems: Problems) -> None:
    """Add an error for each setting that ends a topic which is no queue: only a queue knows who uses it."""
    if topic.kind == "queue" or problems.any_wrong(path, "kind"):
        return
    if topic.expires_ms is not None:
        problems.add((*path, "expires"), "is for queues")
    for key, value, usual in (("delete_when", topic.delete_when, "never"), ("lifetime", topic.lifetime, "kept")):
        if value != usual:
            problems.add((*path, key), "is for queues")


def check_name(name: str, path: Path, problems: Problems) -> None:
    """Add an error if `name`, the last part of `path`, is not a valid name."""
    wrong = name_problem(name)
    if wrong is not None:
        problems.add(path, wrong)


def _check_references(name: str, topic: TopicSettings, around: Surroundings, path: Path, problems: Problems) -> None:
    must_exist(topic.storage, around.storage, "storage", (*path, "storage"), problems, PluginUnknown)
    must_exist(topic.delivery, around.delivery, "delivery", (*path, "delivery"), problems, PluginUnknown)
    must_exist(topic.partitioner, around.partitioners, "partitioner", (*path, "partitioner"), problems, PluginUnknown)
    if topic.dead_letter == name:
        problems.add((*path, "dead_letter"), "a topic can't be its own dead letter")
    else:
        must_exist(topic.dead_letter, around.topics, "topic", (*path, "dead_letter"), problems)
    must_exist(topic.dead_letter_exchange, around.exchanges, "exchange", (*path, "dead_letter_exchange"), problems)
    if topic.dead_letter is not None and topic.dead_letter_exchange is not None:
        problems.add((*path, "dead_letter_exchange"), "dead letters go to a topic or an exchange: dead_letter is set")
    if topic.dead_letter_key is not None and topic.dead_letter_exchange is None:
        problems.add((*path, "dead_letter_key"), "is for the copies to a dead_letter_exchange, and there is none")
    named: set[str] = set()
    for index, interceptor in enumerate(topic.interceptors):
        at: Path = (*path, "interceptors", index)
        if interceptor in named:
            problems.add(at, f'"{interceptor[:80]}" is named twice')
        else:
            must_exist(interceptor, around.interceptors, "interceptor", at, problems, PluginUnknown)
        named.add(interceptor)
    for index, binding in enumerate(topic.bindings):
        at = (*path, "bindings", index, "exchange")
        must_exist(binding.exchange, around.exchanges, "exchange", at, problems)


def _check_order(topic: TopicSettings, around: Surroundings, path: Path, problems: Problems) -> None:
    must_exist(topic.order, [FIFO, *around.orders], "order", (*path, "order"), problems, PluginUnknown)
    kind = around.orders.get(topic.order)
    if topic.order != FIFO and kind is None:
        return
    takes = kind.takes if kind is not None and topic.order != FIFO else frozenset[str]()
    for key in ("order_by", "weights", "levels"):
        if getattr(topic, key) is not None and key not in takes:
            problems.warn((*path, key), f'has no effect while order is "{topic.order}"')
    if topic.order_window != TopicSettings().order_window and topic.order == FIFO:
        problems.warn((*path, "order_window"), f'has no effect while order is "{FIFO}"')
    if kind is not None and "order_by" in takes and not problems.any_wrong(path, "order", "order_by"):
        wrong = kind.by_problem(OrderOptions(by=topic.order_by or ""))
        if wrong is not None:
            problems.add((*path, "order_by"), wrong)


def must_exist(
    name: str | None,
    known: Collection[str],
    noun: str,
    path: Path,
    problems: Problems,
    error: type[LinnError] = ConfigError,
) -> None:
    """Add an error at `path` if `name` is neither None nor among `known`."""
    if name is not None and name not in known:
        meant = did_you_mean(name, known) if problems.names_others or error is PluginUnknown else ""
        problems.add(path, f'there is no {noun} "{name[:80]}"{meant}', error=error)


def _check_limits(filled: TopicSettings, broker: BrokerSettings, path: Path, problems: Problems) -> None:
    message_bytes_max = filled.message_bytes_max or broker.message_bytes_max
    limit_known = not problems.any_wrong(("broker",), "message_bytes_max")
    if limit_known and not problems.any_wrong(path, "message_bytes_max", "bytes_max"):
        if message_bytes_max > broker.message_bytes_max:
            limit = broker.message_bytes_max
            problems.add((*path, "message_bytes_max"), f"is over the broker's message_bytes_max of {limit}")
        if filled.bytes_max is not None and filled.bytes_max < message_bytes_max:
            problems.add((*path, "bytes_max"), f"is less than one message may have: {message_bytes_max}")
    delays_known = not problems.any_wrong(path, "delivery", "redelivery_delay", "redelivery_delay_max")
    delay_ms = filled.redelivery_delay_ms or 0
    if delays_known and delay_ms > (filled.redelivery_delay_max_ms or delay_ms):
        problems.add((*path, "redelivery_delay"), "is over redelivery_delay_max")


def _check_overflow(topic: TopicSettings, path: Path, problems: Problems) -> None:
    if problems.any_wrong(path, "kind", "records_max", "overflow", "dead_letter", "dead_letter_exchange"):
        return
    if topic.records_max is not None and topic.kind != "queue":
        problems.add((*path, "records_max"), "counts the unsettled records of a queue: a stream has retention")
    if topic.overflow != "dead-letter":
        return
    if topic.kind != "queue":
        problems.add((*path, "overflow"), 'can be "dead-letter" only where kind is "queue": a stream keeps its records')
    elif not topic.has_dead_letters:
        problems.add((*path, "overflow"), 'is "dead-letter", and there is no dead_letter to name the topic')


def _warn_of_no_effect(topic: TopicSettings, path: Path, problems: Problems) -> None:
    """Warn of settings that have no effect with the others. `topic` is as written, before defaults are filled in."""
    default = TopicSettings()
    stream_only = {"retention": "retention_ms"}
    if topic.keep_ms is None and not problems.any_wrong(path, "keep"):
        stream_only["retention_bytes"] = "retention_bytes"
    is_queue = topic.kind == "queue" and not problems.any_wrong(path, "kind")
    for key, name in stream_only.items() if is_queue else ():
        if getattr(topic, name) != getattr(default, name):
            problems.warn((*path, key), f'has no effect while kind is "{topic.kind}"')
    if topic.ttl_ms is not None and topic.kind == "stream" and not problems.any_wrong(path, "kind"):
        problems.warn((*path, "ttl"), 'has no effect while kind is "stream": retention says what it keeps')
    if topic.keep_ms is not None and topic.kind != "queue" and not problems.any_wrong(path, "kind"):
        problems.warn((*path, "keep"), f'has no effect while kind is "{topic.kind}": retention says what it keeps')
    limited = topic.bytes_max is not None or topic.records_max is not None
    if topic.overflow != default.overflow and not limited and not problems.any_wrong(path, "bytes_max", "records_max"):
        problems.warn((*path, "overflow"), "has no effect without bytes_max or records_max")


def _warn_of_attempts(filled: TopicSettings, path: Path, problems: Problems) -> None:
    if filled.kind == "stream" or filled.lease_ms is None:
        return
    if problems.any_wrong(path, "kind", "delivery", "dead_letter", "dead_letter_exchange", "max_deliveries"):
        return
    limit = deliveries_max(filled)
    if filled.has_dead_letters and limit is None:
        key = "dead_letter" if filled.dead_letter is not None else "dead_letter_exchange"
        problems.warn((*path, key), "takes only rejected records: attempts don't end")
    if not filled.has_dead_letters and limit is not None:
        problems.warn(
            (*path, "max_deliveries"), f"without dead_letter a record is dropped after {counted(limit, 'attempt')}"
        )
