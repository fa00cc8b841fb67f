"""Subscription: a consumer's subscription over one connection. After a reconnection the consumer makes a new one.

Laws: credit is returned in chunks, when records are handed out; the broker itself counts leased records. Leased
records are void once the connection is lost or the lease is known to be over; a settlement that the broker can't answer
any more fails with DeliveryNotCurrent, which only the task that awaits it gets. A lease covers the records of a
delivery that are neither settled nor decided. Halfway through a lease, records that the application has not read are
released, and the lease is renewed if the application still references others. A subscription is stopped before it ends,
or the broker would deliver released records to it again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable
from typing import Protocol
from weakref import WeakValueDictionary

from linn.client.arguments import checked_reason
from linn.client.connection.answer import Answer
from linn.client.connection.connection import Connection
from linn.client.consume.arrivals import Matches, Unread
from linn.client.consume.held_records import HeldRecords, Key
from linn.client.consume.limits import Limits
from linn.client.consume.membership import Heartbeats
from linn.client.consume.message import Batch
from linn.client.consume.positions import Positions
from linn.client.consume.prefetch import PREFETCH_MAX, AdaptivePrefetch
from linn.client.consume.settling import (
    NOTHING_TO_SETTLE,
    SENT,
    Delivery,
    PendingSettlement,
    Settled,
    SettleRequest,
    check_ms,
    is_late,
    latest_commits,
    lease_over,
    make_void,
    merged,
    records_in,
    with_reasons,
)
from linn.client.consume.start_position import Read
from linn.core.batch.batch import RecordBatch
from linn.core.errors.codes import error_from_code
from linn.core.errors.tree import LinnError, SubscriptionWrongKind
from linn.wire import messages
from linn.wire.messages import ConsumerKind, Credit, Deliver, Message, Settle, Subscribed, Unsubscribe, Verdict

SETTLE_LINGER_S = 0.005
"""Linger time of a settlement that is not awaited: far below any lease, and enough for thousands of records."""
SETTLINGS_MAX = 1_024
"""Maximum number of settlements in one Settle frame, of about 50 kB."""
_PULL_CHUNK = 2_048
"""Chunk without credit: a settlement of half as many records is sent at once."""
_STARVED_S = 0.1
"""Wait after which the window of an application that holds all of it and settles nothing is doubled."""
_CHECKS_PER_LEASE = 4
"""Lease checks per lease: an application may block the loop for a quarter of a lease without losing it."""


class Subscriber(Protocol):
    """Consumer that subscriptions deliver to. Its methods are private because the class is public."""

    _check_loop: Callable[[], None]
    _waiting: int
    """Tasks that wait for records."""

    def _on_subscribed(self, subscription: Subscription) -> None:
        """Add a subscription that the broker has made."""

    def _put_arrived(self, batches: list[Batch]) -> None:
        """Take the batches of one delivery."""

    def _on_pulled(self, batches: list[Batch], error: LinnError | None) -> None:
        """Take the outcome of an iteration's pull."""

    def _on_assigned(self, subscription: Subscription, partitions: Iterable[int], has_revoked: bool) -> None:
        """Note the partitions that the group has assigned to this member; release revoked ones."""

    def _set_back(self, partition: int) -> None:
        """Drop arrived batches of a partition that will be redelivered."""

    def _take_unread(self, matches: Matches) -> list[Unread]:
        """Take back the records of batches that match and were not handed out."""

    def _on_refused(self, error: LinnError) -> None:
        """Report the refusal of a settlement that is not awaited."""

    def _on_ended(self, subscription: Subscription, error: LinnError) -> None:
        """Report that the broker has ended a subscription."""

    def _join_again(self) -> None:
        """Leave the group, join it again, and read on from the committed offsets."""

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` in `delay_s` seconds."""


class Subscription:
    """A subscription over one connection: takes pushes, gives credit, sends settlements."""

    def __init__(
        self,
        consumer: Subscriber,
        connection: Connection,
        topic: str,
        subscribed: Subscribed,
        limits: Limits,
        positions: dict[int, int],
    ) -> None:
        self.topic = topic
        self.id = subscribed.subscription
        self.kind = ConsumerKind(subscribed.kind)
        self.stands_by = subscribed.stands_by or self.kind == ConsumerKind.GROUP
        """Whether it gets no records: another consumer does, or the group has assigned no partition."""
        self.leased = self.kind == ConsumerKind.SHARED and subscribed.lease_ms > 0
        self.read_in = subscribed.leader_epoch, (subscribed.topic_id_high, subscribed.topic_id_low)
        """Leader epoch and topic id at the beginning."""
        self._epochs: dict[int, int] = {}
        """Epochs of the last records, by partition."""
        self._is_two_phase = limits.is_two_phase
        self.waits_for_acks = self.leased or self.kind == ConsumerKind.GROUP
        self.alive = True
        self.last_ack: PendingSettlement | None = None
        """The latest settlement, if it is an unsent ack."""
        self._consumer = consumer
        self.check_loop = consumer._check_loop
        self.connection = connection
        is_endless = subscribed.lease_ms == messages.CONNECTION_LEASE_MS
        self._lease_s = math.inf if is_endless else subscribed.lease_ms / 1000
        self.monotonic = connection.clock.monotonic
        self._renewal_max_s = limits.renewal_max_s
        self._adaptive: AdaptivePrefetch | None = None
        self._credit = limits.credit
        self._granted = limits.first_credit
        """Records that the broker may send before it gets more credit. Not counted down for leased records."""
        if limits.adapts and self.kind == ConsumerKind.SHARED:
            self._adaptive = AdaptivePrefetch(self._lease_s, self.monotonic())
            self._credit = self._granted
        self._chunk = max(1, (self._credit or _PULL_CHUNK) // 2)
        self.held = HeldRecords()
        self._buffered = 0
        """Records of a queue that arrived and were not handed out."""
        self._waits = 0
        """Counter of the application's waits; it changes when one begins or ends."""
        self._check_planned = False
        self._open: list[PendingSettlement] = []
        self._unanswered: dict[PendingSettlement, None] = {}
        self._flush_planned = False
        self._unanswered_count = 0
        """Records whose settlement was sent, and not answered before the connection was lost."""
        self._stopped = False
        self.positions = Positions(self.kind == ConsumerKind.GROUP, positions)
        """Positions in a stream."""
        self._leases: WeakValueDictionary[Key, Delivery] = WeakValueDictionary()
        """Leases whose records the client or the application still references."""
        connection.subscriptions[self.id] = self
        self._grant()
        session_s = limits.session_s if self.kind == ConsumerKind.GROUP else 0.0
        self._heartbeats = Heartbeats(session_s, self._beat, consumer._later)

    # --- what the broker sends ---

    def pushed(self, message: Message, batches: list[RecordBatch]) -> None:
        """Take a `Deliver`, `LeaseEnded`, `Assigned` or `Ended`."""
        if isinstance(message, Deliver):
            self._consumer._put_arrived(self.delivered(message, batches))
        elif isinstance(message, messages.LeaseEnded):
            key = message.partition, message.delivery_id
            self.held.lease_ended(key)
            lease = self._leases.get(key)
            if lease is not None:
                lease.until_s = -math.inf
                self._consumer._set_back(message.partition)
        elif isinstance(message, messages.Assigned):
            if self.kind == ConsumerKind.GROUP:
                self._heartbeats.epoch = message.epoch
                self.positions.assigned(message.partitions)
            self.stands_by = not message.partitions
            self._consumer._on_assigned(self, message.partitions, bool(message.revoked))
        elif isinstance(message, messages.Ended):
            self.end()
            self._consumer._on_ended(self, error_from_code(message.code, message.text))

    def delivered(self, message: Deliver, batches: list[RecordBatch]) -> list[Batch]:
        """Return the batches of one delivery, without records that were read earlier."""
        partition = message.partition
        if message.passed_to:
            self.positions.passed(partition, message.passed_to)
        if self.leased and batches:
            delivery = self._lease_of(message, batches)
        else:
            delivery = Delivery(partition, message.delivery_id, message.attempt)
        if self.kind == ConsumerKind.SHARED:
            self._buffered += sum([records.count for records in batches])
            return [Batch(self.topic, partition, records, 0, delivery, self) for records in batches]
        found = []
        if batches:  # A leader that is elected again goes on with its readers, in a later epoch.
            self._epochs[partition] = batches[-1].leader_epoch
        for records in batches:
            first = self.positions.skip(partition, records)
            if first < records.count:
                found.append(Batch(self.topic, partition, records, first, delivery, self))
            self._spend(first)
        return found

    def _lease_of(self, message: Deliver, batches: list[RecordBatch]) -> Delivery:
        """Note the lease of a delivery, or the part of a repeated decision."""
        lease = Delivery.of(message, batches, self.monotonic())
        if not lease.is_decided:
            lease.until_s = lease.since_s + self._lease_s  # A little late: the broker's time began earlier.
            self._leases[message.partition, message.delivery_id] = lease
            self._check_leases_later()
        self.held.delivered(lease)
        return lease

    def wants(self, batch: Batch) -> bool:
        """Tell whether an arrived batch is still to be handed out."""
        if not self.alive:
            # Without a lease it was settled when it was sent; a reader goes on after the arrived records.
            return not self.leased and self.kind != ConsumerKind.GROUP
        if self.leased:
            return batch._delivery is not None and not self._is_over(batch._delivery)
        return self.kind == ConsumerKind.SHARED or self.positions.wants(batch.partition)

    def _is_over(self, lease: Delivery) -> bool:
        return self.monotonic() >= lease.until_s

    def holds(self, delivery: Delivery) -> bool:
        """Tell whether this subscription still holds the records of a delivery, as far as it knows."""
        return self.alive and (not self.leased or not self._is_over(delivery))

    def settled_in_transaction(self, delivery: Delivery, first: int, end: int) -> None:
        """Count records as settled that a transaction has removed from their lease."""
        if self.leased:
            self._count_settled([PendingSettlement(delivery, first, end, Verdict.ACK, 0, self.flush)])

    def settled_in_doubt(self) -> None:
        """Let the broker determine the next records, as the outcome of a transaction that settles is not known.

        A queue keeps those records or returns them. A group's member gives up its share, so that the transaction can't
        be committed later, and begins at the committed offsets.
        """
        if self.alive and self.kind == ConsumerKind.GROUP:
            self._consumer._join_again()

    @property
    def may_move(self) -> bool:
        """Whether nothing is out that only this connection settles, while the application waits for more."""
        is_quiet = self.held.count <= self._buffered and not self._open and not self._unanswered
        return self.alive and not self._is_two_phase and (is_quiet or not self.leased)

    # --- seek ---

    def take_unread(self, partition: int) -> int | None:
        """Take back arrived records of a stream's partition; return the first offset not handed out, if any."""
        unread = self._consumer._take_unread(lambda batch: batch._subscription is self and batch.partition == partition)
        self._consumer._set_back(partition)
        return min([first for _, first, _ in unread], default=None)

    @property
    def epoch(self) -> int:
        """The epoch of the latest assignment; 0 without one."""
        return self._heartbeats.epoch

    # --- membership ---

    def release_revoked(self) -> None:
        """Send all settlements, and then tell the group that revoked partitions are released."""
        if self._heartbeats.must_release:
            self.flush()
            self._heartbeats.release_revoked()

    def _beat(self, epoch: int) -> bool:
        if self.alive:
            self.connection.tell(messages.Heartbeat(self.id, epoch))
        return self.alive

    # --- credit ---

    def handed_over(self, batch: Batch) -> None:
        """Count a batch as taken by the application, or as dropped."""
        if self.kind != ConsumerKind.SHARED:
            self._spend(len(batch))
            return
        adaptive = self._adaptive
        if adaptive is not None:
            if adaptive.is_due:
                self._adapt(adaptive)
            adaptive.handed(len(batch))
        self._buffered -= len(batch)
        if not self.leased:
            if adaptive is not None:
                adaptive.settled(len(batch))
            self._spend(len(batch))

    def _spend(self, records: int) -> None:
        self._granted -= records
        if self._credit - self._granted >= self._chunk:
            self._grant()

    def _grant(self) -> None:
        """Raise the broker's limit on records sent, or held, to `_credit`."""
        missing = self._credit - self._granted
        if self.alive and self._credit and missing and (self.leased or missing > 0):
            self._granted = self._credit
            self.connection.tell(Credit(self.id, self._credit if self.leased else missing))

    def _adapt(self, adaptive: AdaptivePrefetch) -> None:
        if adaptive.adapt(self.monotonic(), max(0, self.held.count - self._buffered)):
            self._window_changed(adaptive.window)

    def _window_changed(self, window: int) -> None:
        self._chunk = max(1, window // 2)
        if self._credit:
            self._credit = window
            self._grant()

    @property
    def pull_max(self) -> int | None:
        """Number of records that an iteration pulls at a time; None: the whole prefetch."""
        return self._adaptive.window if self._adaptive is not None else None

    @property
    def taken_max(self) -> int:
        """Number of records that another thread takes at a time: a part, so that the broker goes on sending."""
        return max(1, self._chunk // 2)

    def waits(self) -> None:
        """Note that the application waits for more records."""
        self.flush()
        self._waits += 1
        adaptive = self._adaptive
        if adaptive is None or not self.alive:
            return
        self._adapt(adaptive)
        if self._credit and self.held.count >= adaptive.window < PREFETCH_MAX:
            waits = self._waits
            self._consumer._later(_STARVED_S, lambda: self._starved(adaptive, waits))

    def _starved(self, adaptive: AdaptivePrefetch, waits: int) -> None:
        if waits != self._waits or not self.alive or self.held.count < adaptive.window or not adaptive.starved():
            return
        self._window_changed(adaptive.window)
        self._consumer._later(_STARVED_S, lambda: self._starved(adaptive, waits))

    def waited(self) -> None:
        """Note that the application waits no longer."""
        self._waits += 1
        if self._adaptive is not None:
            self._adaptive.resumed(self.monotonic())

    # --- leases ---

    def _check_leases_later(self) -> None:
        if not self._check_planned and self._lease_s < math.inf:
            self._check_planned = True
            self._consumer._later(self._lease_s / _CHECKS_PER_LEASE, self._check_leases)

    def _check_leases(self) -> None:
        """Halfway through a lease with unread records, release all that are unread; renew it if the application holds
        others.
        """
        self._check_planned = False
        if not self.alive:
            return
        soon_s = self.monotonic() + self._lease_s / 2
        due = [lease for lease in self._leases.values() if -math.inf < lease.until_s < soon_s]
        if due:
            if self.release(due):
                self.release()  # Records behind them that stayed would be handed out before them.
            self.flush()  # Subtracts the released records from the held ones: a lease without records is not renewed.
            for lease in due:
                self._renew(lease)
            self.flush()
        if self._leases:
            self._check_leases_later()

    def release(self, leases: Collection[Delivery] | None = None) -> bool:
        """Release the unread records of these leases, or of all; returns whether there are any."""
        unread = self._take_unread(leases) if self.leased else []
        for delivery, first, end in unread:
            if not self._is_over(delivery) and not delivery.is_decided:
                self._settle_quietly(delivery, first, end, Verdict.RELEASE, 0)
        return bool(unread)

    def _take_unread(self, leases: Collection[Delivery] | None = None) -> list[Unread]:
        return self._consumer._take_unread(
            lambda batch: batch._subscription is self and (leases is None or batch._delivery in leases)
        )

    def _renew(self, lease: Delivery) -> None:
        now = self.monotonic()
        left_s = min(self._lease_s, lease.since_s + self._renewal_max_s - now)
        if self.held.is_leased(lease) and now < lease.until_s < now + left_s:
            self._settle_quietly(lease, lease.first, lease.end, Verdict.EXTEND, round(1000 * left_s))

    def release_range(self, delivery: Delivery, first: int, end: int) -> None:
        """Return records that were never handed out: the attempt does not count."""
        self._settle_quietly(delivery, first, end, Verdict.RELEASE, 0)

    def _settle_quietly(self, delivery: Delivery, first: int, end: int, verdict: Verdict, ms: int) -> None:
        settling = self.submit(delivery, first, end, verdict, ms)
        settling.awaited = True  # The application's own settlement gets a refusal.

    # --- settling ---

    def settle(self, delivery: Delivery, first: int, end: int, verdict: Verdict, ms: int, reason: str = "") -> Settled:
        """Settle a range; see `Batch.ack`. Raises ClientUnreachable; MessageInvalid if an argument is wrong."""
        self.check_loop()
        reason = checked_reason(reason) if reason != "" else ""
        check_ms(ms)
        if self._is_two_phase and verdict in (Verdict.ACK, Verdict.NACK):
            text = "the consumer has a participant, and settles a message when its effect is stored: leave out the "
            raise SubscriptionWrongKind(text + verdict.name.lower())
        if verdict == Verdict.ACK and not self.waits_for_acks:
            return NOTHING_TO_SETTLE
        if self._is_two_phase and verdict == Verdict.REJECT:
            delivery.rejected.append((first, end))
        return self.submit(delivery, first, end, verdict, ms, reason)

    def submit(
        self, delivery: Delivery, first: int, end: int, verdict: Verdict, ms: int = 0, reason: str = ""
    ) -> PendingSettlement:
        """Settle a range without checks, soon or when the result is awaited."""
        is_set_back = verdict == Verdict.NACK and self.kind == ConsumerKind.GROUP and self.alive
        if is_set_back:
            first = self.positions.set_back(delivery.partition, first)
        settling = PendingSettlement(delivery, first, end, verdict, ms, self.flush, reason)
        if not self.alive:
            make_void([settling])
            return settling
        if verdict == Verdict.EXTEND and self.leased and not delivery.is_decided and not self._is_over(delivery):
            delivery.until_s = self.monotonic() + ms / 1000
        if len(self._open) >= SETTLINGS_MAX:
            self.flush()
        self._open.append(settling)
        self.last_ack = settling if verdict == Verdict.ACK else None
        if is_set_back:
            self._consumer._set_back(delivery.partition)
        is_due = settling.count >= self._chunk or self._hurries
        if is_due and not (self.leased and is_late(settling, self.monotonic())):
            self.flush()  # A late settlement waits for its caller, which may be about to await the refusal.
        elif not self._flush_planned:
            self._flush_planned = True
            self._consumer._later(SETTLE_LINGER_S, self._flush_as_planned)
        return settling

    @property
    def _hurries(self) -> bool:
        """Whether settlements leave at once: the application waits for what the broker sends when it has them.

        Beside unanswered ones they wait to be joined, so that many tasks which settle do not send a frame each.
        """
        return self.leased and self._consumer._waiting > 0 and not self._unanswered

    def _flush_as_planned(self) -> None:
        self._flush_planned = False
        self.flush()

    def flush(self) -> None:
        """Send all waiting settlements."""
        settlings, self._open = self._open, []
        self.last_ack = None
        if self.leased:
            now = self.monotonic()
            late = [settling for settling in settlings if is_late(settling, now)]
            for settling in late:
                self._finish([settling], lease_over(settling.delivery))
            settlings = [settling for settling in settlings if not is_late(settling, now)] if late else settlings
        if not settlings or not self.alive:
            return
        if self.leased:
            self._count_settled(settlings)
        entries = latest_commits(settlings) if self.kind == ConsumerKind.GROUP else merged(settlings)
        for settling in settlings:
            settling.state = SENT
            self._unanswered[settling] = None
        request = SettleRequest(self, [settled for _, settled in entries])
        self.connection.ask(request, Settle(self.id, [entry for entry, _ in entries], with_reasons(entries)))

    def _count_settled(self, settlings: list[PendingSettlement]) -> None:
        """Subtract settled records from the held ones."""
        for settling in settlings:
            settled = self.held.settled(settling)
            if self._adaptive is not None and settling.verdict != Verdict.RELEASE:
                self._adaptive.settled(settled)

    async def until_quiet(self) -> None:
        """Stop the deliveries, send all settlements, and wait for the broker's answers without raising refusals."""
        stopped = self._stop()
        self.flush()
        for settling in list(self._unanswered):
            await settling.until_done()
        if stopped is not None:
            with contextlib.suppress(LinnError):
                await stopped.wait()

    def _stop(self) -> Answer | None:
        """Stop further leases to this subscription; return None if there are no leases, or it was stopped before."""
        if not self.leased or self._stopped or not self.alive:
            return None
        self._stopped, self._credit = True, 0
        answer = Answer()
        self.connection.ask(answer, Credit(self.id, 0))
        return answer

    def drain(self) -> None:
        """Stop further leases, release unread records, and send all settlements."""
        self._stop()
        self.release()
        self.flush()

    def leave(self) -> Answer | None:
        """Drain, and unsubscribe; return the answer, if there will be one."""
        self.drain()
        if not self.alive:
            return None
        answer = UnsubscribeRequest(self)
        self.connection.ask(answer, Unsubscribe(self.id))
        if self.kind == ConsumerKind.READER:
            self.end()  # A later subscription would read records again that still arrive.
        return answer

    def answered(self, settlings: list[PendingSettlement], error: LinnError | None) -> None:
        """Handle the broker's answer to settlements, all accepted or all refused."""
        for settling in settlings:
            self._unanswered.pop(settling, None)
            if settling.verdict == Verdict.NACK:
                self.positions.set_back_done(settling.delivery.partition)
        self._finish(settlings, error)
        if self._open and self._hurries:
            self.flush()

    def _finish(self, settlings: list[PendingSettlement], error: LinnError | None) -> None:
        for settling in settlings:
            settling.finish(error)
        if error is not None and not any(settling.awaited for settling in settlings):
            self._consumer._on_refused(error)

    def lost(self, settlings: list[PendingSettlement]) -> None:
        """Make settlements void that were sent over a connection that is lost."""
        for settling in settlings:
            self._unanswered.pop(settling, None)
        self._unanswered_count += records_in(settlings)
        make_void(settlings)

    def unsettled_count(self) -> int:
        """Take back unread records, and count the other records that are not known to be settled."""
        if not self.leased:
            return self._unanswered_count + records_in(self._open)
        unread = sum([delivery.count(first, end) for delivery, first, end in self._take_unread()])
        return self._unanswered_count + max(0, self.held.count - unread)

    def end(self) -> None:
        """End with the connection or the subscription."""
        if self.alive:
            self.alive = False
            self.connection.subscriptions.pop(self.id, None)
            lost, self._open, self._unanswered = [*self._unanswered, *self._open], [], {}
            self.last_ack = None
            make_void(lost)

    def places(self) -> dict[int, Read]:
        """Return the positions at which a reader goes on, by partition."""
        (epoch, topic_id), epochs = self.read_in, self._epochs
        ends = self.positions.resume_offsets().items()
        return {partition: Read(end, max(epoch, epochs.get(partition, 0)), topic_id) for partition, end in ends}


class UnsubscribeRequest(Answer):
    """The caller of one Unsubscribe."""

    __slots__ = ("_subscription",)

    def __init__(self, subscription: Subscription) -> None:
        super().__init__()
        self._subscription = subscription

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """End the subscription."""
        self._subscription.end()
        super().answered(message, batches)
