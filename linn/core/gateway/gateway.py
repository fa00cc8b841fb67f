"""The gateway: everything that a protocol may do with the broker. A protocol parses, calls the gateway, and answers.

Waiting for room, making topics, taking turns and counting memory happen behind it. Each call names its principal, the
identity of the caller; until there are logins it is `ANONYMOUS`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from linn.core.admin.administration import Administration
from linn.core.admin.place import check_offset
from linn.core.batch.batch import RecordBatch
from linn.core.batch.format import NATIVE_ONLY, Formats
from linn.core.batch.steps import Steps
from linn.core.config.tables import BrokerSettings
from linn.core.connections.connections import Connections
from linn.core.env.env import Env, Spawn
from linn.core.errors.texts import one_line
from linn.core.errors.tree import DeliveryError, SubscriptionWrongKind
from linn.core.groups.coordinator import GroupCoordinator
from linn.core.groups.group import check_name
from linn.core.groups.member import GroupMember, JoinRequest, OnAssigned
from linn.core.log.delivery import Consumer, Settlement, SettleOutcome, nobody
from linn.core.log.partition import Partition
from linn.core.log.selection import Selection
from linn.core.log.storage import StoredBatch
from linn.core.loop.fair_turns import FairTurns
from linn.core.loop.long_work import LongWork
from linn.core.loop.memory_budget import MemoryBudget
from linn.core.loop.waiting import WaitDeadline
from linn.core.metrics.registry import Family, MetricRegistry
from linn.core.publish.producer_ids import ProducerIds
from linn.core.publish.publisher import Publisher, PublishLane
from linn.core.publish.request import PublishAnswers, PublishRequest, PublishResult
from linn.core.queue.consumer import QueueConsumer
from linn.core.queue.queue import Queue
from linn.core.queue.unsettled import Unsettled
from linn.core.routing.record_filter import RecordFilter
from linn.core.topics.catalog import Catalog
from linn.core.topics.topic import Topic
from linn.core.transactions.coordinator import TransactionCoordinator
from linn.core.transactions.ending import Ending
from linn.core.transactions.producer import Owner, TransactionId

START_EARLIEST = -2
START_LATEST = -1
State = Literal["starting", "ready", "stopping"]


class Principal(NamedTuple):
    """The identity of a caller."""

    name: str = "anonymous"
    connection: str = ""
    """The address that the caller's connection comes from."""
    client: str = ""
    """The client's name for itself."""

    def described(self) -> str:
        """The caller in words, for a log line: name, address and client."""
        at, client = f" at {self.connection}" if self.connection else "", f" ({self.client})" if self.client else ""
        return one_line(self.name + at + client)


ANONYMOUS = Principal()


class SubscribeRequest(NamedTuple):
    """A topic to read, and from where."""

    topic: str
    group: str = ""
    """On a stream, the group whose members share the partitions. "": on a queue, one of the consumers that compete; on
    a stream, a reader whose place nobody keeps."""
    start: int = START_EARLIEST
    """The first offset on a stream where nothing was committed; or START_EARLIEST, START_LATEST."""
    starts: Sequence[int] = ()
    """The same by partition. Empty: `start` holds for all."""
    partitions: Sequence[int] = ()
    """The partitions that a reader without a group reads. Empty: all."""
    where: str = ""
    """On a stream, a predicate over routing key and labels: other records are passed over. "": all are wanted."""
    member: str = ""
    """The name of the consumer; one that is taken is taken over, of a group's members or of the consumers of one shared
    subscription. "": any."""
    session_s: float = 0.0
    """Time without a heartbeat after which a member is given up; 0: it lives as long as its connection."""
    is_static: bool = False
    """Whether a member keeps its share, for the time of a session, when it leaves."""
    leader_epoch: int = 0
    """The epoch in which a reader without a group has read what lies before its starts; 0: not checked."""
    shared: str = ""
    """The name of a stream's shared subscription, whose consumers compete as those of a queue do. It is made if it is
    not there, and begins at `start` then."""
    accepts: Sequence[int] = NATIVE_ONLY
    """The formats of bodies that are taken; a batch of another one is translated into the first of them."""
    is_two_phase: bool = False
    """Whether the consumer says that it is ready for records, and done with what was decided to it."""
    is_uncommitted: bool = False
    """On a stream, whether records of transactions that are open, or were aborted, are read as well."""


class Subscription(NamedTuple):
    """A consumer, and its kind."""

    kind: int
    """0: one of the consumers that compete for a queue or a shared subscription; 1: a member of a group; 2: a reader
    without a group."""
    consumer: Consumer


class Fetched(NamedTuple):
    """Part of a partition, and the partition's bounds."""

    start_offset: int
    high_watermark: int
    batches: Sequence[RecordBatch | StoredBatch]


@dataclass(frozen=True, slots=True, eq=False)
class Gateway:
    """The gateway of one broker. Its fields are what a protocol's connections share with the rest of the broker."""

    name: str
    """The broker's configured name."""
    settings: BrokerSettings
    env: Env
    spawn: Spawn
    """Starts a background task in the broker's nursery."""
    blamed: Callable[[BaseException], str]
    """Names the plugin, or the part of linn, in which an unforeseen error was raised."""
    connections: Connections
    memory: MemoryBudget
    turns: FairTurns
    long_work: LongWork
    catalog: Catalog
    groups: GroupCoordinator
    formats: Formats
    publisher: Publisher
    transactions: TransactionCoordinator
    producer_ids: ProducerIds
    administration: Administration
    metrics: MetricRegistry
    read_state: Callable[[], State]
    read_addresses: Callable[[], Mapping[str, str]]

    # --- looking ---

    @property
    def state(self) -> State:
        """The broker's state: clients can connect while it is "ready"."""
        return self.read_state()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Bound address by listener; those for clients come first."""
        return self.read_addresses()

    def topics(self, principal: Principal) -> Mapping[str, Topic]:
        """All topics, by name."""
        return self.catalog.topics

    def collect_metrics(self, principal: Principal, *, per_connection: bool = True) -> Iterator[Family]:
        """All metrics, each read when the iterator comes to it."""
        return self.metrics.collect(per_connection=per_connection)

    def topic(self, principal: Principal, name: str) -> Topic:
        """The topic of that name. Raises TopicUnknown."""
        return self.catalog.topic(name)

    # --- publishing ---

    def publish_lane(self, principal: Principal, answers: PublishAnswers, spawn: Spawn) -> PublishLane:
        """A lane that carries out the publishes of one connection in order; `spawn` starts a task that ends with the
        connection.
        """
        return self.publisher.lane(answers, spawn)

    async def publish(self, principal: Principal, request: PublishRequest) -> Sequence[PublishResult]:
        """Publish, and wait until everything is confirmed; for protocols that carry out one request after the other.

        Raises LinnErrors of the publish. Cancellation: it may or may not be stored.
        """
        return await self.publisher.publish(request)

    # --- reading ---

    async def subscribe(
        self, principal: Principal, request: SubscribeRequest, on_assigned: OnAssigned = nobody
    ) -> Subscription:
        """Subscribe as `subscribe_nowait` does, after making what is missing: a topic, if the configuration allows it,
        and a named shared subscription.

        Cancellation: there is no subscription; the topic and the shared subscription may have been made.
        """
        if self.is_missing(request):
            await self.make_missing(principal, request)
        return self.subscribe_nowait(principal, request, on_assigned)

    def is_missing(self, request: SubscribeRequest) -> bool:
        """Whether a topic or a shared subscription must be made before a client can subscribe to it."""
        topic = self.catalog.topics.get(request.topic)
        if topic is None:
            return self.settings.auto_create_topics
        return bool(request.shared) and request.shared not in topic.subscriptions

    async def make_missing(self, principal: Principal, request: SubscribeRequest) -> None:
        """Make a topic with default settings, and a named shared subscription, unless they exist.

        Raises ConfigError, LimitExceeded, SubscriptionWrongKind, TopicUnknown, StorageError.
        """
        if self.settings.auto_create_topics and request.topic not in self.catalog.topics:
            await self.administration.create_default_topic(request.topic)
        if request.shared:
            topic = self.catalog.topic(request.topic)
            _check_shared(topic, request)
            _check_start(topic, request)
            place = _start_of(topic, request)
            starts = [place(index) for index in sorted(topic.partitions)]
            await self.administration.make_subscription(topic.name, request.shared, starts)

    def subscribe_nowait(
        self, principal: Principal, request: SubscribeRequest, on_assigned: OnAssigned = nobody
    ) -> Subscription:
        """Begin to read a topic; close the consumer at the end.

        `on_assigned` is called when a member of a group gains or loses partitions.

        Raises TopicUnknown, PartitionUnknown, SharedUnknown, SubscriptionWrongKind, DeliveryError, PredicateInvalid,
        FormatUnknown, LogTruncated, OffsetOutOfRange.
        """
        accepts = self.formats.accepts_of(request.accepts)
        subscription = self._subscribed(request, on_assigned, accepts)
        subscription.consumer.accepts = accepts
        return subscription

    def _subscribed(self, request: SubscribeRequest, on_assigned: OnAssigned, accepts: Sequence[int]) -> Subscription:
        topic = self.catalog.topic(request.topic)
        selection = self._filter(request.where, accepts)
        if request.shared:
            _check_shared(topic, request)
            return _competing(topic, topic.shared(request.shared), request)
        if request.group:
            if topic.stream is None:
                raise SubscriptionWrongKind(f"topic {topic.name} is a queue: consumers compete without naming a group")
            group = self.groups.groups.get(request.group)
            committed = group.offsets() if group is not None else {}
            if not all((topic.name, index) in committed for index in topic.partitions):
                _check_start(topic, request)
            start = _start_of(topic, request)
            who = request.member, request.session_s, request.is_static
            how = selection, request.is_uncommitted
            joining = JoinRequest(request.group, topic.name, start, on_assigned, *who, *how)
            return Subscription(1, self.groups.join(joining))
        if topic.queue is not None:
            if selection is not None:
                raise SubscriptionWrongKind(
                    f"topic {topic.name} is a queue: records that a consumer's filter leaves out would wait for nobody"
                )
            if request.start != START_EARLIEST or request.starts or request.partitions:
                raise SubscriptionWrongKind(
                    f"topic {topic.name} is a queue: its consumers get what is not settled, "
                    "and choose no start or partition"
                )
            return _competing(topic, topic.queue, request)
        for index in request.partitions:
            topic.partition(index)
        for index in request.partitions or topic.partitions if request.leader_epoch else ():
            at = request.starts[index] if index < len(request.starts) else request.start
            topic.partition(index).check_position(at, request.leader_epoch)
        if not request.leader_epoch:
            _check_start(topic, request)
        reader, place = topic.read(is_uncommitted=request.is_uncommitted), _start_of(topic, request)
        reader.selection = selection
        reader.read_all_from({index: place(index) for index in request.partitions or topic.partitions})
        return Subscription(2, reader)

    def _filter(self, where: str, accepts: Sequence[int]) -> Selection | None:
        """The records that a predicate wants; None: all. Raises PredicateInvalid."""
        return Selection(RecordFilter.parse(where), self.long_work, accepts) if where else None

    def fetch_selection(
        self, principal: Principal, topic: str, index: int, where: str, accepts: Sequence[int], *, unsettled: bool
    ) -> Selection | None:
        """The records of a partition to fetch: of all or only the unsettled ones, those that a predicate wants.

        None: all. Raises TopicUnknown, PartitionUnknown, PredicateInvalid; SubscriptionWrongKind if `unsettled` and the
        topic is no queue.
        """
        if not unsettled:
            return self._filter(where, accepts)
        queue = self.catalog.topic(topic).queue
        if queue is None:
            raise SubscriptionWrongKind(f"topic {topic} is a stream, on which no record is settled")
        among = RecordFilter.parse(where) if where else None
        return Selection(Unsettled(queue.dispatch(index).subscription, among), self.long_work, accepts)

    def settle(
        self, principal: Principal, consumer: Consumer, settlements: Iterable[Settlement]
    ) -> Steps[SettleOutcome]:
        """Carry out settlements one by one; see `Consumer.settle`. Steps behind the first are for `long_work`."""
        return consumer.settle(settlements)

    # --- transactions ---

    async def open_transactions(
        self, principal: Principal, name: str, timeout_s: float, owner: tuple[int, int] | None = None, opening: int = 0
    ) -> tuple[int, int, int]:
        """Take over a name of transactions; returns producer id, epoch, and the number of the next one.

        `owner`: only if the name is still that of this producer id and epoch. `opening`: see
        `TransactionCoordinator.open`.

        Raises DeliveryError, LimitExceeded, TransactionBusy, TransactionFenced, StorageError.
        """
        opened = await self.transactions.open(name, timeout_s, Owner(*owner) if owner is not None else None, opening)
        return opened.producer_id, opened.epoch, opened.number

    def add_branch(self, principal: Principal, producer_id: int, epoch: int, branch: int) -> None:
        """Let a producer write in a client's transactions. Raises TransactionError, LimitExceeded."""
        self.transactions.add_branch(producer_id, epoch, branch)

    def settle_in_transaction(
        self,
        principal: Principal,
        owner: tuple[int, int, int],
        consumer: Consumer,
        settlements: Sequence[Settlement],
    ) -> None:
        """Ack records of a queue, or commit offsets of a group's member, if a transaction is committed.

        `owner`: producer id, epoch and number. Raises TransactionError, LimitExceeded, SubscriptionWrongKind,
        StorageError, and as `Consumer.settle`.
        """
        if isinstance(consumer, QueueConsumer):
            self.transactions.hold(TransactionId(*owner), consumer, settlements)
        elif isinstance(consumer, GroupMember):
            for each in settlements:
                self.transactions.commit_offset(
                    TransactionId(*owner), consumer, each.partition, each.delivery_id, each.end
                )
        else:
            raise SubscriptionWrongKind("a reader without a group has nothing to settle in a transaction")

    def end_transaction(
        self,
        principal: Principal,
        owner: tuple[int, int, int],
        *,
        is_commit: bool,
        branches: Sequence[int],
        sequence: int = 0,
        identity: str = "",
    ) -> Ending | None:
        """Commit a transaction, with what these producers have written, or abort it.

        Returns and raises as `TransactionCoordinator.end_nowait`.
        """
        return self.transactions.end_nowait(
            TransactionId(*owner), is_commit=is_commit, branches=branches, sequence=sequence, identity=identity
        )

    def partition(self, principal: Principal, topic: str, index: int) -> Partition:
        """A partition for reading by offset. Raises TopicUnknown, PartitionUnknown."""
        return self.catalog.topic(topic).partition(index)

    async def fetch(
        self,
        principal: Principal,
        topic: str,
        index: int,
        offset: int,
        bytes_max: int,
        deadline: WaitDeadline,
        accepts: Sequence[int] = NATIVE_ONLY,
    ) -> Fetched:
        """Read part of a partition from the batch that holds `offset`; at the partition's end, wait for more.

        Batches in a format that is not among `accepts` are translated into its first one.

        Returns no batches if the deadline comes first. Raises TopicUnknown, PartitionUnknown, OffsetOutOfRange,
        LogCorrupt, FormatUnknown.
        """
        partition = self.partition(principal, topic, index)
        if offset == partition.stable_offset:
            await deadline.wait(partition.watchers.wait)
        batches = await partition.read_stored(offset, partition.stable_offset, bytes_max, accepts)
        partition.count_delivered(batches)
        return Fetched(partition.start_offset, partition.high_watermark, batches)

    # --- administration ---

    def check_verb(self, principal: Principal, verb: str, arguments: str) -> None:
        """Check as much of a verb's request as possible before its turn. Raises RequestUnknown, LimitExceeded,
        ConfigError.
        """
        self.administration.check(verb, arguments)

    async def perform(self, principal: Principal, verb: str, arguments: str) -> str:
        """Carry out an administration verb; arguments and result are JSON.

        Raises LinnErrors of the verb. Cancellation: a change that has begun is completed.
        """
        return await self.administration.perform(verb, arguments, principal.described())


def _competing(topic: Topic, queue: Queue, request: SubscribeRequest) -> Subscription:
    if request.member:
        check_name(request.member, "consumer")
        if "\0" in request.member:  # Under such a name a transaction holds records.
            raise DeliveryError("a consumer's name has no NUL")
    if queue.is_two_phase != request.is_two_phase or (queue.is_two_phase and not request.member):
        raise _wrong_phases(topic, queue)
    lease_ms = 0 if topic.semantics.settles_on_delivery else topic.settings.lease_ms or 0
    return Subscription(0, queue.join(lease_ms, request.member))


def _wrong_phases(topic: Topic, queue: Queue) -> SubscriptionWrongKind:
    how = f'topic {topic.name} has delivery = "{topic.settings.delivery}"'
    if queue.is_two_phase:
        return SubscriptionWrongKind(f"{how}: its consumers have a name and a participant, which stores their effects")
    return SubscriptionWrongKind(f"{how}: only a topic that delivers in two phases has consumers with a participant")


def _check_shared(topic: Topic, request: SubscribeRequest) -> None:
    """Check a request for a named subscription. Raises SubscriptionWrongKind."""
    if request.group:
        raise SubscriptionWrongKind("a consumer belongs to a group or to a shared subscription, not to both")
    if request.where or request.partitions:
        text = f"consumers of the shared subscription {request.shared[:80]} of topic {topic.name} choose no records: "
        raise SubscriptionWrongKind(text + "those that one leaves out would wait for nobody")


def _check_start(topic: Topic, request: SubscribeRequest) -> None:
    """Check that a consumer does not begin at an offset that is nowhere. Raises OffsetOutOfRange."""
    if not request.starts:
        check_offset(request.start, [topic.partition(index) for index in request.partitions or topic.partitions])
    for index, at in enumerate(request.starts):
        if index in topic.partitions:
            check_offset(at, [topic.partitions[index]])


def _start_of(topic: Topic, request: SubscribeRequest) -> Callable[[int], int]:
    # Read now, not when a partition is assigned: records confirmed from here on are to be delivered.
    start, starts = request.start, request.starts
    ends = [] if start == START_EARLIEST and not starts else [log.stable_offset for log in topic.partitions.values()]
    wanted = zip(starts or [start] * len(ends), ends, strict=False)
    places = array("q", [end if at == START_LATEST or at > end else at if at > 0 else 0 for at, end in wanted])
    # A partition that came later is read from its start; readers pass over what retention has dropped.
    return lambda index: places[index] if index < len(places) else 0
