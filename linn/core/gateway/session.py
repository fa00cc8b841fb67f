"""A session: all that one principal does with the broker over one connection.

Waiting for room, making topics, taking turns and counting memory happen behind it. Whatever a caller needs is
checked here, once per request or batch, for every protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

import trio

from linn.core.batch.steps import Steps
from linn.core.delivery.consumer import AnyConsumer, Consumer, OnAssigned, nobody
from linn.core.delivery.settlement import Settlement
from linn.core.delivery.vocabulary import Place
from linn.core.env.env import Spawn
from linn.core.errors.tree import BrokerStopping, LimitExceeded, RequestUnknown, SubscriptionWrongKind
from linn.core.gateway.fetch import Fetch
from linn.core.gateway.principal import Principal
from linn.core.gateway.requests import FetchRequest, Subscribed, SubscribeRequest, TopicBounds
from linn.core.gateway.rooms import Rooms
from linn.core.gateway.subscribing import consumer_of, is_missing, make_missing, partitions_read, selection_of
from linn.core.groups.member import GroupMember
from linn.core.log.selection import Selection
from linn.core.log.uncommitted import UncommittedView
from linn.core.metrics.registry import Family
from linn.core.publish.publisher import PublishLane
from linn.core.publish.request import PublishAnswers, PublishRequest, PublishResult
from linn.core.queue.consumer import QueueConsumer
from linn.core.queue.unsettled import Unsettled
from linn.core.routing.record_filter import RecordFilter
from linn.core.transactions.ending import Ending
from linn.core.transactions.producer import Owner, TransactionId

PARTITIONS_READ_MAX = 32_768
"""Limit of the partitions that the readers and group members of one session read together: eight of the widest topics.
Each takes 350 bytes, so that all of them are 11 MiB, and leaving them takes 50 ms.
"""


class Session:
    """One principal's session. Its consumers end with it."""

    def __init__(self, rooms: Rooms, principal: Principal) -> None:
        self.principal = principal
        self._rooms = rooms
        self._consumers: dict[Consumer, int] = {}
        """The number of partitions that each reads. Each takes memory, and time at the end."""
        self._left: list[Steps[None]] = []
        """Remaining steps of the ends of consumers whose connection was lost."""
        self._fetching = trio.Lock()
        self._ended = False

    # --- looking ---

    def take_producer_id(self) -> int:
        """Take a producer id that no other client has or had."""
        return self._rooms.producer_ids.take()

    def topic_names(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._rooms.catalog.topics)

    def partition_count(self, names: Sequence[str]) -> int:
        """The number of partitions of these topics together; unknown ones have none."""
        topics = self._rooms.catalog.topics
        return sum([len(topics[name].partitions) for name in names if name in topics])

    def topic_bounds(self, name: str) -> TopicBounds | None:
        """A topic with the bounds of its partitions; None: there is none of that name."""
        topic = self._rooms.catalog.topics.get(name)
        if topic is None:
            return None
        settings = topic.settings
        bounds = [
            (partition.start_offset, partition.high_watermark) for _, partition in sorted(topic.partitions.items())
        ]
        said = settings.kind, settings.delivery or "", settings.partitioner
        return TopicBounds(name, *said, topic.id_halves, settings.message_bytes_max or 0, bounds)

    def collect_metrics(self, *, per_connection: bool = True) -> Iterator[Family]:
        """All metrics, each read when the iterator comes to it."""
        return self._rooms.metrics.collect(per_connection=per_connection)

    # --- publishing ---

    def publish_lane(self, answers: PublishAnswers, spawn: Spawn) -> PublishLane:
        """A lane that carries out publishes in order, and tells `answers` of each; `spawn` starts a task that ends with
        the connection.
        """
        return self._rooms.publisher.lane(answers, spawn)

    async def publish(self, request: PublishRequest) -> Sequence[PublishResult]:
        """Publish, and wait until everything is confirmed; for protocols that carry out one request after the other.

        Raises LinnErrors of the publish. Cancellation: it may or may not be stored.
        """
        return await self._rooms.publisher.publish(request)

    # --- consuming ---

    async def subscribe(self, request: SubscribeRequest, on_assigned: OnAssigned = nobody) -> AnyConsumer:
        """Subscribe as `subscribe_nowait` does, after making what is missing: a topic, if the configuration allows it,
        and a named shared subscription.

        Cancellation: there is no subscription; the topic and the shared subscription may have been made.
        """
        if self.is_missing(request):
            await self.make_missing(request)
        return self.subscribe_nowait(request, on_assigned).consumer

    def is_missing(self, request: SubscribeRequest) -> bool:
        """Whether a topic or a shared subscription must be made before a client can subscribe to it."""
        return is_missing(self._rooms, request)

    async def make_missing(self, request: SubscribeRequest) -> None:
        """Make a topic with default settings, and a named shared subscription, unless they exist.

        Raises ConfigError, LimitExceeded, SubscriptionWrongKind, TopicUnknown, StorageError.
        """
        await make_missing(self._rooms, request)

    def subscribe_nowait(self, request: SubscribeRequest, on_assigned: OnAssigned = nobody) -> Subscribed:
        """Begin to read a topic; `unsubscribe` ends it.

        `on_assigned` is called when a member of a group gains or loses partitions.

        Raises BrokerStopping, LimitExceeded, TopicUnknown, TopicReplaced, PartitionUnknown, SharedUnknown,
        SubscriptionWrongKind, DeliveryError, PredicateInvalid, FormatUnknown, LogTruncated, OffsetOutOfRange.
        """
        rooms = self._rooms
        if self._ended:
            raise BrokerStopping("the broker is stopping")
        if len(self._consumers) >= rooms.settings.subscriptions_max:
            raise LimitExceeded(f"a connection has at most {rooms.settings.subscriptions_max} subscriptions")
        topic = rooms.catalog.topic(request.topic)
        topic.check_id(*request.topic_id)
        partitions = partitions_read(rooms, topic, request)
        read = sum(self._consumers.values())
        if read + partitions > PARTITIONS_READ_MAX:
            text = (
                f"a connection reads at most {PARTITIONS_READ_MAX} partitions; this one {read}, and {partitions} more"
            )
            raise LimitExceeded(text)

        def assigned(epoch: int, owned: Sequence[int], revoked: Sequence[int]) -> None:
            nonlocal partitions
            partitions = len(owned)
            if consumer is not None and consumer in self._consumers:
                self._consumers[consumer] = partitions
            on_assigned(epoch, owned, revoked)

        consumer: AnyConsumer | None = None
        accepts = rooms.formats.accepts_of(request.accepts)
        consumer = consumer_of(rooms, topic, request, accepts, assigned)
        consumer.accepts = accepts
        self._consumers[consumer] = partitions
        return Subscribed(consumer, topic.id_halves, topic.leader_epoch)

    def unsubscribe(self, consumer: AnyConsumer) -> None:
        """End a consumer: its leases are returned, its partitions go to other members. Idempotent."""
        if self._consumers.pop(consumer, None) is not None:
            consumer.close()

    def refuse_subscriptions(self) -> None:
        """Refuse new subscriptions from here on: the connection ends."""
        self._ended = True

    def disconnect(self) -> None:
        """End all consumers, because the connection was lost. `aclose` does what takes long. Idempotent."""
        self._ended = True
        consumers, self._consumers = self._consumers, {}
        self._left += [consumer.disconnect() for consumer in consumers]

    async def aclose(self) -> None:
        """End all consumers. Not cancelled. Idempotent."""
        self.disconnect()
        if self._left:
            with trio.CancelScope(shield=True):
                await self._rooms.long_work.run(self._leaving())

    def _leaving(self) -> Steps[None]:
        while self._left:
            yield from self._left.pop()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- reading by offset ---

    def fetch(self, request: FetchRequest) -> Fetch:
        """Begin to read part of a partition, from the batch that holds an offset.

        Raises TopicUnknown, TopicReplaced, PartitionUnknown, FormatUnknown, PredicateInvalid, LogTruncated;
        SubscriptionWrongKind for unsettled records of a stream.
        """
        topic = self._rooms.catalog.topic(request.topic)
        topic.check_id(*request.topic_id)
        partition = topic.partition(request.partition)
        if request.is_uncommitted:
            partition = UncommittedView(partition)
        partition.check_position(request.offset, request.leader_epoch)
        accepts = self._rooms.formats.accepts_of(request.accepts)
        if not request.is_unsettled:
            selection = selection_of(self._rooms, request.where, accepts)
        elif topic.queue is None:
            raise SubscriptionWrongKind(f"topic {request.topic} is a stream, on which no record is settled")
        else:
            among = RecordFilter.parse(request.where) if request.where else None
            unsettled = Unsettled(topic.queue.partition_queue(request.partition).subscription, among)
            selection = Selection(unsettled, self._rooms.long_work, accepts)
        return Fetch(partition, selection, request, accepts, self._fetching)

    async def find_offset(self, topic: str, partition: int, place: int, timestamp_ms: int = 0) -> int:
        """The offset of a `Place` in a partition; of `Place.TIME`, the first at or after a time.

        Raises TopicUnknown, PartitionUnknown, RequestUnknown, StorageError.
        """
        found = self._rooms.catalog.topic(topic).partition(partition)
        if place == Place.LATEST:
            return found.stable_offset
        if place == Place.EARLIEST:
            return found.start_offset
        if place != Place.TIME:
            raise RequestUnknown(f"place {place} is not known to this version")
        return min(await found.log.offset_at(timestamp_ms), found.stable_offset)

    # --- transactions ---

    async def open_transactions(
        self, name: str, timeout_s: float, owner: tuple[int, int] | None = None, opening: int = 0
    ) -> tuple[int, int, int]:
        """Take over a name of transactions; returns producer id, epoch, and the number of the next one.

        `owner`: only if the name is still that of this producer id and epoch. `opening`: see
        `TransactionCoordinator.open`.

        Raises DeliveryError, LimitExceeded, TransactionBusy, TransactionFenced, StorageError.
        """
        opened = await self._rooms.transactions.open(name, timeout_s, Owner(*owner) if owner else None, opening)
        return opened.producer_id, opened.epoch, opened.number

    def add_branch(self, producer_id: int, epoch: int, branch: int) -> None:
        """Let a producer write in a client's transactions. Raises TransactionError, LimitExceeded."""
        self._rooms.transactions.add_branch(producer_id, epoch, branch)

    def settle_in_transaction(
        self, owner: tuple[int, int, int], consumer: AnyConsumer, settlements: Sequence[Settlement]
    ) -> None:
        """Ack records of a queue, or commit offsets of a group's member, if a transaction is committed.

        `owner`: producer id, epoch and number. Raises TransactionError, LimitExceeded, SubscriptionWrongKind,
        StorageError, and as `Consumer.settle`.
        """
        transactions, transaction = self._rooms.transactions, TransactionId(*owner)
        if isinstance(consumer, QueueConsumer):
            transactions.hold(transaction, consumer, settlements)
        elif isinstance(consumer, GroupMember):
            for settled in settlements:
                transactions.commit_offset(transaction, consumer, settled.partition, settled.delivery_id, settled.end)
        else:
            raise SubscriptionWrongKind("a reader without a group has nothing to settle in a transaction")

    def end_transaction(
        self,
        owner: tuple[int, int, int],
        *,
        is_commit: bool,
        branches: Sequence[int] = (),
        sequence: int = 0,
        identity: str = "",
    ) -> Ending | None:
        """Commit a transaction, with what these producers have written, or abort it.

        Returns and raises as `TransactionCoordinator.end_nowait`.
        """
        return self._rooms.transactions.end_nowait(
            TransactionId(*owner), is_commit=is_commit, branches=branches, sequence=sequence, identity=identity
        )

    # --- administration ---

    def check_verb(self, verb: str, arguments: str) -> None:
        """Check as much of a verb's request as possible before its turn. Raises RequestUnknown, LimitExceeded,
        ConfigError.
        """
        self._rooms.administration.check(verb, arguments)

    async def perform(self, verb: str, arguments: str) -> str:
        """Carry out an administration verb; arguments and result are JSON.

        Raises LinnErrors of the verb. Cancellation: a change that has begun is completed.
        """
        return await self._rooms.administration.perform(verb, arguments, self.principal.described())
