"""Subscriptions over the native protocol: their ids, credit, pulls and settlements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from linn.api import (
    AnyConsumer,
    LimitExceeded,
    LinnError,
    Settlement,
    SettleOutcome,
    Steps,
    SubscribeRequest,
    SubscriptionOf,
    SubscriptionUnknown,
)
from linn.protocols.capnp.reading import WAIT_MS_MAX
from linn.protocols.capnp.responder import Responder
from linn.protocols.capnp.subscriber import Subscriber
from linn.wire import messages as m
from linn.wire.connection import Event, frames_of

DELIVERY_BYTES_MIN = 16 << 10
DELIVERY_BYTES_MAX = 1 << 20
"""Maximum size of a delivery: a few socket buffers' worth, so that other connections get their turn."""


class Subscribing:
    """The subscriptions of one connection."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._subscribers: dict[int, Subscriber] = {}
        self._subscription_ids = 0
        self.is_settling = False
        """Whether settlements are being carried out in turns. Later requests wait for them."""

    @property
    def is_empty(self) -> bool:
        """Whether there are no subscriptions."""
        return not self._subscribers

    def pause(self) -> None:
        """Stop pushing."""
        for subscriber in self._subscribers.values():
            subscriber.pause()

    def drain(self) -> None:
        """Stop pushing, and refuse new subscriptions."""
        self._responder.session.refuse_subscriptions()
        self.pause()

    def is_holding(self) -> bool:
        """Whether the client holds leases."""
        return any(subscriber.is_holding() for subscriber in self._subscribers.values())

    def described(self) -> Iterator[SubscriptionOf]:
        """Describe the subscriptions, oldest first."""
        for subscriber in self._subscribers.values():
            yield subscriber.described()

    def subscribe(self, event: Event) -> None:
        """Begin a subscription. Raises LinnError."""
        subscribe = event.message
        assert isinstance(subscribe, m.Subscribe)
        request, session = _request(subscribe), self._responder.session
        if session.is_missing(request):
            self._responder.in_task(event, lambda: self._make_and_subscribe(event, request))
            return
        id = self._subscription_ids + 1
        subscriber = Subscriber(id, request, self._responder.outbox, self._delivery_bytes)
        consumer, topic_id, leader_epoch = session.subscribe_nowait(request, subscriber.assigned)
        subscriber.consumer = consumer
        self._subscription_ids, self._subscribers[id] = id, subscriber
        subscribed = m.Subscribed(id, consumer.kind, consumer.lease_ms, leader_epoch, *topic_id)
        self._responder.outbox.put(frames_of(subscribed, event.correlation))
        subscriber.begin(subscribe.credit)
        self._responder.spawn(partial(self._run_subscriber, subscriber))

    async def _make_and_subscribe(self, event: Event, request: SubscribeRequest) -> None:
        await self._responder.session.make_missing(request)
        self.subscribe(event)

    def _delivery_bytes(self) -> int:
        """The size of a delivery: one per subscription fits into half of the outbox; small if memory is short."""
        if self._responder.outbox.is_short:
            return DELIVERY_BYTES_MIN
        share = self._responder.settings.connection_bytes_max // (2 * len(self._subscribers) + 1)
        return max(DELIVERY_BYTES_MIN, min(share, DELIVERY_BYTES_MAX))

    async def _run_subscriber(self, subscriber: Subscriber) -> None:
        try:
            await subscriber.run()
        except LinnError as error:
            self._responder.outbox.put(frames_of(m.Ended(subscriber.id, error.code, error.text)))
        self._drop(subscriber.id)  # On cancellation, `leave` drops it.

    def _subscriber(self, id: int) -> Subscriber:
        subscriber = self._subscribers.get(id)
        if subscriber is None:
            raise SubscriptionUnknown(f"this connection has no subscription {id}")
        return subscriber

    def consumer(self, id: int) -> AnyConsumer:
        """The consumer of a subscription. Raises SubscriptionUnknown."""
        return self._subscriber(id).consumer

    @staticmethod
    def settlement(entry: m.Settlement) -> Settlement:
        """Convert an entry of a settle request for the consumer."""
        return _settlement(entry, ())

    def unsubscribe(self, event: Event) -> None:
        """End a subscription; its leases are returned. Raises SubscriptionUnknown."""
        unsubscribe = event.message
        assert isinstance(unsubscribe, m.Unsubscribe)
        subscriber = self._subscriber(unsubscribe.subscription)
        subscriber.cancel()
        self._drop(subscriber.id)
        self._responder.reply(event.correlation, m.Done())

    def _drop(self, id: int) -> None:
        subscriber = self._subscribers.pop(id, None)
        if subscriber is not None:
            subscriber.end()
            self._responder.session.unsubscribe(subscriber.consumer)

    def close(self) -> None:
        """End all subscriptions, because the connection is gone."""
        subscribers, self._subscribers = self._subscribers, {}
        for subscriber in subscribers.values():
            subscriber.end()
        self._responder.session.disconnect()

    def heartbeat(self, event: Event) -> None:
        """Renew a member's session. Raises SubscriptionUnknown, SubscriptionWrongKind, GroupFenced."""
        heartbeat = event.message
        assert isinstance(heartbeat, m.Heartbeat)
        self._subscriber(heartbeat.subscription).member.heartbeat(heartbeat.epoch)
        self._responder.reply(event.correlation, m.Done())

    def seek(self, event: Event) -> None:
        """Move a stream's reader, pause it or resume it, in one partition.

        Raises SubscriptionUnknown, SubscriptionWrongKind, GroupFenced, PartitionUnknown, OffsetOutOfRange.
        """
        seek = event.message
        assert isinstance(seek, m.Seek)
        offset = None if seek.offset == m.WHERE_IT_IS else seek.offset
        self._subscriber(seek.subscription).seek(seek.partition, offset, is_paused=seek.is_paused)
        # No delivery from the old place follows this answer.
        self._responder.reply(event.correlation, m.Done())

    def commit(self, event: Event) -> None:
        """Commit an offset of a group's member; answered once it is durable.

        Raises SubscriptionUnknown, SubscriptionWrongKind, GroupFenced, PartitionUnknown, OffsetOutOfRange,
        LimitExceeded, StorageError.
        """
        commit = event.message
        assert isinstance(commit, m.Commit)
        member = self._subscriber(commit.subscription).member
        awaits = member.commit(commit.partition, commit.epoch, commit.offset, commit.text)
        if event.correlation:
            self._responder.when_passed(awaits, event.correlation, m.Done())

    def credit(self, event: Event) -> None:
        """Grant credit for more records. Raises SubscriptionUnknown."""
        credit = event.message
        assert isinstance(credit, m.Credit)
        self._subscriber(credit.subscription).grant(credit.records)
        self._responder.reply(event.correlation, m.Done())

    def pull(self, event: Event) -> None:
        """Answer with records, or without records when the client's wait is over. Raises SubscriptionUnknown."""
        pull = event.message
        assert isinstance(pull, m.Pull)
        subscriber = self._subscriber(pull.subscription)
        wait_s = min(pull.wait_max_ms, WAIT_MS_MAX) / 1000

        async def work() -> None:
            await self._responder.outbox.wait_room()
            await subscriber.pull(event.correlation, pull, wait_s)

        self._responder.in_task(event, work)

    def settle(self, event: Event) -> None:
        """Carry out settlements: some at once, the others in turns, during which no more requests are read.

        Raises SubscriptionUnknown, LimitExceeded, StorageError.
        """
        settle = event.message
        assert isinstance(settle, m.Settle)
        if len(settle.entries) > m.SETTLE_ENTRIES_MAX:
            raise LimitExceeded(f"a settle of {len(settle.entries)} entries, more than {m.SETTLE_ENTRIES_MAX}")
        responder, consumer = self._responder, self._subscriber(settle.subscription).consumer
        steps = consumer.settle(_settlements(settle))
        try:
            next(steps)
        except StopIteration as end:
            self._settled(event.correlation, end.value)
        else:
            self.is_settling = True
            responder.in_task(event, lambda: self._settle_on(event.correlation, steps))

    def resolve(self, event: Event) -> None:
        """Answer whether records of a delivery were decided to its consumer, once the decision is committed.

        Raises SubscriptionUnknown, SubscriptionWrongKind, PartitionUnknown, DeliveryFenced, StorageError.
        """
        resolve = event.message
        assert isinstance(resolve, m.Resolve)
        subscriber = self._subscriber(resolve.subscription)
        is_decided, awaits = subscriber.resolve(resolve)
        self._responder.when_passed(awaits, event.correlation, m.Resolved(is_decided))

    async def _settle_on(self, correlation: int, steps: Steps[SettleOutcome]) -> None:
        try:
            outcome = await self._responder.gateway.long_work.run(steps)
        finally:
            self.is_settling = False
        self._settled(correlation, outcome)

    def _settled(self, correlation: int, outcome: SettleOutcome) -> None:
        if correlation:
            refused = [m.Refusal(index, error.code, error.text) for index, error in outcome.refused]
            self._responder.when_passed(outcome.awaits, correlation, m.Settled(refused))


def _request(subscribe: m.Subscribe) -> SubscribeRequest:
    where = subscribe.start, subscribe.starts, subscribe.partitions, subscribe.where
    who = subscribe.member, subscribe.session_ms / 1000, subscribe.is_static
    how = subscribe.leader_epoch, subscribe.shared, subscribe.formats
    phases = subscribe.two_phase, subscribe.uncommitted
    topic_id = subscribe.topic_id_high, subscribe.topic_id_low
    return SubscribeRequest(subscribe.topic, subscribe.group, *where, *who, *how, *phases, topic_id)


def _settlements(settle: m.Settle) -> Iterator[Settlement]:
    return (_settlement(entry, settle.reasons) for entry in settle.entries)


def _settlement(entry: m.Settlement, reasons: Sequence[str]) -> Settlement:
    reason = reasons[entry.reason - 1] if 0 < entry.reason <= len(reasons) else ""
    return Settlement(entry.partition, entry.delivery_id, entry.first, entry.end, entry.verdict, entry.ms, reason)
