"""Subscriptions over the native protocol: their ids, credit, pulls and settlements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from linn.api import (
    AnyConsumer,
    ConsumerKind,
    LimitExceeded,
    LinnError,
    NotLeader,
    Settlement,
    SettleOutcome,
    Steps,
    SubscribeRequest,
    SubscriptionOf,
    SubscriptionUnknown,
)
from linn.protocols.capnp.passed_on import PassedOn
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
        self._passed_on: dict[int, PassedOn] = {}
        """Subscriptions whose consumers are at other brokers."""
        self._subscription_ids = 0
        self.is_settling = False
        """Whether settlements are being carried out in turns. Later requests wait for them."""

    @property
    def is_empty(self) -> bool:
        """Whether there are no subscriptions."""
        return not (self._subscribers or self._passed_on)

    def pause(self) -> None:
        """Stop pushing."""
        for subscriber in self._subscribers.values():
            subscriber.pause()
        for passed_on in list(self._passed_on.values()):
            passed_on.pause()

    def drain(self) -> None:
        """Stop pushing, and refuse new subscriptions."""
        self._responder.session.refuse_subscriptions()
        self.pause()

    def is_holding(self) -> bool:
        """Whether the client holds leases."""
        subscribers: list[Subscriber | PassedOn] = [*self._subscribers.values(), *self._passed_on.values()]
        return any(subscriber.is_holding() for subscriber in subscribers)

    def described(self) -> Iterator[SubscriptionOf]:
        """Describe the subscriptions, oldest first."""
        for subscriber in self._subscribers.values():
            yield subscriber.described()
        for passed_on in self._passed_on.values():
            yield passed_on.described()

    def subscribe(self, event: Event) -> None:
        """Begin a subscription. Raises LinnError."""
        subscribe = event.message
        assert isinstance(subscribe, m.Subscribe)
        request = _request(subscribe)
        if self._responder.session.is_missing(request):
            self._responder.in_task(event, lambda: self._make_and_subscribe(event, subscribe, request))
        else:
            self._subscribe(event, subscribe, request)

    def _subscribe(self, event: Event, subscribe: m.Subscribe, request: SubscribeRequest) -> None:
        session = self._responder.session
        id = self._subscription_ids + 1
        subscriber = Subscriber(id, request, self._responder, self._delivery_bytes)
        try:
            consumer, topic_id, leader_epoch = session.subscribe_nowait(request, subscriber.assigned)
        except NotLeader as error:
            self._subscribe_elsewhere(event, request, error)
            return
        subscriber.consumer = consumer
        self._subscription_ids, self._subscribers[id] = id, subscriber
        stands_by = consumer.kind is ConsumerKind.SHARED and consumer.stands_by
        subscribed = m.Subscribed(id, consumer.kind, consumer.lease_ms, leader_epoch, *topic_id, stands_by)
        self._responder.answer(event.correlation, frames_of(subscribed, event.correlation))
        subscriber.begin(subscribe.credit)
        self._responder.spawn(partial(self._run_subscriber, subscriber))

    def _subscribe_elsewhere(self, event: Event, request: SubscribeRequest, refused: NotLeader) -> None:
        """Subscribe at the broker that leads the topic. Raises LimitExceeded; the refusal: nothing is passed on."""
        passed_on = PassedOn(self._subscription_ids + 1, request, self._responder, self._over)
        passed_on.leg = self._responder.session.leg(request, refused, passed_on)
        self._subscription_ids, self._passed_on[passed_on.id] = passed_on.id, passed_on
        passed_on.subscribe(event)
        self._responder.spawn(passed_on.leg.run)

    def _over(self, id: int) -> None:
        passed_on = self._passed_on.pop(id, None)
        if passed_on is not None:
            self._responder.session.unsubscribe(passed_on.leg)

    async def _make_and_subscribe(self, event: Event, subscribe: m.Subscribe, request: SubscribeRequest) -> None:
        await self._responder.session.make_missing(request)
        self._subscribe(event, subscribe, request)

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

    def _here(self, id: int, event: Event) -> Subscriber | None:
        """The subscription of a request; None: the request went on to another broker. Raises SubscriptionUnknown."""
        subscriber = self._subscribers.get(id)
        if subscriber is None:
            self._elsewhere(id).pass_on(event)
        return subscriber

    def _elsewhere(self, id: int) -> PassedOn:
        passed_on = self._passed_on.get(id)
        if passed_on is None:
            raise SubscriptionUnknown(f"this connection has no subscription {id}")
        return passed_on

    def is_elsewhere(self, id: int) -> bool:
        """Whether the consumer of a subscription is at another broker."""
        return id in self._passed_on

    def pass_on(self, event: Event, id: int) -> None:
        """Pass a request on to the broker of a subscription's consumer. Raises SubscriptionUnknown."""
        self._elsewhere(id).pass_on(event)

    def consumer(self, id: int) -> AnyConsumer:
        """The consumer of a subscription at this broker. Raises SubscriptionUnknown."""
        subscriber = self._subscribers.get(id)
        if subscriber is None:
            raise SubscriptionUnknown(f"this connection has no subscription {id} at this broker")
        return subscriber.consumer

    @staticmethod
    def settlement(entry: m.Settlement) -> Settlement:
        """Convert an entry of a settle request for the consumer."""
        return _settlement(entry, ())

    def unsubscribe(self, event: Event) -> None:
        """End a subscription; its leases are returned. Raises SubscriptionUnknown."""
        unsubscribe = event.message
        assert isinstance(unsubscribe, m.Unsubscribe)
        subscriber = self._here(unsubscribe.subscription, event)
        if subscriber is None:
            return
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
        self._passed_on.clear()
        for subscriber in subscribers.values():
            subscriber.end()
        self._responder.session.disconnect()

    def heartbeat(self, event: Event) -> None:
        """Renew a member's session. Raises SubscriptionUnknown, SubscriptionWrongKind, GroupFenced."""
        heartbeat = event.message
        assert isinstance(heartbeat, m.Heartbeat)
        subscriber = self._here(heartbeat.subscription, event)
        if subscriber is not None:
            subscriber.member.heartbeat(heartbeat.epoch)
            self._responder.reply(event.correlation, m.Done())

    def seek(self, event: Event) -> None:
        """Move a stream's reader, pause it or resume it, in one partition.

        Raises SubscriptionUnknown, SubscriptionWrongKind, GroupFenced, PartitionUnknown, OffsetOutOfRange.
        """
        seek = event.message
        assert isinstance(seek, m.Seek)
        offset = None if seek.offset == m.WHERE_IT_IS else seek.offset
        subscriber = self._here(seek.subscription, event)
        if subscriber is not None:
            subscriber.seek(seek.partition, offset, is_paused=seek.is_paused)
            # No delivery from the old place follows this answer.
            self._responder.reply(event.correlation, m.Done())

    def commit(self, event: Event) -> None:
        """Commit an offset of a group's member; answered once it is durable.

        Raises SubscriptionUnknown, SubscriptionWrongKind, GroupFenced, PartitionUnknown, OffsetOutOfRange,
        LimitExceeded, StorageError.
        """
        commit = event.message
        assert isinstance(commit, m.Commit)
        subscriber = self._here(commit.subscription, event)
        if subscriber is None:
            return
        awaits = subscriber.member.commit(commit.partition, commit.epoch, commit.offset, commit.text)
        if event.correlation:
            self._responder.when_passed(awaits, event.correlation, m.Done())

    def credit(self, event: Event) -> None:
        """Grant credit for more records. Raises SubscriptionUnknown."""
        credit = event.message
        assert isinstance(credit, m.Credit)
        subscriber = self._here(credit.subscription, event)
        if subscriber is not None:
            subscriber.grant(credit.records)
            self._responder.reply(event.correlation, m.Done())

    def pull(self, event: Event) -> None:
        """Answer with records, or without records when the client's wait is over. Raises SubscriptionUnknown."""
        pull = event.message
        assert isinstance(pull, m.Pull)
        subscriber = self._here(pull.subscription, event)
        if subscriber is None:
            return
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
        responder, subscriber = self._responder, self._here(settle.subscription, event)
        if subscriber is None:
            return
        steps = subscriber.consumer.settle(_settlements(settle))
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
        subscriber = self._here(resolve.subscription, event)
        if subscriber is None:
            return
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
    return SubscribeRequest(subscribe.topic, subscribe.group, *where, *who, *how, *phases, topic_id, subscribe.priority)


def _settlements(settle: m.Settle) -> Iterator[Settlement]:
    return (_settlement(entry, settle.reasons) for entry in settle.entries)


def _settlement(entry: m.Settlement, reasons: Sequence[str]) -> Settlement:
    reason = reasons[entry.reason - 1] if 0 < entry.reason <= len(reasons) else ""
    return Settlement(entry.partition, entry.delivery_id, entry.first, entry.end, entry.verdict, entry.ms, reason)
