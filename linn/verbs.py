"""The administration verbs, each with the types of its arguments and its result.

The broker checks requests by these types, `linn.client.Admin` sends the arguments and returns the results, and the
reference of the command line shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec

from linn import descriptions

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R")
Whole = Annotated[int, msgspec.Meta(ge=0)]
Outcome = Literal["done", "return", "dead-letter"]
"""The end of a decided delivery: settled, delivered again, or rejected."""


class Verb(NamedTuple, Generic[A, R]):
    """A named request to the broker, with the types of its arguments and its result."""

    name: str
    arguments: type[A]
    result: type[R]

    @property
    def changes(self) -> bool:
        """Whether it changes anything. A verb that only reads waits for no change, and never sees a partial one."""
        return issubclass(self.arguments, Change)


class NoArguments(msgspec.Struct):
    """No arguments. In other structs, an argument that is None was left out."""


class Change(msgspec.Struct, kw_only=True):
    """Arguments of a change. `validate_only`: check the request without carrying it out."""

    validate_only: bool = False


class Placed(Change, kw_only=True):
    """A change with a place in each partition, given by one of these arguments."""

    to: Literal["earliest", "latest"] | None = None
    offset: int | None = None
    timestamp_ms: int | None = None


class Named(msgspec.Struct):
    """The name of a topic, an exchange or a transaction."""

    name: str


class NamedChange(Change):
    """A change of the topic or exchange of this name."""

    name: str


class SettingsChange(NamedChange):
    """Settings, as in TOML, for the topic or exchange of this name."""

    settings: Mapping[str, Any] = {}


class OfTopic(msgspec.Struct):
    """A topic to filter by; None: all."""

    topic: str | None = None


class BindingChange(Change):
    """A binding of an exchange, to a topic or to another exchange."""

    exchange: str
    topic: str | None = None
    target_exchange: str | None = None
    key: str = ""
    arguments: Mapping[str, Any] = {}


class OfGroup(msgspec.Struct):
    """The name of a group."""

    group: str


class GroupReset(Placed):
    """A new place for a group's offsets: in all its topics, in one topic, or in some partitions of it."""

    group: str
    topic: str | None = None
    partitions: Sequence[int] | None = None


class GroupDeletion(Change):
    """A group to delete, or a topic in which to delete its offsets."""

    group: str
    topic: str | None = None


class OfSubscription(msgspec.Struct):
    """A named shared subscription of a topic; "": the topic's queue."""

    topic: str
    subscription: str = ""


class NewSubscription(Placed):
    """A named shared subscription to create; it starts at the earliest record unless a place is given."""

    topic: str
    subscription: str


class SubscriptionDeletion(Change):
    """A named shared subscription to delete. `force`: even if it has consumers."""

    topic: str
    subscription: str
    force: bool = False


class DeliveryFilter(OfTopic):
    """A filter for decided deliveries. `subscription`: "" is the topic's queue, None means all of the topic's."""

    subscription: str | None = None
    consumer: str | None = None
    partition: Whole | None = None
    delivery_id: Whole | None = None


class DeliveryResolution(Change):
    """An end for a decided delivery, or for its offsets [first, end)."""

    topic: str
    partition: Whole
    delivery_id: Whole
    consumer: str
    outcome: Outcome
    subscription: str = ""
    first: Whole | None = None
    end: Whole | None = None


class TransactionFilter(msgspec.Struct):
    """A filter for transactions: their state, and a maximum number."""

    state: descriptions.TransactionState | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None


class TransactionAbort(Change):
    """The name of a transaction to abort, and its number; None: the present one."""

    name: str
    number: int | None = None


class ConnectionClose(Change):
    """The number of a connection to close, and the reason for its client."""

    number: int
    reason: str = ""


class ServiceAction(msgspec.Struct):
    """An action of a service, and the arguments that the action takes."""

    service: str
    action: str
    arguments: Mapping[str, Any] = {}


class MetricNames(msgspec.Struct):
    """Prefixes of metric names."""

    names: Sequence[str] = ("",)


# --- results of changes ---

Nothing = dict[str, object]
"""An empty result."""


class Created(TypedDict):
    """Whether an object was created: false if it existed."""

    created: bool


class Warned(TypedDict):
    """A warning about a consequence of a change."""

    text: str


class FileWarning(Warned):
    """A warning that the configuration file names a deleted topic: the next start creates it again."""

    file: str


class LineWarning(FileWarning):
    """A warning that a line of the configuration file sets another value for a changed key."""

    key: str
    line: int


class Altered(TypedDict):
    """The names of the changed settings."""

    changed: list[str]
    warnings: list[LineWarning]


class TopicDeleted(TypedDict):
    """Warnings about the deletion of a topic."""

    warnings: list[FileWarning]


class Purged(TypedDict):
    """The number of records that were settled."""

    purged: int


class Unbound(TypedDict):
    """Whether the binding existed."""

    deleted: bool


class Resolved(TypedDict):
    """The number of records of a delivery that was ended."""

    records: int
    warnings: list[Warned]


class Aborted(TypedDict):
    """The aborted transaction, with fields of `TransactionSummary`."""

    number: int
    open_s: float
    partitions: int
    offsets: int
    queue_partitions: int
    warnings: list[Warned]


# --- verbs ---

CREATE_TOPIC = Verb("topic.create", SettingsChange, Created)
ALTER_TOPIC = Verb("topic.alter", SettingsChange, Altered)
DELETE_TOPIC = Verb("topic.delete", NamedChange, TopicDeleted)
SHOW_TOPIC = Verb("topic.show", Named, descriptions.TopicDescription)
LIST_TOPICS = Verb("topic.list", NoArguments, list[descriptions.TopicDescription])
PURGE_TOPIC = Verb("topic.purge", NamedChange, Purged)
CREATE_EXCHANGE = Verb("exchange.create", SettingsChange, Created)
DELETE_EXCHANGE = Verb("exchange.delete", NamedChange, Nothing)
SHOW_EXCHANGE = Verb("exchange.show", Named, descriptions.ExchangeDescription)
LIST_EXCHANGES = Verb("exchange.list", NoArguments, list[descriptions.ExchangeDescription])
BIND = Verb("exchange.bind", BindingChange, Created)
UNBIND = Verb("exchange.unbind", BindingChange, Unbound)
LIST_GROUPS = Verb("group.list", OfTopic, list[descriptions.GroupSummary])
SHOW_GROUP = Verb("group.show", OfGroup, descriptions.GroupDescription)
RESET_GROUP = Verb("group.reset", GroupReset, list[descriptions.GroupOffset])
DELETE_GROUP = Verb("group.delete", GroupDeletion, Nothing)
LIST_SUBSCRIPTIONS = Verb("subscription.list", OfTopic, list[descriptions.QueueDescription])
SHOW_SUBSCRIPTION = Verb("subscription.show", OfSubscription, descriptions.QueueDetails)
CREATE_SUBSCRIPTION = Verb("subscription.create", NewSubscription, Created)
DELETE_SUBSCRIPTION = Verb("subscription.delete", SubscriptionDeletion, Nothing)
LIST_DELIVERIES = Verb("delivery.list", DeliveryFilter, descriptions.DecidedDeliveries)
RESOLVE_DELIVERY = Verb("delivery.resolve", DeliveryResolution, Resolved)
LIST_TRANSACTIONS = Verb("transaction.list", TransactionFilter, descriptions.TransactionSummaries)
SHOW_TRANSACTION = Verb("transaction.show", Named, descriptions.TransactionDescription)
ABORT_TRANSACTION = Verb("transaction.abort", TransactionAbort, Aborted)
LIST_CONNECTIONS = Verb("connection.list", NoArguments, list[descriptions.ConnectionDescription])
CLOSE_CONNECTION = Verb("connection.close", ConnectionClose, Nothing)
LIST_SERVICES = Verb("service.list", NoArguments, list[descriptions.ServiceDescription])
PERFORM_ACTION: Verb[ServiceAction, Any] = Verb("service.perform", ServiceAction, object)
SHOW_BROKER = Verb("broker.show", NoArguments, descriptions.BrokerDescription)
SHOW_METRICS = Verb("metrics.show", MetricNames, list[descriptions.MetricDescription])

VERBS: Mapping[str, Verb[Any, Any]] = {verb.name: verb for verb in list(globals().values()) if isinstance(verb, Verb)}
"""All verbs by name."""
