"""Seeking: the part of a consumer that seeks, pauses, and commits offsets of the user's choice.

Laws: a seek takes effect with the broker's answer, even if no task awaits it any more; a refused seek changes nothing.
A pause outlasts a reconnection, and ends when its partition moves to another member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from linn.client.arguments import I32_MAX, I64_MAX, checked_number, checked_text
from linn.client.connection.answer import Answer
from linn.client.connection.connector import Connector
from linn.client.connection.metadata import find_offset
from linn.client.consume.start_position import Start, check_start
from linn.client.consume.subscription import Subscription
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import ConnectionLost, LinnError, MessageInvalid, PartitionUnknown, SubscriptionWrongKind
from linn.wire.messages import (
    WHERE_IT_IS,
    Commit,
    ConsumerKind,
    Message,
    Seek,
)


class Seeking:
    """Moves a consumer of streams, partition by partition."""

    topics: tuple[str, ...]
    _connector: Connector
    _subscriptions: list[Subscription]
    _check_loop: Callable[[], None]

    def __init__(self) -> None:
        self._paused: dict[tuple[str, int], None] = {}

    @property
    def paused(self) -> dict[str, list[int]]:
        """Partitions that `pause` has paused, by topic."""
        found: dict[str, list[int]] = {}
        for topic, partition in self._paused:
            found.setdefault(topic, []).append(partition)
        return found

    async def pause(self, *partitions: int, topic: str | None = None) -> None:
        """Pause partitions of a stream until `resume`; a group's member keeps them.

        Arrived records that were not handed out are read again after `resume`. A pause outlasts a reconnection, and
        ends when its partition moves to another member.

        Args:
            topic: one of the consumer's topics; None: its only one.

        Raises MessageInvalid, SubscriptionWrongKind (a queue), PartitionUnknown, GroupFenced (another member has the
        partition), ConnectionLost, RequestTimeout. Cancellation: some or all of the partitions are paused.

        Example:
            async with client.consumer("prices", group="dashboard") as consumer:
                message = await anext(consumer)
                await consumer.pause(message.partition)
                print(consumer.paused)
        """
        for partition, subscription in self._subscriptions_of(partitions, topic):
            if subscription.positions.is_paused(partition):
                continue
            place = subscription.topic, partition
            self._paused[place] = None  # The broker's answer pauses it, even after a cancellation.
            try:
                await self._done(_seek(subscription, partition, WHERE_IT_IS, is_paused=True))
            except LinnError:
                self._paused.pop(place, None)
                raise

    async def resume(self, *partitions: int, topic: str | None = None) -> None:
        """Resume partitions that `pause` has paused; for others it does nothing. Raises as `pause` does.

        Cancellation: some or all of the partitions are resumed.

        Example:
            for partition in consumer.paused.get("prices", []):
                await consumer.resume(partition)
        """
        for partition, subscription in self._subscriptions_of(partitions, topic):
            self._paused.pop((subscription.topic, partition), None)
            if subscription.positions.is_paused(partition):
                await self._done(_seek(subscription, partition, subscription.positions.resumes_at(partition)))

    async def seek(self, partition: int, to: Start, *, topic: str | None = None) -> int:
        """Move to another position in a partition of a stream, and return its offset; a paused partition stays paused.

        Commits nothing: use `commit` if the group should go on there as well. After the return no record from the old
        position is handed out.

        Args:
            to: "earliest", "latest", an offset, or a datetime (the first batch with a timestamp not before it).
            topic: one of the consumer's topics; None: its only one.

        Raises as `pause` does, and OffsetOutOfRange (beyond the end). Cancellation: the position may or may not have
        moved.

        Example:
            async with client.consumer("prices", group="dashboard") as consumer:
                message = await anext(consumer)
                offset = await consumer.seek(message.partition, "earliest")
        """
        check_start(to)
        ((_, subscription),) = self._subscriptions_of((partition,), topic)
        offset = await _offset_of(self._connector, subscription.topic, partition, to)
        is_paused = subscription.positions.is_paused(partition)
        await self._done(_seek(subscription, partition, offset, is_paused=is_paused))
        return offset

    async def commit(self, partition: int, offset: int, *, text: str = "", topic: str | None = None) -> None:
        """Commit an offset of a group, the next one to read, independently of deliveries and acks.

        Args:
            text: text to store with the offset until the next commit or ack in the partition, at most 4,096 bytes of
                UTF-8; `admin.group` shows it.
            topic: one of the consumer's topics; None: its only one.

        Raises SubscriptionWrongKind (not a member of a group), GroupFenced (another member has the partition),
        OffsetOutOfRange, LimitExceeded (the text is too long), MessageInvalid, ConnectionLost, RequestTimeout.
        Cancellation: the offset may or may not be committed.

        Example:
            async with client.consumer("prices", group="dashboard") as consumer:
                message = await anext(consumer)
                await consumer.commit(message.partition, message.offset + 1)
        """
        ((_, subscription),) = self._subscriptions_of((partition,), topic)
        checked_number(offset, "offset", I64_MAX)
        checked_text(text, "a commit's text")
        if subscription.kind != ConsumerKind.GROUP:
            raise SubscriptionWrongKind("only a member of a group commits offsets")
        answer = Answer()
        subscription.flush()  # Earlier acks reach the broker first.
        subscription.connection.ask(answer, Commit(subscription.id, partition, subscription.epoch, offset, text))
        await self._done(answer)

    async def _done(self, answer: Answer) -> None:
        with self._connector.time_limit(f"move in {', '.join(self.topics)}"):
            await answer.wait()

    def _subscriptions_of(self, partitions: tuple[int, ...], topic: str | None) -> list[tuple[int, Subscription]]:
        """Find the subscriptions that read partitions. Raises MessageInvalid, ConnectionLost, PartitionUnknown."""
        self._check_loop()
        for partition in partitions:
            checked_number(partition, "partition", I32_MAX)
        if topic is None and len(self.topics) == 1:
            topic = self.topics[0]
        if topic not in self.topics:
            raise MessageInvalid(f"topic must be one of {', '.join(self.topics)}, not {topic!r}")
        return [(partition, self._reading(topic, partition)) for partition in partitions]

    def _reading(self, topic: str | None, partition: int) -> Subscription:
        reading = [subscription for subscription in self._subscriptions if subscription.topic == topic]
        if not reading:
            raise ConnectionLost(f"the consumer of {topic} is not connected")
        if len(reading) == 1:
            return reading[0]
        for subscription in reading:
            if subscription.positions.reads(partition):
                return subscription
        raise PartitionUnknown(f"this consumer does not read partition {partition} of {topic}")

    def _pause_again(self, subscription: Subscription, partitions: Iterable[int]) -> None:
        """Restore the pauses from before a reconnection, in a subscription that begins to read these partitions."""
        for partition in partitions:
            if (subscription.topic, partition) in self._paused and not subscription.positions.is_paused(partition):
                subscription.positions.pause(partition, None)
                _seek(subscription, partition, WHERE_IT_IS, is_paused=True)


class _SeekRequest(Answer):
    """The caller of one Seek."""

    __slots__ = ("_seek", "_subscription")

    def __init__(self, subscription: Subscription, seek: Seek) -> None:
        super().__init__()
        self._subscription = subscription
        self._seek = seek

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Drop records that have arrived from the old position, and go on at the new one."""
        subscription, partition = self._subscription, self._seek.partition
        unread = subscription.take_unread(partition)
        if self._seek.is_paused:
            subscription.positions.pause(partition, unread)
        else:
            subscription.positions.resumed(partition)
        if self._seek.offset != WHERE_IT_IS:
            subscription.positions.sought(partition, self._seek.offset)
        super().answered(message, batches)


def _seek(subscription: Subscription, partition: int, offset: int, *, is_paused: bool = False) -> _SeekRequest:
    """Send a seek, and return its answer to wait for. `offset` WHERE_IT_IS: only pause or resume."""
    request = Seek(subscription.id, partition, offset, is_paused)
    answer = _SeekRequest(subscription, request)
    subscription.flush()  # Earlier settlements reach the broker first.
    subscription.connection.ask(answer, request)
    return answer


async def _offset_of(connector: Connector, topic: str, partition: int, place: Start) -> int:
    """Find the offset of a place in a partition. Raises PartitionUnknown, ConnectionLost and others."""
    return place if isinstance(place, int) else await find_offset(connector, topic, partition, place)
