"""A topic's settings: one struct for `[topics.NAME]` in TOML, the admin API and the metadata store.

Each field declares with `live` whether it may change while the topic exists; `changed_keys` enforces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from linn.core.config.decoder import encode_settings, extra_of, fields_of, rest_of
from linn.core.config.units import UNITS_MAX
from linn.core.errors.tree import ConfigNotLive
from linn.core.queue.dispatch_order import FIFO, LEVELS_MAX, ORDER_WINDOW, WEIGHT_MAX, WEIGHTS_MAX
from linn.core.queue.lease import CONNECTION_WORD, LEASE_MS_MAX, Backoff
from linn.core.routing.partitioner import DEFAULT_PARTITIONER

PARTITIONS_MAX = 4096
"""Limit of partitions: each costs open files and about 10 KiB, and more on one node are probably a mistake."""
REPLICAS_MAX = 15
"""Limit of the replicas of a topic: each costs the leader as much as a reader, and seven survive three losses."""
DAY_MS = 86_400_000

Kind = Literal["queue", "stream", "both"]
S = TypeVar("S", bound=msgspec.Struct)
Overflow = Literal["block", "reject", "drop-head", "dead-letter"]
Consumers = Literal["many", "one"]
DeleteWhen = Literal["never", "unused"]
Lifetime = Literal["kept", "broker", "connection"]
TRANSIENT_STORAGE = "dram"
"""The storage of topics that end with the broker or a connection, unless they name another."""

UNLIMITED = 1 << 31
"""The `max_deliveries` of a topic whose attempts don't end, whatever its delivery says."""
DELIVERIES_MAX = 20
"""Attempts at a record of a topic that names a dead-letter topic and no limit.

So many consumers may be lost by one record. Others that are lost with it are far from the limit: two losses leave it
alone.
"""
Count = Annotated[int, msgspec.Meta(ge=1, le=UNLIMITED)]
Retention = Annotated[int, msgspec.Meta(ge=1, le=UNITS_MAX)]
Size = Annotated[int, msgspec.Meta(ge=1, le=UNITS_MAX)]
Lease = Annotated[int, msgspec.Meta(ge=1, le=LEASE_MS_MAX)]
Delay = Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]
RoutingKey = Annotated[str, msgspec.Meta(max_length=1024)]
Window = Annotated[int, msgspec.Meta(ge=1, le=DAY_MS)]
Replicas = Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)]
Weights = Annotated[dict[str, Annotated[int, msgspec.Meta(ge=1, le=WEIGHT_MAX)]], msgspec.Meta(max_length=WEIGHTS_MAX)]
Levels = Annotated[int, msgspec.Meta(ge=2, le=LEVELS_MAX)]
_NOT_LIVE = {"live": False}


class BindingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[topics.NAME.bindings]]`, `[[exchanges.NAME.bindings]]`: a binding of an exchange to this topic or exchange."""

    exchange: Annotated[str, msgspec.Meta(description="The exchange to bind to.")]
    key: Annotated[
        str, msgspec.Meta(description="Routing key, or a pattern; its meaning depends on the exchange's type.")
    ] = ""
    arguments: Annotated[
        dict[str, Any], msgspec.Meta(description="All other keys, for the exchange's type.", extra={"rest": True})
    ] = msgspec.field(default_factory=dict)


class TopicSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[topics.NAME]`: one topic. Every key may be left out."""

    kind: Annotated[
        Kind,
        msgspec.Meta(
            description="A queue (kept until settled), a stream (kept for a time), or both: queues on a stream."
        ),
    ] = "queue"
    partitions: Annotated[
        int,
        msgspec.Meta(ge=1, le=PARTITIONS_MAX, description="Number of partitions; may grow live, never shrink."),
    ] = 1
    partitioner: Annotated[
        str,
        msgspec.Meta(
            description="The partitioner: murmur2 (by key, as Kafka), sticky, round-robin, or a plugin's.",
            extra=_NOT_LIVE,
        ),
    ] = DEFAULT_PARTITIONER
    storage: Annotated[
        str | None,
        msgspec.Meta(
            description="A `[storage.NAME]` table, or an engine's name. Default: the broker's `default_storage`.",
            extra=_NOT_LIVE,
        ),
    ] = None
    delivery: Annotated[
        str | None,
        msgspec.Meta(
            description="A `[delivery.NAME]` table, or a semantics' name. Default: the broker's `default_delivery`.",
            extra=_NOT_LIVE,
        ),
    ] = None
    replicas: Annotated[
        Replicas | None,
        msgspec.Meta(
            description="Number of brokers that hold the topic, in a cluster. A topic in memory keeps one, or more "
            "than one. Default: the cluster's `replicas`."
        ),
    ] = None
    min_in_sync: Annotated[
        Replicas | None,
        msgspec.Meta(
            description="Fewest replicas that have to hold a record before it is confirmed to a publisher with "
            "`acks = all`. Default: the cluster's `min_in_sync`."
        ),
    ] = None
    retention_ms: Annotated[
        Retention | None,
        msgspec.Meta(
            description='How long a stream keeps records, or "forever". A queue keeps them until they are settled.',
            extra={"none": "forever"},
        ),
    ] = msgspec.field(default=14 * DAY_MS, name="retention")
    retention_bytes: Annotated[
        Size | None,
        msgspec.Meta(
            description="Bytes that a partition of a stream keeps, oldest dropped first, or "
            '"unlimited". Of a queue with `keep` only settled records are dropped.',
            extra={"none": "unlimited"},
        ),
    ] = None
    keep_ms: Annotated[
        Retention | None,
        msgspec.Meta(
            description="How long a queue keeps records at least, settled ones too, so that named subscriptions can "
            'deliver them again; or "off": until they are settled.',
            extra={"none": "off"},
        ),
    ] = msgspec.field(default=None, name="keep")
    ttl_ms: Annotated[
        Retention | None,
        msgspec.Meta(
            description="How long a record may wait in a queue before it is dead-lettered, or dropped; or "
            '"unlimited". A record\'s own TTL may be shorter.',
            extra={"none": "unlimited"},
        ),
    ] = msgspec.field(default=None, name="ttl")
    max_deliveries: Annotated[
        Count | None,
        msgspec.Meta(
            description='Attempts before a record is dead-lettered, or dropped; or "unlimited". Default: the '
            "delivery's; where that has no limit and there are dead letters, 20.",
            extra={"words": {"unlimited": UNLIMITED}},
        ),
    ] = None
    dead_letter: Annotated[
        str | None,
        msgspec.Meta(description="The topic for records that are rejected or out of attempts."),
    ] = None
    dead_letter_exchange: Annotated[
        str | None,
        msgspec.Meta(description="An exchange for them, in place of `dead_letter`: each topic behind it gets a copy."),
    ] = None
    dead_letter_key: Annotated[
        RoutingKey | None,
        msgspec.Meta(description="Routing key of the copies for `dead_letter_exchange`. Default: the record's own."),
    ] = None
    lease_ms: Annotated[
        Lease | None,
        msgspec.Meta(
            description="How long a consumer holds a record before it is returned; "
            '"connection": as long as it is connected. Default: the delivery\'s.',
            extra=CONNECTION_WORD,
        ),
    ] = msgspec.field(default=None, name="lease")
    redelivery_delay_ms: Annotated[
        Delay | None,
        msgspec.Meta(
            description="Wait before a returned record is delivered again; up to a tenth is added. "
            "Default: the delivery's."
        ),
    ] = msgspec.field(default=None, name="redelivery_delay")
    redelivery_delay_max_ms: Annotated[
        Delay | None,
        msgspec.Meta(description="The longest such wait, however many attempts there were. Default: the delivery's."),
    ] = msgspec.field(default=None, name="redelivery_delay_max")
    redelivery_backoff: Annotated[
        Backoff | None,
        msgspec.Meta(description="How that wait grows with the attempts. Default: the delivery's."),
    ] = None
    consumers: Annotated[
        Consumers,
        msgspec.Meta(
            description="Consumers that get records at a time: all, or the single active one, by priority, then age."
        ),
    ] = "many"
    expires_ms: Annotated[
        Retention | None,
        msgspec.Meta(
            description='Time without a consumer after which a queue is deleted with its records, or "never".',
            extra={"none": "never"},
        ),
    ] = msgspec.field(default=None, name="expires")
    delete_when: Annotated[
        DeleteWhen,
        msgspec.Meta(description="Delete a queue with its records as soon as its last consumer has left, or never."),
    ] = "never"
    lifetime: Annotated[
        Lifetime,
        msgspec.Meta(
            description="Keep a queue over restarts; or hold it in memory as long as the broker runs, or as long as "
            "the connection that made it, which alone may consume it. Only for queues that are made live.",
            extra=_NOT_LIVE,
        ),
    ] = "kept"
    message_bytes_max: Annotated[
        Size | None, msgspec.Meta(description="The largest message. Default: the broker's `message_bytes_max`.")
    ] = None
    bytes_max: Annotated[
        Size | None,
        msgspec.Meta(
            description='Bytes that the topic may hold before `overflow` applies, or "unlimited".',
            extra={"none": "unlimited"},
        ),
    ] = None
    records_max: Annotated[
        Count | None,
        msgspec.Meta(
            description='Unsettled records that a queue may hold before `overflow` applies, or "unlimited".',
            extra={"none": "unlimited"},
        ),
    ] = None
    overflow: Annotated[
        Overflow,
        msgspec.Meta(
            description="At `bytes_max` or `records_max`: make publishers wait, refuse them, drop the oldest records "
            "that wait for delivery, or make dead letters of them."
        ),
    ] = "block"
    order: Annotated[
        str,
        msgspec.Meta(
            description="Which ready record is delivered next: the oldest (fifo), priority, fair, key, or a plugin's "
            "order."
        ),
    ] = FIFO
    order_by: Annotated[
        str | None,
        msgspec.Meta(
            description='The origin of a record\'s class in that order: "label.NAME" or "routing_key". Default: the '
            "order's own."
        ),
    ] = None
    weights: Annotated[
        Weights | None,
        msgspec.Meta(
            description="Shares of tenants in that order, as `{acme = 3}`: it may have three times as many records in "
            "flight as one without a weight."
        ),
    ] = None
    levels: Annotated[
        Levels | None,
        msgspec.Meta(description="Levels of priority; a higher priority counts as the highest level. Default: 10."),
    ] = None
    order_window: Annotated[
        Count,
        msgspec.Meta(
            description="Ready records of a partition among which the order chooses; later ones wait in the log."
        ),
    ] = ORDER_WINDOW
    dedup_ms: Annotated[
        Window | None,
        msgspec.Meta(
            description='How long a partition knows the ids of messages, so as not to store one again; or "off".',
            extra={"none": "off"},
        ),
    ] = msgspec.field(default=None, name="dedup")
    status_ms: Annotated[
        Retention | None,
        msgspec.Meta(
            description="How long the topic can be asked what became of a message, by its id, after it has ended; "
            'or "off".',
            extra={"none": "off"},
        ),
    ] = msgspec.field(default=None, name="status")
    interceptors: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Interceptors of each batch before it is stored, in order: `[interceptors.NAME]` tables, or "
            "interceptors' names."
        ),
    ] = ()
    bindings: Annotated[
        tuple[BindingSettings, ...],
        msgspec.Meta(description="Bindings of exchanges to this topic, as an array of tables."),
    ] = ()
    services: Annotated[
        dict[str, Any],
        msgspec.Meta(description="Tables of services that plugins bring, by their names.", extra={"rest": True}),
    ] = msgspec.field(default_factory=dict)

    @property
    def has_dead_letters(self) -> bool:
        """Whether dead records are copied."""
        return self.dead_letter is not None or self.dead_letter_exchange is not None

    @property
    def keeps_settled(self) -> bool:
        """Whether records stay when they are settled, so that the topic may have named subscriptions."""
        return self.kind != "queue" or self.keep_ms is not None

    @property
    def is_replicated(self) -> bool:
        """Whether other brokers hold the topic as well."""
        return (self.replicas or 1) > 1

    @property
    def is_transient(self) -> bool:
        """Whether the topic ends with the broker, at the latest: it is in memory, and in no metadata store."""
        return self.lifetime != "kept"


FROM_DELIVERY = ("max_deliveries", "lease_ms", "redelivery_delay_ms", "redelivery_delay_max_ms", "redelivery_backoff")
"""Settings that a topic takes from the same field of its delivery's settings unless it sets them itself."""


NEW_KEYS = (
    "keep",
    "ttl",
    "dead_letter_exchange",
    "dead_letter_key",
    "consumers",
    "expires",
    "delete_when",
    "lifetime",
    "records_max",
    "order",
    "order_by",
    "weights",
    "levels",
    "order_window",
    "dedup",
    "status",
)
"""Keys that brokers of the version before do not know. They are stored only where they are set, so that these brokers
can read all other topics.
"""


def encode_without_bindings(topic: TopicSettings) -> dict[str, Any]:
    """The table of a topic's settings without bindings, which may number thousands and are encoded in turns."""
    return encode_settings(msgspec.structs.replace(topic, bindings=()))


def with_defaults(topic: TopicSettings, defaults: Mapping[str, object], delivery_settings: object) -> TopicSettings:
    """Fill in the settings that a topic inherits; its own settings are kept.

    `defaults` holds `storage`, `delivery` and `message_bytes_max`, from the broker, and in a cluster `replicas`. A
    setting that is still None afterwards does not exist for this delivery (at-most-once has no lease). Idempotent.
    """
    found = dict(defaults) | {name: getattr(delivery_settings, name, None) for name in FROM_DELIVERY}
    missing = {name: value for name, value in found.items() if getattr(topic, name) is None}
    return msgspec.structs.replace(topic, **missing)


def with_minimum(topic: TopicSettings, minimum: int | None) -> TopicSettings:
    """Fill in `min_in_sync`: the cluster's, or all replicas but one; at most as many as there are."""
    if topic.min_in_sync is not None or topic.replicas is None:
        return topic
    usual = minimum if minimum is not None else topic.replicas - 1
    return msgspec.structs.replace(topic, min_in_sync=max(1, min(usual, topic.replicas)))


def deliveries_max(topic: TopicSettings) -> int | None:
    """The limit of attempts at a record of a topic whose defaults are filled in; None: there is none."""
    if topic.max_deliveries is None:
        return DELIVERIES_MAX if topic.has_dead_letters else None
    return None if topic.max_deliveries == UNLIMITED else topic.max_deliveries


def delivery_settings_of(topic: TopicSettings, delivery_settings: S) -> S:
    """The settings for a topic's semantics: its delivery's settings, overridden by the topic's own."""
    topic = msgspec.structs.replace(topic, max_deliveries=topic.max_deliveries or deliveries_max(topic))
    own = {name: getattr(topic, name) for name in FROM_DELIVERY if hasattr(delivery_settings, name)}
    return msgspec.structs.replace(
        delivery_settings, **{name: value for name, value in own.items() if value is not None}
    )


def without_nulls(topic: TopicSettings) -> TopicSettings:
    """The same settings without null tables of services, which remove a table in a request over the wire."""
    if None not in topic.services.values():
        return topic
    services = {key: table for key, table in topic.services.items() if table is not None}
    return msgspec.structs.replace(topic, services=services)


def changed_keys(old: TopicSettings, new: TopicSettings) -> tuple[str, ...]:
    """The keys in which `new` differs from `old`, all of which may change while the topic exists.

    Raises:
        ConfigNotLive: a key differs that can't change in place; the text names all such keys. Partitions may only grow.
    """
    changed: list[str] = []
    refused: list[str] = []
    for field in fields_of(TopicSettings):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before == after:
            continue
        if field is rest_of(TopicSettings):
            keys = dict.fromkeys([*before, *after])
            changed += [key for key in keys if before.get(key) != after.get(key)]
            continue
        live = extra_of(field).get("live", True) and not (field.name == "partitions" and after < before)
        (changed if live else refused).append(field.encode_name)
    if refused:
        rule = " (partitions may only grow)" if "partitions" in refused else ""
        raise ConfigNotLive(f"{', '.join(refused)} can't change while the topic exists{rule}: make a new topic")
    return tuple(changed)
