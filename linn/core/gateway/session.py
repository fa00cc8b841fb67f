"""A session: everything that a principal does with the broker over one connection.

Waiting for room, creating topics, taking turns and counting memory happen behind it. Checks that every protocol needs
are made here, once per request or batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import trio

from linn.core.batch.steps import Steps
from linn.core.connections.inboxes import Inboxes
from linn.core.delivery.consumer import AnyConsumer, Consumer, OnAssigned, do_nothing
from linn.core.delivery.vocabulary import Place
from linn.core.env.env import Spawn
from linn.core.errors.auth import Forbidden
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import (
    BrokerStopping,
    LimitExceeded,
    PartitionUnknown,
    RequestUnknown,
    SubscriptionWrongKind,
)
from linn.core.gateway.elsewhere import Bounds, BoundsElsewhere, FetchElsewhere, PeerReader
from linn.core.gateway.fetch import Fetch
from linn.core.gateway.inbox import SessionInbox
from linn.core.gateway.legs import Door, Leg, SessionLinks
from linn.core.gateway.requests import FetchRequest, Subscribed, SubscribeRequest, TopicBounds
from linn.core.gateway.rooms import Rooms
from linn.core.gateway.session_transactions import SessionTransactions
from linn.core.gateway.subscribing import consumer_of, is_missing, make_missing, needs_of, partitions_read, selection_of
from linn.core.log.selection import Selection
from linn.core.log.uncommitted import UncommittedView
from linn.core.metrics.registry import Family
from linn.core.ports.principal import Principal
from linn.core.publish.producer_ids import OwnedProducers
from linn.core.publish.publish_lane import PublishLane
from linn.core.publish.request import PublishAnswers, PublishRequest, PublishResult
from linn.core.queue.unsettled import Unsettled
from linn.core.routing.record_filter import RecordFilter
from linn.core.topics.timing_logs import TIMING_TOPIC
from linn.core.topics.topic import Topic
from linn.rights import BROKER, BROWSE, CONFIGURE, CONSUME, SEE, TOPIC, Need
from linn.verbs import VERBS

PARTITIONS_READ_MAX = 32_768
"""Limit of the partitions read by a session's readers and group members together: eight of the widest topics. Each
takes 350 bytes, so that all of them take 11 MiB, and leaving them takes 50 ms."""


ASKED_AGAIN_MAX = 200
"""Limit of the attempts at a verb while the authorizer decides, up to 256 names at a time."""

NOTHING: Mapping[str, Bounds] = {}

T = TypeVar("T")


class Session:
    """One principal's session. Its consumers end with it."""

    __slots__ = (
        "__weakref__",
        "_access",
        "_consumers",
        "_ended",
        "_fetching",
        "_left",
        "_links",
        "_needs",
        "_producers",
        "_reader",
        "_rooms",
        "forwards",
        "inbox",
        "principal",
        "quota",
        "transactions",
    )

    def __init__(
        self,
        rooms: Rooms,
        inboxes: Inboxes,
        principal: Principal,
        links: SessionLinks | None = None,
        *,
        forwards: bool = True,
    ) -> None:
        """`links`: to the other brokers of the cluster; None: there are none. `forwards`: see the attribute."""
        self.principal = principal
        self._access = principal.access
        self._rooms = rooms
        self._producers = OwnedProducers(rooms.producer_ids, principal.name)
        self.quota = principal.access.quota.of_client(principal.client)
        """The rates of the user, and of the client's name: a protocol counts received and sent bytes, and pauses for as
        long as they say."""
        self._consumers: dict[Consumer | Leg, int] = {}
        """The number of partitions read by each consumer. Each takes memory, and time at the end."""
        self._needs: dict[Consumer | Leg, Sequence[Need]] = {}
        """The rights that each consumer needs for as long as it exists."""
        self._left: list[Steps[None]] = []
        """Remaining steps to end consumers whose connection was lost."""
        self._fetching: trio.Lock | None = None  # Most sessions fetch nothing.
        self._ended = False
        self._links = links
        self._reader: PeerReader | None = None
        """Reads at other brokers; None: nothing has been read there."""
        self.forwards = forwards
        """Whether requests may go on to the broker that leads their topic: not if they came from another broker."""
        self.transactions = SessionTransactions(rooms, principal, self._producers, forwards=forwards)
        limits = rooms.publisher.limits
        self.inbox = SessionInbox(inboxes, rooms.node, limits, principal, links if forwards else None)

    # --- rights that an authorizer decides ---

    async def decide(self, needs: Sequence[Need]) -> None:
        """Wait until it is decided whether the user has these rights, as a Forbidden names them in `undecided`.

        Cancellation: nothing happens.
        """
        await self._access.decide(needs)

    async def decided(self, call: Callable[[], T]) -> T:
        """Call a method of the session that does not wait; again, if the authorizer had to be asked for a right.

        Without it, such a method raises Forbidden with rights that are `undecided`, and is allowed or refused when it
        is called later. Methods that wait do this themselves. Raises what the call raises. Cancellation: it is not
        called again.
        """
        return await self._access.decided(call)

    # --- looking ---

    def topic_names(self) -> list[str]:
        """The names of all topics that the caller may see, sorted."""
        return self._access.visible(TOPIC, sorted(self._rooms.catalog.topics))

    def partition_count(self, names: Sequence[str]) -> int:
        """The number of partitions of these topics together; topics that are unknown or not visible have none."""
        topics = self._rooms.catalog.topics
        return sum([topics[name].settings.partitions for name in self._access.visible(TOPIC, names) if name in topics])

    def bounds_elsewhere(self, names: Sequence[str]) -> BoundsElsewhere | None:
        """The topics that other brokers lead, to ask for their bounds; None: there are none, or they are not asked."""
        if self._links is None or not self.forwards:
            return None
        found: dict[int, list[Topic]] = {}
        topics = self._rooms.catalog.topics
        for name in self._access.visible(TOPIC, names):
            topic = topics.get(name)
            if topic is not None and topic.led_by is not None and (leader := topic.led_by().leader):
                found.setdefault(leader, []).append(topic)
        return BoundsElsewhere(self._reading(self._links), found) if found else None

    def topic_bounds(self, name: str, elsewhere: Mapping[str, Bounds] = NOTHING) -> TopicBounds | None:
        """Return a topic with the bounds of its partitions; None if there is no topic of this name.

        `elsewhere`: as other brokers told. Bounds are (0, 0) if the leader of the topic could not be asked.

        Raises Forbidden, whether or not there is one.
        """
        self._access.check(SEE, TOPIC, name)
        topic = self._rooms.catalog.topics.get(name)
        if topic is None:
            return None
        settings = topic.settings
        bounds = [
            (partition.start_offset, partition.high_watermark) for _, partition in sorted(topic.partitions.items())
        ]
        leader = self._rooms.node
        epoch = max([partition.leader_epoch for partition in topic.partitions.values()], default=0)
        if topic.led_by is not None:
            told, elsewhere_led = elsewhere.get(name, ()), topic.led_by()
            bounds = [*told, *[(0, 0)] * settings.partitions][: settings.partitions]
            leader, epoch = elsewhere_led.leader, elsewhere_led.epoch
        said = settings.kind, settings.delivery or "", settings.partitioner
        return TopicBounds(name, *said, topic.id_halves, settings.message_bytes_max or 0, bounds, leader, max(epoch, 0))

    async def collect_metrics(self, *, per_connection: bool = True) -> Iterator[Family]:
        """Iterate over all metrics; each is read when the iterator reaches it. Raises Forbidden."""
        await self.decided(lambda: self._access.check(SEE, BROKER))
        await self._rooms.metrics.measure()
        return self._rooms.metrics.collect(per_connection=per_connection)

    # --- publishing ---

    def take_producer_id(self) -> int:
        """Take a block of producer ids that were never used before; returns the first. Raises LimitExceeded."""
        return self._producers.take()

    def producer_key(self, producer_id: int) -> int:
        """The key of a block that this session uses: it lets another session of the same user use the block.

        Raises ProducerForeign.
        """
        return self._producers.key(producer_id)

    def claim_producer_id(self, producer_id: int, key: int) -> None:
        """Let this session use the block of an id whose key is shown: a client's that connects again, a ticket's.

        Raises ProducerForeign, LimitExceeded.
        """
        self._producers.claim(producer_id, key)

    def publish_lane(self, answers: PublishAnswers, spawn: Spawn) -> PublishLane:
        """Make a lane that carries out publishes in order and reports each to `answers`; `spawn` starts a task that
        ends with the connection."""
        publisher = self._rooms.publisher
        links = publisher.links if self.forwards else None
        return PublishLane(publisher, answers, spawn, self.principal, self._producers, links)

    async def publish(self, request: PublishRequest) -> Sequence[PublishResult]:
        """Publish, and wait until everything is confirmed; for protocols that carry out one request at a time.

        Raises the publish's LinnErrors. Cancellation: the batches may or may not be stored.
        """
        return await self._rooms.publisher.publish(request, self.principal, self._producers)

    # --- consuming ---

    async def subscribe(self, request: SubscribeRequest, on_assigned: OnAssigned = do_nothing) -> AnyConsumer:
        """Subscribe as `subscribe_nowait` does, after creating a missing topic, if the configuration allows it, and a
        missing named shared subscription.

        Cancellation: there is no subscription; the topic and the shared subscription may have been created.
        """
        if self.is_missing(request):
            await self.make_missing(request)
        return (await self.decided(lambda: self.subscribe_nowait(request, on_assigned))).consumer

    def is_missing(self, request: SubscribeRequest) -> bool:
        """Whether a topic, a shared subscription or a log of groups must be made before a client can subscribe."""
        return is_missing(self._rooms, request)

    async def make_missing(self, request: SubscribeRequest) -> None:
        """Make a topic with default settings, a named shared subscription, and the topic's log of groups, unless they
        exist.

        Raises Forbidden, ConfigError, LimitExceeded, SubscriptionWrongKind, TopicUnknown, StorageError.
        """
        needs = list(needs_of(request))
        if request.topic not in self._rooms.catalog.topics:
            needs.append(Need(CONFIGURE, TOPIC, request.topic))
        await self.decided(lambda: self._access.check_all(needs))
        await make_missing(self._rooms, request)

    def subscribe_nowait(self, request: SubscribeRequest, on_assigned: OnAssigned = do_nothing) -> Subscribed:
        """Begin to read a topic; `unsubscribe` ends it.

        `on_assigned` is called when a member of a group gains or loses partitions.

        Raises Forbidden, BrokerStopping, LimitExceeded, TopicUnknown, TopicReplaced, PartitionUnknown, SharedUnknown,
        SubscriptionWrongKind, DeliveryError, PredicateInvalid, FormatUnknown, LogTruncated, OffsetOutOfRange.
        """
        rooms = self._rooms
        if self._ended:
            raise BrokerStopping("the broker is stopping")
        if len(self._consumers) >= rooms.settings.subscriptions_max:
            raise LimitExceeded(f"a connection has at most {rooms.settings.subscriptions_max} subscriptions")
        needs = needs_of(request)
        self._access.check_all(needs)
        topic = rooms.catalog.led_topic(request.topic)
        topic.check_id(*request.topic_id)
        topic.use.check_owner(self.principal)
        partitions = partitions_read(rooms, topic, request)
        self._check_partitions(partitions)

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
        self._keep(consumer, partitions, needs)
        leader_epoch = max([partition.leader_epoch for partition in topic.partitions.values()])
        return Subscribed(consumer, topic.id_halves, leader_epoch)

    def _check_partitions(self, more: int) -> None:
        read = sum(self._consumers.values())
        if read + more > PARTITIONS_READ_MAX:
            text = f"a connection reads at most {PARTITIONS_READ_MAX} partitions; this one {read}, and {more} more"
            raise LimitExceeded(text)

    def _keep(self, consumer: AnyConsumer | Leg, partitions: int, needs: Sequence[Need]) -> None:
        self._consumers[consumer] = partitions
        self._needs[consumer] = needs
        self._access.watchers[self._rights_changed] = self._needs

    def leg(self, request: SubscribeRequest, refused: NotLeader, door: Door) -> Leg:
        """Make a leg to the broker that leads a topic, after `subscribe_nowait` has refused; `unsubscribe` ends it.

        Raises LimitExceeded; the refusal if nothing is passed on.
        """
        links, topic = self._links, self._rooms.catalog.topics.get(request.topic)
        if links is None or topic is None or not self.forwards or not refused.leader or self._ended:
            raise refused
        partitions = 0
        if topic.settings.kind != "queue" and not request.shared:
            partitions = len(request.partitions) or topic.settings.partitions
        self._check_partitions(partitions)
        leg = links.leg(refused.leader, self.principal, door)
        self._keep(leg, partitions, needs_of(request))
        return leg

    def share_changed(self, leg: Leg, partitions: int) -> None:
        """Count the partitions of a group's member at another broker."""
        if leg in self._consumers:
            self._consumers[leg] = partitions

    def unsubscribe(self, consumer: AnyConsumer | Leg) -> None:
        """End a consumer: its leases are returned, its partitions go to other members. Idempotent."""
        if self._consumers.pop(consumer, None) is not None:
            del self._needs[consumer]
            if not self._needs:
                self._access.watchers.pop(self._rights_changed, None)
            consumer.close()

    def _rights_changed(self) -> None:
        """End the consumers that the user may no longer have."""
        for consumer, needs in list(self._needs.items()):
            error = self._access.lacks(needs)
            if error is not None:
                consumer.end(error)

    def refuse_subscriptions(self) -> None:
        """Refuse new subscriptions from now on, because the connection ends."""
        self._ended = True

    def disconnect(self) -> None:
        """End all consumers because the connection was lost; `aclose` does the lengthy part. Idempotent."""
        self._ended = True
        self.inbox.close()
        if self._reader is not None:
            self._reader.close()
        consumers, self._consumers = self._consumers, {}
        self._needs.clear()
        self._access.watchers.pop(self._rights_changed, None)
        self._left += [consumer.disconnect() for consumer in consumers]

    async def aclose(self) -> None:
        """End all consumers, and topics that end with the session; not cancellable. Idempotent."""
        self.disconnect()
        self._rooms.administration.endings.session_ended(self.principal)
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

    def fetch(self, request: FetchRequest) -> Fetch | FetchElsewhere:
        """Begin to read part of a partition, from the batch that holds an offset; or of a timing log, by the name
        `__d.TOPIC`: its unsettled records wait.

        Raises Forbidden, TopicUnknown, TopicReplaced, PartitionUnknown, FormatUnknown, PredicateInvalid, LogTruncated,
        NotLeader; SubscriptionWrongKind for unsettled records of a stream. If another broker leads the topic, some of
        them are raised when it is read.
        """
        name = request.topic.removeprefix(TIMING_TOPIC)
        topic = self._readable(name, request.where)
        topic.check_id(*request.topic_id)
        if self._fetching is None:
            self._fetching = trio.Lock()
        try:
            partition = topic.partition(request.partition)
        except NotLeader as error:
            return FetchElsewhere(self._elsewhere(error), error.leader, request, self._fetching, self._access)
        queue = topic.queue.partition_queue(request.partition) if topic.queue is not None else None
        if name != request.topic:
            queue = topic.timing.queues.get(request.partition)
            if queue is None:
                raise PartitionUnknown(f"no message of topic {name} has waited for its time yet")
            partition = queue.partition
        if request.is_uncommitted:
            partition = UncommittedView(partition)
        partition.check_position(request.offset, request.leader_epoch)
        accepts = self._rooms.formats.accepts_of(request.accepts)
        if not request.is_unsettled:
            selection = selection_of(self._rooms, request.where, accepts)
        elif queue is None:
            raise SubscriptionWrongKind(f"topic {request.topic} is a stream, on which no record is settled")
        else:
            among = RecordFilter.parse(request.where) if request.where else None
            unsettled = Unsettled(queue.subscription, among)
            selection = Selection(unsettled, self._rooms.long_work, accepts)
        return Fetch(partition, selection, request, accepts, self._fetching, self._access)

    def _reading(self, links: SessionLinks) -> PeerReader:
        if self._reader is None:
            self._reader = links.reading(self.principal)
        return self._reader

    def _elsewhere(self, error: NotLeader) -> PeerReader:
        """The reader at the broker that leads a topic. Raises the error: none can be asked."""
        if self._links is None or not self.forwards or not error.leader or self._ended:
            raise error
        return self._reading(self._links)

    def _readable(self, name: str, where: str = "") -> Topic:
        """Return a topic to read from: a stream to consumers, a queue to users who may browse it.

        A filter needs the right to consume. Raises Forbidden, whether or not there is such a topic; TopicUnknown.
        """
        topic = self._rooms.catalog.topics.get(name)
        consume, browse = Need(CONSUME, TOPIC, name), Need(BROWSE, TOPIC, name)
        self._access.check_any([consume] if where else [consume, browse])
        if topic is not None and topic.stream is None:
            self._access.check(BROWSE, TOPIC, name)
            if topic.led_by is None:  # Otherwise the broker that leads it notes it.
                self._rooms.audit.seen("browse", self.principal, name, "done")
        return self._rooms.catalog.topic(name)

    async def find_offset(self, topic: str, partition: int, place: int, timestamp_ms: int = 0) -> int:
        """The offset of a `Place` in a partition; for `Place.TIME`, the first one at or after a time.

        Raises Forbidden, TopicUnknown, PartitionUnknown, RequestUnknown, StorageError; and the errors of a `PeerReader`
        if another broker leads the topic.
        """
        try:
            found = (await self.decided(lambda: self._readable(topic))).partition(partition)
        except NotLeader as error:
            reader = self._elsewhere(error)
            return await reader.find_offset(error.leader, topic, partition, place, timestamp_ms)
        if place == Place.LATEST:
            return found.stable_offset
        if place == Place.EARLIEST:
            return found.start_offset
        if place != Place.TIME:
            raise RequestUnknown(f"place {place} is not known to this version")
        return min(await found.log.offset_at(timestamp_ms), found.stable_offset)

    # --- administration ---

    def check_verb(self, verb: str, arguments: str) -> None:
        """Check a verb's request before its turn. Raises RequestUnknown, LimitExceeded, ConfigError."""
        self._rooms.administration.check(verb, arguments)

    async def perform(self, verb: str, arguments: str) -> str:
        """Carry out an administration verb; arguments and result are JSON.

        Raises Forbidden, and the verb's LinnErrors. Cancellation: a change that has begun is completed.
        """
        access = self._access
        for _ in range(ASKED_AGAIN_MAX):
            misses = access.misses
            answer = await self._performed(verb, arguments)
            if answer is not None and (access.misses == misses or VERBS[verb].changes):
                return answer
            # Lists leave out what is undecided.
            await access.settle()
        raise Forbidden(f'the authorizer changes its answers too fast for the verb "{verb}"')

    async def _performed(self, verb: str, arguments: str) -> str | None:
        """Carry out a verb; None: nothing was done, because a right was undecided. Raises LinnError."""
        try:
            return await self._rooms.administration.perform(verb, arguments, self.principal, forwards=self.forwards)
        except Forbidden as error:
            if not error.undecided:
                raise
            await self._access.decide(error.undecided)
            return None
