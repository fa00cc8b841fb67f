"""Types of a broker's descriptions of topics, exchanges, groups, queues, transactions and connections.

They are plain dicts at run time. Keys that do not apply to a topic or a binding are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypedDict

Duration = str
"""A number with a unit: "30s", "14d"."""
Size = int | str
"""Bytes, or a number with a unit: "64MiB"."""


class TopicSettings(TypedDict, total=False):
    """Keys of `[topics.NAME]` for `create_topic` and `alter_topic`; each may be left out."""

    kind: Literal["queue", "stream", "both"]
    partitions: int
    partitioner: str
    storage: str
    delivery: str
    replicas: int
    """Only in a cluster, as `min_in_sync`."""
    min_in_sync: int
    retention: Duration
    """ "forever": records are never dropped for their age."""
    retention_bytes: Size
    """ "unlimited": records are never dropped for their size."""
    keep: Duration
    ttl: Duration
    """ "unlimited": records wait in a queue for ever."""
    max_deliveries: int | Literal["unlimited"]
    dead_letter: str
    dead_letter_exchange: str
    dead_letter_key: str
    lease: Duration
    """ "connection": as long as the consumer is connected."""
    redelivery_delay: Duration
    redelivery_delay_max: Duration
    redelivery_backoff: Literal["fixed", "linear", "exponential"]
    consumers: Literal["many", "one"]
    expires: Duration
    """ "never": a queue is kept without consumers."""
    delete_when: Literal["never", "unused"]
    lifetime: Literal["kept", "broker", "connection"]
    message_bytes_max: Size
    bytes_max: Size
    """ "unlimited": `overflow` never applies to the size."""
    records_max: int | Literal["unlimited"]
    """ "unlimited": `overflow` never applies to the number of unsettled records."""
    overflow: Literal["block", "reject", "drop-head", "dead-letter"]
    order: str
    order_by: str | None
    weights: dict[str, int] | None
    levels: int | None
    order_window: int
    dedup: Duration
    """ "off": messages are stored again that have the ids of earlier ones."""
    status: Duration
    """ "off": the topic can't be asked about messages by their ids."""
    interceptors: Sequence[str]
    bindings: Sequence[dict[str, Any]]
    """Bindings with `exchange`, `key` and arguments of the exchange's type."""


class PartitionBounds(TypedDict):
    """A partition: its first offset, the offset after its last record, its readable records, and its size."""

    start: int
    end: int
    records: int
    bytes: int


class QueueCounts(TypedDict):
    """Numbers of a queue's unsettled, leased and decided records, and of its consumers.

    `dropped` and `dead_lettered`: records that overflow has dropped, and made dead letters, since the broker leads it.
    """

    unsettled: int
    leased: int
    decided: int
    consumers: int
    dropped: int
    dead_lettered: int


class FollowerDescription(TypedDict):
    """A follower of a topic, as the topic's leader knows it."""

    node: int
    is_linked: bool
    """Whether it follows now."""
    lag_records: int | None
    """Records of all logs of the topic, states of queues included, that it has not confirmed; None: it has not followed
    since the leader was elected."""
    lag_s: float
    """Time since it had everything that the leader had; 0: it has."""


class ReplicasDescription(TypedDict):
    """The replicas of a topic, as one of them knows them: who leads, and who holds everything that is confirmed."""

    leader: int
    """A node's number; 0: none leads, since all that are in sync are down, or as long as it takes to elect one."""
    epoch: int
    nodes: list[int]
    in_sync: list[int]
    followers: list[FollowerDescription]
    """Only from the leader; empty from others."""


class TopicDescription(TypedDict):
    """A topic; `queue` is left out for a stream, and `replicas` without a cluster."""

    name: str
    id: str
    """The topic's UUID; an earlier or later topic of the same name has another one."""
    settings: TopicSettings
    partitions: list[PartitionBounds]
    producers: int
    """Idempotent producers that the partitions remember, counted once per partition."""
    duplicates: int
    """Repeated batches, which were not stored again, since the topic was opened."""
    queue: NotRequired[QueueCounts]
    replicas: NotRequired[ReplicasDescription]


class BindingDescription(TypedDict):
    """A binding of an exchange, to a `topic` or to another `exchange`."""

    topic: NotRequired[str]
    exchange: NotRequired[str]
    key: str
    arguments: dict[str, Any]


class ExchangeDescription(TypedDict):
    """An exchange; `settings` belong to its type, but for `internal`, `delete_when`, `lifetime` where they are set."""

    name: str
    type: str
    alternate: str | None
    settings: dict[str, Any]
    bindings: list[BindingDescription]


class Definitions(TypedDict):
    """All exchanges and topics of a broker, by name."""

    exchanges: list[ExchangeDescription]
    topics: list[TopicDescription]


class GroupSummary(TypedDict):
    """A consumer group: the topics in which it has members or offsets, its members, and its total lag."""

    group: str
    topics: list[str]
    members: int
    epoch: int
    assignor: str
    lag: int


class GroupMember(TypedDict):
    """A member of a group. Its epoch is lower than the group's while it has partitions to give up."""

    member: str
    is_static: bool
    epoch: int
    session_s: float
    topics: list[str]
    partitions: int


class GroupOffset(TypedDict):
    """A group's offset and lag in one partition, the partition's bounds, and the member that reads it."""

    topic: str
    partition: int
    offset: int | None
    text: str
    lag: int
    start: int
    end: int
    member: str | None


class GroupDescription(TypedDict):
    """A consumer group, its members, and its offset in each partition of its topics."""

    group: str
    topics: list[str]
    epoch: int
    assignor: str
    lag: int
    members: list[GroupMember]
    offsets: list[GroupOffset]


class RecordStates(TypedDict):
    """Records of a queue by state; `returned` counts the `ready` and `delayed` records that had a consumer before.

    `dead`: rejected or out of attempts, and not yet copied to the dead-letter topic.
    """

    ready: int
    returned: int
    leased: int
    decided: int
    """Decided to a consumer in a two-phase delivery, and not done."""
    delayed: int
    dead: int


class QueueDescription(RecordStates):
    """A queue, or a named shared subscription."""

    topic: str
    subscription: str
    """The name of the shared subscription; "": the topic's queue."""
    unsettled: int
    damaged: int
    oldest_ready_s: float
    """Age of the oldest ready record, since it was stored; 0: none is ready."""
    missed: int
    """Records that retention or overflow removed unsettled, since the broker leads the topic, as of `expired`."""
    expired: int
    consumers: int


class QueuePartition(RecordStates):
    """A partition of a queue; `settled` and `damaged` are ranges [first, end)."""

    partition: int
    settled_before: int
    end: int
    settled: list[list[int]]
    damaged: list[list[int]]


class QueueConsumer(TypedDict):
    """A consumer of a queue: its number, its name or "", and the numbers of records leased and decided to it."""

    consumer: int
    name: str
    priority: int
    active: bool
    """Whether it gets records: with `consumers = "one"` only one does, or none while a takeover waits."""
    leased: int
    decided: int


class QueueDetails(QueueDescription):
    """A queue, also by partition and by consumer."""

    by_partition: list[QueuePartition]
    by_consumer: list[QueueConsumer]


class DecidedDelivery(TypedDict):
    """Records [first, end) of a partition that were decided to a consumer in one delivery and are not done."""

    topic: str
    subscription: str
    """The name of the shared subscription; "": the topic's queue."""
    partition: int
    delivery_id: int
    first: int
    end: int
    consumer: str
    attempt: int
    since_ms: int
    """The time of the decision."""
    connected: bool
    """Whether the consumer is connected."""


class DecidedDeliveries(TypedDict):
    """Decided deliveries by subscription, partition and offset, and the number left out."""

    deliveries: list[DecidedDelivery]
    more: int


TransactionState = Literal["idle", "open", "ending"]


class TransactionSummary(TypedDict):
    """The transactions of a name: its owner, and the work of the present transaction."""

    name: str
    state: TransactionState
    producer_id: int
    epoch: int
    number: int
    """The number of the present transaction, or of the next one."""
    open_s: float | None
    """Seconds since it was opened; None while idle."""
    timeout_s: float | None
    """None if no client has used the name since the start of the broker."""
    partitions: int
    """Partitions to which it has written; in a cluster, topics in which it writes, acks or commits offsets."""
    branches: int
    """Producers that may write in it."""
    offsets: int
    """Offsets of groups that it will commit."""
    queue_partitions: int
    """Partitions of queues with records that it holds."""
    since_ms: int
    """The time at which the name was taken."""


class TransactionSummaries(TypedDict):
    """Names of transactions, open ones first, and the number left out."""

    transactions: list[TransactionSummary]
    more: int


class WrittenPartition(TypedDict):
    """A partition to which a transaction has written, and the offset from which it holds readers back."""

    topic: str
    partition: int
    held_from: int | None
    """None: it is marked there and no longer holds readers back."""


class HeldRecords(TypedDict):
    """Records of a queue's partition that a transaction holds: its commit acks them."""

    topic: str
    subscription: str
    partition: int
    records: int


class CommittedOffset(TypedDict):
    """A group's offset that a transaction commits."""

    group: str
    topic: str
    partition: int
    offset: int


class TransactionDescription(TransactionSummary):
    """The transactions of a name, also by partition."""

    wrote: list[WrittenPartition]
    holds: list[HeldRecords]
    commits: list[CommittedOffset]
    elsewhere: list[str]
    """Topics that other brokers lead, in which it writes, acks or commits offsets."""


class MetricDescription(TypedDict):
    """A metric: the names of its labels, and samples of [values of the labels, value]."""

    name: str
    kind: str
    labels: list[str]
    samples: list[Any]


class ConnectionSubscription(TypedDict):
    """A subscription of a connection: its topic, its group or "", its shared subscription or "", the consumer's name or
    "", and the number of records leased or decided to it."""

    topic: str
    group: str
    shared: str
    name: str
    held: int


class ConnectionDescription(TypedDict):
    """An open connection: number, client, user, peer, listener, age, traffic, memory, and subscriptions.

    `client` is the `name` given by the client. `login`: how the user has logged in, as in `CallerDescription`; `user`
    and `login` are "" until then. At most 100 subscriptions are listed.
    """

    number: int
    peer: str
    client: str
    user: str
    login: str
    listener: str
    protocol: str
    open_s: float
    received_bytes: int
    sent_bytes: int
    inflight_requests: int
    unsent_bytes: int
    held_bytes: int
    subscriptions: list[ConnectionSubscription]


class UserDescription(TypedDict):
    """A user."""

    user: str
    roles: list[str]
    has_password: bool
    certificate: str
    """ "": none."""
    uid: int | None
    limits: dict[str, int]
    """Limits over all connections of the user; absent ones are none."""
    in_file: bool
    """Whether the configuration file names the user; only the file can change it then."""


class RoleDescription(TypedDict):
    """A role: the operations that it allows, by resource."""

    role: str
    rules: dict[str, list[str]]
    in_file: bool


class CallerDescription(TypedDict):
    """The caller itself. `login`: how it logged in; `connection`: its address, as the broker sees it."""

    user: str
    login: str
    roles: list[str]
    connection: str


class RightDescription(TypedDict):
    """Whether a user may do something, and the roles that allow it."""

    allowed: bool
    roles: list[str]


class ServiceDescription(TypedDict):
    """A configured service. `status`: as reported by the service; None after it failed."""

    name: str
    plugin: str
    state: Literal["waiting", "running", "ended", "failed"]
    error: str | None
    status: Any


class BrokerDescription(TypedDict):
    """The broker: its name and version, the addresses of its listeners by name, and counts."""

    name: str
    version: str
    listeners: dict[str, str]
    connections: int
    topics: int
    exchanges: int


NodeState = Literal["alive", "left", "given up", "gone"]
""" "left": it was stopped; "gone": its session has ended, and no controller has noted it yet."""


class SessionEndDescription(TypedDict):
    """The end of a node's session."""

    session: str
    at_ms: int
    reason: Literal["given up", "left"]


class NodeDescription(TypedDict):
    """A node of a cluster. `since_ms`: since when it is in its state; None: unknown."""

    node: int
    state: NodeState
    since_ms: int | None
    session: str | None
    host: str
    rack: str
    addresses: dict[str, str]
    """By listener, as others reach them; empty unless it is alive."""
    lost: Literal["none", "memory", "tail", "all"]
    """Loss that the controller has not handled yet."""
    is_draining: bool
    leads: int
    """Topics that it leads."""
    holds: int
    """Topics of which it is a replica, led ones included."""
    out_of_sync: int
    """Topics of which it is a replica that is out of sync."""
    version: str
    """Its version of linn; empty unless it is alive, and where it is an early one that does not tell."""
    levels: list[int]
    """The least and the greatest level of a cluster that it knows; empty unless it is alive."""
    clock_ahead_s: float | None
    """Lead of its clock over that of the node that answers; None: the two are not linked."""
    ends: list[SessionEndDescription]
    """The last ends of its sessions, the oldest first."""


TROUBLED_MAX = 10_000
"""Limit of the topics in trouble in one answer: about 3 MB of JSON, a fifth of the largest frame."""
Trouble = Literal["leaderless", "below minimum", "unfit", "out of sync", "too few replicas"]
""" "leaderless": no live node leads it; "below minimum": fewer live in-sync members than `min_in_sync`, so that
`acks = all` is refused; "unfit": a member's disk is full, or a replica's log was damaged; "out of sync": a replica
lacks records, or is down; "too few replicas": there are fewer than `replicas`, as there are too few nodes."""


class TopicTrouble(TypedDict):
    """A topic of a cluster that is not as it should be."""

    topic: str
    troubles: list[Trouble]
    """The worst first."""
    leader: int
    """0: none."""
    epoch: int
    nodes: list[int]
    """Its replicas."""
    in_sync: list[int]
    """Replicas that are in sync and alive."""
    unfit: list[int]
    replicas: int
    """The number that it should have."""
    min_in_sync: int


class TopicsHealth(TypedDict):
    """Numbers of a cluster's topics; one may count several times."""

    topics: int
    leaderless: int
    below_minimum: int
    unfit: int
    out_of_sync: int
    too_few_replicas: int
    moving: int
    """Topics that are being moved to other nodes."""
    away: int
    """Topics that another node leads than their preferred one, the first of their replicas."""


class TopicMoveDescription(TypedDict):
    """A topic that moves to other nodes, or whose leader is about to hand it over."""

    topic: str
    leader: int
    """0: no node."""
    successor: int | None
    """The node to which the leader hands it over; None: it leads on."""
    replicas: list[int]
    """The nodes that held it before."""
    target: list[int]
    """The nodes that are to hold it, the preferred leader first."""
    in_sync: list[int]
    """Nodes that have all that is committed: it has moved when all of the target are among them."""
    is_cancelled: bool
    """Whether it goes back to the former nodes."""


class ClusterDescription(TypedDict):
    """The cluster, as one node knows it. `node` is None, and all else is empty, where the broker is alone."""

    name: str | None
    id: str | None
    node: int | None
    """The node that answers."""
    is_registered: bool
    """Whether the node that answers has a session that can't have ended."""
    nodes: list[NodeDescription]
    controller: int | None
    controller_epoch: int | None
    store: str | None
    """The kind of the metadata store."""
    store_latency_s: float
    """Duration of the last renewal of the session."""
    revision: int
    """The revision of the store that the node knows."""
    view_age_s: float
    """Time since the node knew that it missed nothing; 0: it still does."""
    problem: str | None
    """Why the node's view is old; None: it is not."""
    level: int | None
    """The level of the cluster: what its brokers may use. `linn cluster upgrade` raises it."""
    session_timeout_s: float
    """The session timeout of the node that answers."""
    failing: int
    """Topics of which the disk of the node that answers has not taken the last records."""
    topics: TopicsHealth
    troubled: list[TopicTrouble]
    """Topics in trouble, the worst first, as many as were asked for."""
    troubled_more: int
    """Topics in trouble that are not in the list."""
