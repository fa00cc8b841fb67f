"""WorkSource: gets the work of an exactly-once consumer from the broker, and tells the broker what became of it.

On a queue or a shared subscription the broker decides: READY, and its answer, which is COMMIT; then DONE. On a stream
the participant's floor is the position, and nobody has to be asked; a group is told of it afterwards.

Laws: after `decide` returns True, the work is this consumer's until it is `applied`, whatever happens to the
connection and to the lease of the delivery that it is a part of; after False it is not, and its records come again, to
this consumer or another. Work that was put back is the next.
"""

from __future__ import annotations

import logging
from collections import deque
from types import TracebackType
from uuid import UUID

from linn.client.connection.answer import Answer
from linn.client.connection.connector import Connector
from linn.client.connection.metadata import describe
from linn.client.consume.consumer import Consumer
from linn.client.consume.message import Batch
from linn.client.consume.start_position import Read
from linn.client.consume.subscription import Subscription
from linn.client.consume.work import Work
from linn.client.participants.participant import Floor, Place
from linn.core.errors.texts import reason_text
from linn.core.errors.tree import (
    ConnectionLost,
    DeliveryFenced,
    DeliveryNotCurrent,
    LinnError,
    LogTruncated,
    ProtocolError,
    SubscriptionUnknown,
    SubscriptionWrongKind,
)
from linn.wire.messages import ConsumerKind, Resolve, Resolved, TopicInfo, Verdict

logger = logging.getLogger("linn.client")

SECOND_ATTEMPT_RECORDS = 64
"""Records of one transaction in their second attempt: most that fail once do so because a program or the broker died.
From the third attempt on each has its own.
"""


class WorkSource:
    """The work of one consumer."""

    def __init__(self, connector: Connector, consumer: Consumer, reader: str) -> None:
        """`reader`: the name of the group, of the shared subscription, or of a consumer that reads a stream alone."""
        self.consumer = consumer
        self._connector = connector
        self._reader = reader
        self._put_back: deque[Work] = deque()
        self._reads_as = reader
        """Reader of the places that its marks are about: the topic's kind decides, and a change of it ends the work."""

    # --- where to begin ---

    async def places(self) -> tuple[list[Place], list[Place]]:
        """The places whose floors say where a stream is read on, and those of the topic's other kind.

        None where the broker keeps track, and none for a group or a shared subscription, whose places a change of the
        topic's kind leaves as they are. Raises TopicUnknown, ConnectionLost, RequestTimeout.
        """
        if self.consumer._group or self.consumer._membership.shared:
            return [], []
        (info,) = (await describe(self._connector, self.consumer.topics)).topics
        partitions = range(len(info.partitions))
        of_reader, of_queue = ([Place(_topic_id(info), it, who) for it in partitions] for who in (self._reader, ""))
        self._reads_as = self._reader if info.kind == "stream" else ""
        return (of_reader, of_queue) if info.kind == "stream" else ([], of_reader)

    def kind_changed(self, place: Place) -> SubscriptionWrongKind:
        """The error where a store has effects under a place of the topic's other kind."""
        (topic,) = self.consumer.topics
        if place.reader:
            text = (
                f"the store has effects of {topic} from when {place.reader} read it as a stream, and its queue may "
                "deliver those records again: purge the queue and take another name, or take another store"
            )
        else:
            text = (
                f"the store has effects of {topic} from when it was a queue, and a reader of the stream would begin "
                "without them: read it with a group whose offsets you have set, or take another store"
            )
        return SubscriptionWrongKind(f"{text}; or change the topic's kind back")

    def begin_at(self, place: Place, floor: Floor) -> None:
        """Read a stream on from a floor."""
        if floor.offset:
            halves = place.topic_id.int >> 64, place.topic_id.int & (1 << 64) - 1
            self.consumer._positions[place.partition] = Read(floor.offset, floor.epoch, halves)

    async def enter(self) -> None:
        """Enter the consumer. Where a power failure took records behind a floor, reading goes on at the log's end.

        Raises as `Consumer.__aenter__`.
        """
        while True:
            try:
                await self.consumer.__aenter__()
                return
            except LogTruncated as error:
                known = self.consumer._positions.get(error.partition)
                if known is None or known.offset <= error.offset:
                    raise
                logger.warning("%(error)s; going on there", {"error": error.text, "code": error.code})
                self.consumer._positions[error.partition] = Read(error.offset, 0, known.topic_id)

    async def leave(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave the consumer. Raises as `Consumer.__aexit__`."""
        await self.consumer.__aexit__(exc_type, exc, traceback)

    # --- work ---

    async def next(self) -> Work:
        """Wait for the next work. Raises as `Consumer.__anext__` does; cancellation loses nothing."""
        while True:
            while self._put_back:
                work = self._put_back.popleft()
                if _is_held(work):
                    return work
            batches = await self.consumer._next_delivery()
            subscription = _subscription(batches[0])
            delivery = batches[0]._delivery
            assert delivery is not None
            epoch, halves = subscription.read_in
            place = Place(UUID(int=halves[0] << 64 | halves[1]), batches[0].partition, self._reads_as)
            if self._place_name(subscription) != self._reads_as:
                text = f"the kind of {subscription.topic} was changed while it was consumed: open the consumer again"
                raise SubscriptionWrongKind(text)
            if subscription.leased:
                floor = Floor(epoch, delivery.settled_before)
            else:
                floor = Floor(batches[-1].leader_epoch, batches[-1].end_offset)
            work = Work([(batch, batch._first, batch.records.count) for batch in batches], place, floor)
            if not subscription.leased or delivery.attempt <= 1 or delivery.is_decided:
                return work
            self._put_back.extend(work.parts(SECOND_ATTEMPT_RECORDS if delivery.attempt == 2 else 1))

    def _place_name(self, subscription: Subscription) -> str:
        is_queue = subscription.kind == ConsumerKind.SHARED and not self.consumer._membership.shared
        return "" if is_queue else self._reader

    def put_back(self, work: Work) -> None:
        """Make work the next again: it was not applied."""
        self._put_back.appendleft(work)

    def may_return(self, work: Work) -> bool:
        """Tell whether the broker takes work back: it does not if it has decided it, or may have, or on a stream."""
        return _subscription(work.batches[0]).leased and not work.is_asked and not work.is_decided

    def give_back(self, work: Work, verdict: Verdict, reason: str) -> None:
        """Return work, or reject it: its handler has failed. It comes again if that is refused."""
        subscription = _subscription(work.batches[0])
        subscription.submit(work.delivery, work.first, work.end, verdict, 0, reason_text(reason)).awaited = True

    def release_untried(self) -> None:
        """Return work that the application was not given a part of: of its records no attempt counts."""
        while self._put_back:
            work = self._put_back.pop()
            subscription = _subscription(work.batches[0])
            if subscription.leased and not work.is_tried and not work.is_decided and _is_held(work):
                subscription.release_range(work.delivery, work.first, work.end)

    async def decide(self, work: Work) -> bool:
        """Ask for the decision to commit work that can be applied; False: its records belong to others by now.

        Cancellation: put the work back; the decision, if there is one, is found out the next time.
        """
        subscription = _subscription(work.batches[0])
        if not subscription.leased or work.is_decided:
            return True
        work.is_decided = await self._is_decided(subscription, work)
        if work.is_decided:
            subscription.held.decided(work.delivery, work.end - work.first)
        else:
            subscription.held.aborted(work.delivery, work.end - work.first - work.rejected_count)
        return work.is_decided

    async def _is_decided(self, subscription: Subscription, work: Work) -> bool:
        if not (work.is_asked or work.rejected_count):
            work.is_asked = True
            try:
                await subscription.submit(work.delivery, work.first, work.end, Verdict.READY)
                return True
            except (ConnectionLost, DeliveryFenced, SubscriptionUnknown):
                return False
            except DeliveryNotCurrent:
                pass  # Its lease is over, or the connection is: what is left of it goes back.
            except LinnError as error:
                text = "%(topic)s: it is not known yet whether delivery %(delivery)d is to be applied: %(error)s"
                about = {"topic": subscription.topic, "delivery": work.delivery.delivery_id, "error": error.text}
                logger.warning(text, about)
        return await self._resolve(subscription, work)

    async def _resolve(self, subscription: Subscription, work: Work) -> bool:
        """Ask until the broker says whether work was decided. If it was not, the broker takes its records back."""
        attempts = 0
        while subscription.alive:
            answer = Answer()
            delivery = work.delivery
            request = Resolve(subscription.id, delivery.partition, delivery.delivery_id, work.first, work.end)
            subscription.connection.ask(answer, request)
            try:
                message = await answer.wait()
            except (ConnectionLost, DeliveryFenced, SubscriptionUnknown):
                return False
            except LinnError:
                await self._connector.env.clock.sleep(self._connector.backoff_s(attempts))
                attempts += 1
                continue
            if not isinstance(message, Resolved):
                raise ProtocolError(f"the broker answered resolve with {type(message).__name__}")
            return message.is_decided
        return False

    def is_of_group(self, work: Work) -> bool:
        """Whether work may have become another member's, which is nobody's mistake."""
        return _subscription(work.batches[0]).kind == ConsumerKind.GROUP

    def applied(self, work: Work) -> None:
        """Tell the broker, soon, that the effects of work are stored."""
        subscription = _subscription(work.batches[0])
        if subscription.leased:
            subscription.submit(work.delivery, work.first, work.end, Verdict.DONE)
        elif subscription.kind == ConsumerKind.GROUP:
            subscription.submit(work.delivery, work.first, work.end, Verdict.ACK)


def _is_held(work: Work) -> bool:
    """Whether work that was put back is, or may be, still this consumer's, or would come again from the broker."""
    subscription = _subscription(work.batches[0])
    if subscription.kind == ConsumerKind.READER:
        return True
    if work.is_decided or work.is_asked:
        return subscription.alive  # It may have been decided, which outlives the lease.
    return subscription.holds(work.delivery)


def _subscription(batch: Batch) -> Subscription:
    subscription = batch._subscription
    assert isinstance(subscription, Subscription)
    return subscription


def _topic_id(info: TopicInfo) -> UUID:
    return UUID(int=info.id_high << 64 | info.id_low)
