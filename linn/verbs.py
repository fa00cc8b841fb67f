"""The administration verbs, each with the types of its arguments and its result.

The broker checks requests by these types, `linn.client.Admin` sends the arguments and returns the results, and the
reference of the command line shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec

from linn import descriptions, merging, rights
from linn.merging import Merge
from linn.message_status import SCHEDULED_SHOWN_MAX, MessageStatus, ScheduledChanged, ScheduledMessages
from linn.needs import binding as _binding
from linn.needs import broker as _broker
from linn.needs import exchange_settings as _exchange_settings
from linn.needs import named as _named
from linn.needs import of_group as _of_group
from linn.needs import of_topic as _of_topic
from linn.needs import shows_visible
from linn.needs import topic_settings as _topic_settings
from linn.rights import Need

A = TypeVar("A", bound=msgspec.Struct)
R = TypeVar("R")
Whole = Annotated[int, msgspec.Meta(ge=0)]
Outcome = Literal["done", "return", "dead-letter"]
"""The end of a decided delivery: settled, delivered again, or rejected."""

TRANSACTIONS_TOPIC = "__transactions"
"""The topic of the log of transactions. It has one partition, so that commits of many clients share one sync."""
Runs = Literal["anywhere", "leader", "coordinator", "everywhere", "here"]
"""The broker of a cluster that carries a verb out: any, as all have the catalog; the one that leads the topic that it
names, or the log of transactions; all of them; or the one that was asked, as it is about that broker."""


class Verb(NamedTuple, Generic[A, R]):
    """A named request to the broker, with the types of its arguments and its result, and the rights that it needs."""

    name: str
    arguments: type[A]
    result: type[R]
    needs: Callable[[A], Iterable[Need]]
    """The rights that a request with these arguments needs, all of them. `shows_visible`: none, as the result tells
    only of what its caller may see."""
    runs: Runs = "anywhere"
    """The broker of a cluster that carries it out. "everywhere": one that names a topic, at the topic's leader."""
    merge: Merge | None = None
    """Puts the results of all brokers together, if it runs everywhere."""

    @property
    def changes(self) -> bool:
        """Whether it changes anything. A verb that only reads waits for no change, and never sees a partial one."""
        return issubclass(self.arguments, Change)

    @property
    def acts(self) -> bool:
        """Whether it has an effect, which the audit trail records: a change, or an action of a service."""
        return self.changes or self.arguments is ServiceAction

    def topic_of(self, asked: A) -> str | None:
        """The topic whose leader carries a request out; None: it is not about the records of one topic."""
        topic: str | None = TRANSACTIONS_TOPIC if self.runs == "coordinator" else None
        if self.runs in ("leader", "everywhere"):
            topic = getattr(asked, "topic", None) or (getattr(asked, "name", None) if self.runs == "leader" else None)
        return topic


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
    """The name of a topic, an exchange, a transaction, a user or a role."""

    name: str


class NamedChange(Change):
    """A change of the topic, exchange, user or role of this name."""

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


class MessagesAsked(msgspec.Struct):
    """Ids of messages of a topic, each a UUID."""

    topic: str
    ids: Sequence[str]


class ScheduledAsked(msgspec.Struct):
    """The messages of a topic that come later; `count`: how many to show. `ids`: only these, in this order."""

    topic: str
    count: Whole = SCHEDULED_SHOWN_MAX
    ids: Sequence[str] = ()


class ScheduledChange(Change):
    """Messages that shall not come."""

    topic: str
    ids: Sequence[str]


class ScheduledMove(ScheduledChange):
    """Messages that shall come at another time, in ms since 1970."""

    due_ms: Whole


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


class NodeChange(Change):
    """The number of a node of the cluster."""

    node: Annotated[int, msgspec.Meta(ge=1)]


class TopicMoveChange(Change):
    """The name of a topic that moves from node to node."""

    topic: str


class TopicReassignment(TopicMoveChange):
    """A topic, and the numbers of the nodes that are to hold it, the preferred leader first."""

    nodes: Sequence[Annotated[int, msgspec.Meta(ge=1)]]


class Election(TopicMoveChange):
    """A topic, and the node that is to lead it; None: the preferred one. `unclean`: it may lack confirmed records,
    which only the nodes `give_up` have."""

    leader: Annotated[int, msgspec.Meta(ge=1)] | None = None
    unclean: bool = False
    give_up: Sequence[Annotated[int, msgspec.Meta(ge=1)]] = ()


class Upgrade(Change):
    """An upgrade of the cluster's metadata to the level of the broker's version."""


class Balance(Change):
    """A balance of the cluster's replicas and preferred leaders."""


class ConnectionClose(Change):
    """The number of a connection to close, and the reason for its client."""

    number: int
    reason: str = ""


class ServiceAction(msgspec.Struct):
    """An action of a service, and the arguments that the action takes."""

    service: str
    action: str
    arguments: Mapping[str, Any] = {}


class ClusterAsked(msgspec.Struct):
    """The number of topics in trouble to list."""

    troubled_max: Annotated[int, msgspec.Meta(ge=0, le=descriptions.TROUBLED_MAX)] = 10


class MetricNames(msgspec.Struct):
    """Prefixes of metric names."""

    names: Sequence[str] = ("",)


class NewUser(NamedChange):
    """A user to create, with roles and the facts for logging in."""

    roles: Sequence[str] = ()
    scram: str = ""
    certificate: str = ""
    uid: Whole | None = None
    limits: Mapping[str, Whole] = {}


class UserChange(NamedChange):
    """New values for a user. None: unchanged; "" or -1: the user has none any more.

    `add_roles` and `remove_roles` change `roles`, or the roles that the user has when the change is carried out, so
    that of two administrators neither loses the other's change.
    """

    roles: Sequence[str] | None = None
    add_roles: Sequence[str] = ()
    remove_roles: Sequence[str] = ()
    scram: str | None = None
    certificate: str | None = None
    uid: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    limits: Mapping[str, Whole] = {}


class RoleRules(NamedChange):
    """All rules of a role: operations by resource, as in TOML."""

    rules: Mapping[str, Sequence[str]]


class RightAsked(msgspec.Struct):
    """A user, an operation, and a resource such as `topic:orders`."""

    user: str
    operation: str
    resource: str


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


class Changed(TypedDict):
    """Whether anything is different now."""

    changed: bool


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


class NodeChanged(TypedDict):
    """Whether a node was changed, and the numbers of topics that it leads and holds now."""

    node: int
    changed: bool
    leads: int
    holds: int


class TopicMoved(TypedDict):
    """Whether a topic's reassignment was changed; the nodes that held it before, and the nodes that are to hold it."""

    topic: str
    changed: bool
    replicas: list[int]
    target: list[int]


class TopicToMove(TypedDict):
    """A topic that goes to other nodes: its replicas before, and its replicas when it is there."""

    topic: str
    replicas: list[int]
    target: list[int]


class Balanced(TypedDict):
    """Topics that a balance moves; the number of topics that it leaves for the next one, and the number of topics that
    moved already before it."""

    changed: bool
    moves: list[TopicToMove]
    left: int
    moving: int


class Upgraded(TypedDict):
    """Whether the level of a cluster's metadata was raised, and from which one to which."""

    changed: bool
    before: int
    level: int


# --- verbs ---

CREATE_TOPIC = Verb("topic.create", SettingsChange, Created, _topic_settings)
ALTER_TOPIC = Verb("topic.alter", SettingsChange, Altered, _topic_settings)
DELETE_TOPIC = Verb("topic.delete", NamedChange, TopicDeleted, _named(rights.CONFIGURE, rights.TOPIC))
SHOW_TOPIC = Verb("topic.show", Named, descriptions.TopicDescription, _named(rights.SEE, rights.TOPIC), runs="leader")
LIST_TOPICS = Verb(
    "topic.list",
    NoArguments,
    list[descriptions.TopicDescription],
    shows_visible,
    runs="everywhere",
    merge=merging.topics,
)
PURGE_TOPIC = Verb("topic.purge", NamedChange, Purged, _named(rights.CONFIGURE, rights.TOPIC), runs="leader")
FIND_MESSAGES = Verb("message.status", MessagesAsked, list[MessageStatus], _of_topic(rights.SEE), runs="leader")
LIST_SCHEDULED = Verb("scheduled.list", ScheduledAsked, ScheduledMessages, _of_topic(rights.SEE), runs="leader")
CANCEL_SCHEDULED = Verb(
    "scheduled.cancel", ScheduledChange, list[ScheduledChanged], _of_topic(rights.CONFIGURE), runs="leader"
)
MOVE_SCHEDULED = Verb(
    "scheduled.move", ScheduledMove, list[ScheduledChanged], _of_topic(rights.CONFIGURE), runs="leader"
)
CREATE_EXCHANGE = Verb("exchange.create", SettingsChange, Created, _exchange_settings)
DELETE_EXCHANGE = Verb("exchange.delete", NamedChange, Nothing, _named(rights.CONFIGURE, rights.EXCHANGE))
SHOW_EXCHANGE = Verb("exchange.show", Named, descriptions.ExchangeDescription, _named(rights.SEE, rights.EXCHANGE))
LIST_EXCHANGES = Verb("exchange.list", NoArguments, list[descriptions.ExchangeDescription], shows_visible)
EXPORT_DEFINITIONS = Verb("definitions.export", NoArguments, descriptions.Definitions, shows_visible)
BIND = Verb("exchange.bind", BindingChange, Created, _binding)
UNBIND = Verb("exchange.unbind", BindingChange, Unbound, _binding)
LIST_GROUPS = Verb(
    "group.list", OfTopic, list[descriptions.GroupSummary], shows_visible, runs="everywhere", merge=merging.groups
)
SHOW_GROUP = Verb(
    "group.show", OfGroup, descriptions.GroupDescription, _of_group(rights.SEE), runs="everywhere", merge=merging.group
)
RESET_GROUP = Verb(
    "group.reset",
    GroupReset,
    list[descriptions.GroupOffset],
    _of_group(rights.CONFIGURE),
    runs="everywhere",
    merge=merging.offsets,
)
DELETE_GROUP = Verb(
    "group.delete", GroupDeletion, Nothing, _of_group(rights.CONFIGURE), runs="everywhere", merge=merging.nothing
)
LIST_SUBSCRIPTIONS = Verb(
    "subscription.list",
    OfTopic,
    list[descriptions.QueueDescription],
    shows_visible,
    runs="everywhere",
    merge=merging.queues,
)
SHOW_SUBSCRIPTION = Verb(
    "subscription.show", OfSubscription, descriptions.QueueDetails, _of_topic(rights.SEE), runs="leader"
)
CREATE_SUBSCRIPTION = Verb("subscription.create", NewSubscription, Created, _of_topic(rights.CONFIGURE), runs="leader")
DELETE_SUBSCRIPTION = Verb(
    "subscription.delete", SubscriptionDeletion, Nothing, _of_topic(rights.CONFIGURE), runs="leader"
)
LIST_DELIVERIES = Verb(
    "delivery.list",
    DeliveryFilter,
    descriptions.DecidedDeliveries,
    shows_visible,
    runs="everywhere",
    merge=merging.deliveries,
)
RESOLVE_DELIVERY = Verb("delivery.resolve", DeliveryResolution, Resolved, _of_topic(rights.CONFIGURE), runs="leader")
LIST_TRANSACTIONS = Verb(
    "transaction.list", TransactionFilter, descriptions.TransactionSummaries, shows_visible, runs="coordinator"
)
SHOW_TRANSACTION = Verb(
    "transaction.show",
    Named,
    descriptions.TransactionDescription,
    _named(rights.SEE, rights.TRANSACTION),
    runs="coordinator",
)
ABORT_TRANSACTION = Verb(
    "transaction.abort", TransactionAbort, Aborted, _named(rights.CONFIGURE, rights.TRANSACTION), runs="coordinator"
)
LIST_CONNECTIONS = Verb(
    "connection.list", NoArguments, list[descriptions.ConnectionDescription], _broker(rights.ADMIN), runs="here"
)
CLOSE_CONNECTION = Verb("connection.close", ConnectionClose, Nothing, _broker(rights.ADMIN), runs="here")
LIST_SERVICES = Verb(
    "service.list", NoArguments, list[descriptions.ServiceDescription], _broker(rights.SEE), runs="here"
)
PERFORM_ACTION: Verb[ServiceAction, Any] = Verb(
    "service.perform", ServiceAction, object, _broker(rights.RUN), runs="here"
)
SHOW_BROKER = Verb("broker.show", NoArguments, descriptions.BrokerDescription, _broker(rights.SEE), runs="here")
CLUSTER_STATUS = Verb("cluster.status", ClusterAsked, descriptions.ClusterDescription, _broker(rights.SEE), runs="here")
DRAIN_NODE = Verb("cluster.drain", NodeChange, NodeChanged, _broker(rights.ADMIN))
UNDRAIN_NODE = Verb("cluster.undrain", NodeChange, NodeChanged, _broker(rights.ADMIN))
REMOVE_NODE = Verb("cluster.remove", NodeChange, NodeChanged, _broker(rights.ADMIN))
REASSIGN_TOPIC = Verb("cluster.reassign", TopicReassignment, TopicMoved, _broker(rights.ADMIN))
CANCEL_MOVE = Verb("cluster.cancel", TopicMoveChange, TopicMoved, _broker(rights.ADMIN))
BALANCE_CLUSTER = Verb("cluster.balance", Balance, Balanced, _broker(rights.ADMIN))
LIST_MOVES = Verb("cluster.moves", NoArguments, list[descriptions.TopicMoveDescription], _broker(rights.SEE))
ELECT_LEADER = Verb("cluster.elect", Election, TopicMoved, _broker(rights.ADMIN))
UPGRADE_CLUSTER = Verb("cluster.upgrade", Upgrade, Upgraded, _broker(rights.ADMIN))
SHOW_METRICS = Verb("metrics.show", MetricNames, list[descriptions.MetricDescription], _broker(rights.SEE), runs="here")
CREATE_USER = Verb("user.create", NewUser, Created, _broker(rights.ADMIN))
ALTER_USER = Verb("user.alter", UserChange, Changed, _broker(rights.ADMIN))
DELETE_USER = Verb("user.delete", NamedChange, Nothing, _broker(rights.ADMIN))
SHOW_USER = Verb("user.show", Named, descriptions.UserDescription, _broker(rights.ADMIN))
LIST_USERS = Verb("user.list", NoArguments, list[descriptions.UserDescription], _broker(rights.ADMIN))
CAN_USER = Verb("user.can", RightAsked, descriptions.RightDescription, shows_visible)
SHOW_CALLER = Verb("user.whoami", NoArguments, descriptions.CallerDescription, shows_visible)
CREATE_ROLE = Verb("role.create", RoleRules, Created, _broker(rights.ADMIN))
ALTER_ROLE = Verb("role.alter", RoleRules, Changed, _broker(rights.ADMIN))
DELETE_ROLE = Verb("role.delete", NamedChange, Nothing, _broker(rights.ADMIN))
SHOW_ROLE = Verb("role.show", Named, descriptions.RoleDescription, _broker(rights.ADMIN))
LIST_ROLES = Verb("role.list", NoArguments, list[descriptions.RoleDescription], _broker(rights.ADMIN))

VERBS: Mapping[str, Verb[Any, Any]] = {verb.name: verb for verb in list(globals().values()) if isinstance(verb, Verb)}
"""All verbs by name."""
