"""WorkSource: gets the work of an exactly-once consumer from the broker, and reports its outcome.

On a queue or a shared subscription the broker decides: READY, and its answer, which is COMMIT; then DONE. On a stream
the participant's floor is the position, and no decision is needed; a group learns the position afterwards.

Laws: after `decide` returns True, the work belongs to this consumer until it is `applied`, even if the connection or
the lease of its delivery is lost; after False its records are delivered again, to this consumer or another. Work that
was put back is the next.
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
    """Work of one consumer."""

    def __init__(self, connector: Connector, consumer: Consumer, reader: str) -> None:
        """`reader`: name of the group, of the shared subscription, or of a consumer that reads a stream alone."""
        self.consumer = consumer
        self._connector = connector
        self._reader = reader
        self._put_back: deque[Work] = deque()
        self._reads_as = reader
        """Reader of the places in its marks. It depends on the topic's kind, and a change of the kind ends the work."""

    # --- where to begin ---

    async def places(self) -> tuple[list[Place], list[Place]]:
        """Return the places whose floors are the positions in a stream, and the places under the topic's other kind.

        Without the former if the broker keeps the position, and without the latter for a group or a shared
        subscription, whose places do not depend on the topic's kind. Raises TopicUnknown, ConnectionLost,
        RequestTimeout.
        """
        if self.consumer._group or self.consumer._membership.shared:
            return [], []
        (info,) = (await describe(self._connector, self.consumer.topics)).topics
        partitions = range(len(info.partitions))
        of_reader, of_queue = ([Place(_topic_id(info), it, who) for it in partitions] for who in (self._reader, ""))
        self._reads_as = self._reader if info.kind == "stream" else ""
        return (of_reader, of_queue) if info.kind == "stream" else ([], of_reader)

    def kind_changed(self, place: Place) -> SubscriptionWrongKind:
        """Make the error for a store that has effects under a place of the topic's other kind."""
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
        """Enter the consumer. If a power failure took records below a floor, reading goes on at the end of the log.

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
        """Put back work that was not applied: it is the next again."""
        self._put_back.appendleft(work)

    def may_return(self, work: Work) -> bool:
        """Tell whether the broker takes work back: not on a stream, and not if it has decided it, or may have."""
        return _subscription(work.batches[0]).leased and not work.is_asked and not work.is_decided

    def give_back(self, work: Work, verdict: Verdict, reason: str) -> None:
        """Return or reject work whose handler has failed. If the broker refuses, it comes again."""
        subscription = _subscription(work.batches[0])
        subscription.submit(work.delivery, work.first, work.end, verdict, 0, reason_text(reason)).awaited = True

    def release_untried(self) -> None:
        """Return work of which the application got no part: no attempt counts."""
        while self._put_back:
            work = self._put_back.pop()
            subscription = _subscription(work.batches[0])
            if subscription.leased and not work.is_tried and not work.is_decided and _is_held(work):
                subscription.release_range(work.delivery, work.first, work.end)

    async def decide(self, work: Work) -> bool:
        """Ask for the decision to commit work that can be applied; False: its records have gone to others.

        Cancellation: put the work back; the next attempt finds out the decision, if there is one.
        """
        subscription = _subscription(work.batches[0])
        if not subscription.leased or work.is_decided:
            return True
        work.is_decided = await self._is_decided(subscription, work)
        if work.is_decided:
            subscription.held.decided(work.delivery, work.delivery.count(work.first, work.end))
        else:
            held = work.delivery.count(work.first, work.end) - work.rejected_count
            subscription.held.aborted(work.delivery, held)
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
                pass  # Its lease or the connection is lost: the rest of it goes back.
            except LinnError as error:
                text = "%(topic)s: it is not known yet whether delivery %(delivery)d is to be applied: %(error)s"
                about = {"topic": subscription.topic, "delivery": work.delivery.delivery_id, "error": error.text}
                logger.warning(text, about)
        return await self._resolve(subscription, work)

    async def _resolve(self, subscription: Subscription, work: Work) -> bool:
        """Ask until the broker answers whether work was decided. If it was not, the broker takes its records back."""
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
        """Whether work may have moved to another member in a rebalance, which is no error."""
        return _subscription(work.batches[0]).kind == ConsumerKind.GROUP

    def applied(self, work: Work) -> None:
        """Report to the broker, after a short delay, that the effects of work are stored."""
        subscription = _subscription(work.batches[0])
        if subscription.leased:
            subscription.submit(work.delivery, work.first, work.end, Verdict.DONE)
        elif subscription.kind == ConsumerKind.GROUP:
            subscription.submit(work.delivery, work.first, work.end, Verdict.ACK)


def _is_held(work: Work) -> bool:
    """Whether work that was put back still belongs, or may belong, to this consumer."""
    subscription = _subscription(work.batches[0])
    if subscription.kind == ConsumerKind.READER:
        return True
    if work.is_decided or work.is_asked:
        return subscription.alive  # It may have been decided, and a decision outlives the lease.
    return subscription.holds(work.delivery)


def _subscription(batch: Batch) -> Subscription:
    subscription = batch._subscription
    assert isinstance(subscription, Subscription)
    return subscription


def _topic_id(info: TopicInfo) -> UUID:
    return UUID(int=info.id_high << 64 | info.id_low)
