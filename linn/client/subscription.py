"""Subscription: one of a consumer's, on one link. It ends with the link; the consumer then makes another.

Laws: credit is given back in chunks, when records are handed over; where there are leases the broker counts what is
held. What was delivered under a lease is worth nothing once the link is gone or the lease is known to be over; a
settlement that the broker can't answer any more ends in DeliveryNotCurrent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from linn.client.arguments import U32_MAX, checked_number
from linn.client.message import Batch
from linn.client.settling import NOTHING_TO_SETTLE, SENT, Delivery, Settled, Settling, latest_commits, merged
from linn.core.batch import RecordBatch
from linn.core.errors import ConnectionLost, DeliveryNotCurrent, LinnError, error_from_code
from linn.protocols.capnp import messages
from linn.protocols.capnp.messages import Credit, Deliver, Message, Settle, Subscribed, SubscriptionKind, Verdict

if TYPE_CHECKING:
    from linn.client.consumer import Consumer
    from linn.client.link import Link

SETTLE_LINGER_S = 0.005
"""How long a settlement that nobody awaits may wait for more: far below any lease, and worth thousands of records."""
SETTLINGS_MAX = 1_024
"""Settlements that wait together: a Settle frame of them has about 50 kB."""
_PULL_CHUNK = 2_048
"""Where there is no credit: records settled in one go that are not held back for more."""


class Subscription:
    """Takes what the broker pushes, gives credit, sends settlements."""

    def __init__(
        self, consumer: Consumer, link: Link, subscribed: Subscribed, credit: int, positions: dict[int, int]
    ) -> None:
        self.id = subscribed.subscription
        self.kind = SubscriptionKind(subscribed.kind)
        self.leased = self.kind == SubscriptionKind.SHARED and subscribed.lease_ms > 0
        self.waits_for_acks = self.leased or self.kind == SubscriptionKind.GROUP
        self.alive = True
        self.last_ack: Settling | None = None
        """The latest settlement, where it is an ack that was not sent."""
        self._consumer = consumer
        self.check_loop = consumer.check_loop
        self.link = link
        self._chunk = max(1, (credit or _PULL_CHUNK) // 2)
        self._credit = credit
        self._spent = 0
        self._open: list[Settling] = []
        self._unanswered: dict[Settling, None] = {}
        self._flush_planned = False
        self._positions = positions
        """Readers: the next offset of each partition. Members: where reading goes on after a nack."""
        self._owned: set[int] | None = None
        self._lease_s = subscribed.lease_ms / 1000
        self.monotonic = link.clock.monotonic
        self._leases: WeakValueDictionary[tuple[int, int], Delivery] = WeakValueDictionary()
        """By (partition, delivery id), for as long as somebody has records of it."""
        link.subscriptions[self.id] = self

    # --- what the broker sends ---

    def pushed(self, message: Message, batches: list[RecordBatch]) -> None:
        """A `Deliver`, `LeaseEnded`, `Assigned` or `Ended`."""
        if isinstance(message, Deliver):
            self._consumer.arrived(self.delivered(message, batches))
        elif isinstance(message, messages.LeaseEnded):
            lease = self._leases.get((message.partition, message.delivery_id))
            if lease is not None:
                lease.until_s = -math.inf
                self._consumer.set_back(message.partition)
        elif isinstance(message, messages.Assigned):
            self._owned = set(message.partitions)
            for partition in [known for known in self._positions if known not in self._owned]:
                del self._positions[partition]
            self._consumer.assigned(message.partitions)
        elif isinstance(message, messages.Ended):
            self.end()
            self._consumer.ended(error_from_code(message.code, message.text))

    def delivered(self, message: Deliver, batches: list[RecordBatch]) -> list[Batch]:
        """The batches of one delivery, without what was read before."""
        partition = message.partition
        delivery = self._lease_of(message) if self.leased else Delivery(partition, message.delivery_id, message.attempt)
        topic = self._consumer.topic
        if self.kind == SubscriptionKind.SHARED:
            return [Batch(topic, partition, records, 0, delivery, self) for records in batches]
        found = []
        for records in batches:
            first = self._skip(partition, records)
            if first < records.count:
                found.append(Batch(topic, partition, records, first, delivery, self))
            self._spend(first)
        return found

    def _lease_of(self, message: Deliver) -> Delivery:
        """The lease of a delivery, which may be one of several."""
        key = message.partition, message.delivery_id
        lease = self._leases.get(key)
        if lease is None:
            until_s = self.monotonic() + self._lease_s  # Later than the broker has it, whose clock began before.
            lease = self._leases[key] = Delivery(*key, message.attempt, until_s)
        return lease

    def _skip(self, partition: int, records: RecordBatch) -> int:
        """How many records of a stream's batch the consumer does not want (any more)."""
        position = self._positions.get(partition)
        first = 0
        if position is not None and self.kind == SubscriptionKind.GROUP:
            if not records.base_offset <= position < records.end_offset:
                return int(records.count)  # On its way when reading was set back.
            first = position - records.base_offset
            del self._positions[partition]
        elif position is not None:
            first = min(max(0, position - records.base_offset), records.count)
        if self.kind == SubscriptionKind.READER:
            self._positions[partition] = max(position or 0, records.end_offset)
        return first

    def wants(self, batch: Batch) -> bool:
        """Whether a batch that arrived is still to be handed over."""
        if not self.alive:
            # Without a lease it was settled by being sent; a reader goes on behind what arrived.
            return not self.leased and self.kind != SubscriptionKind.GROUP
        if self.leased:
            return batch.delivery is not None and not self._is_over(batch.delivery)
        if self._owned is not None and batch.partition not in self._owned:
            return False
        return not (self.kind == SubscriptionKind.GROUP and batch.partition in self._positions)

    def _is_over(self, lease: Delivery) -> bool:
        return self.monotonic() >= lease.until_s

    # --- credit ---

    def handed_over(self, batch: Batch) -> None:
        """A batch has gone to the application, or was dropped."""
        if not self.leased:
            self._spend(len(batch))

    def _spend(self, records: int) -> None:
        if not self._credit or not self.alive:
            return
        self._spent += records
        if self._spent >= self._chunk:
            self.link.tell(Credit(self.id, self._spent))
            self._spent = 0

    # --- settling ---

    def settle(self, delivery: Delivery, first: int, end: int, verdict: Verdict, ms: int) -> Settled:
        """Settle a range; see `Batch.ack`. Raises ClientUnreachable; MessageInvalid where `ms` does not fit."""
        self.check_loop()
        check_ms(ms)
        if verdict == Verdict.ACK and not self.waits_for_acks:
            return NOTHING_TO_SETTLE
        settling = Settling(delivery, first, end, verdict, ms, self.flush)
        if not self.alive:
            self._finish([settling], _too_late())
            return settling
        if verdict == Verdict.EXTEND and self.leased and not self._is_over(delivery):
            delivery.until_s = self.monotonic() + ms / 1000
        self._open.append(settling)
        self.last_ack = settling if verdict == Verdict.ACK else None
        if verdict == Verdict.NACK and self.kind == SubscriptionKind.GROUP:
            self._positions[delivery.partition] = first
            self._consumer.set_back(delivery.partition)
        if len(self._open) >= SETTLINGS_MAX or end - first >= self._chunk:
            self.flush()
        elif not self._flush_planned:
            self._flush_planned = True
            self._consumer.later(SETTLE_LINGER_S, self._flush_as_planned)
        return settling

    def _flush_as_planned(self) -> None:
        self._flush_planned = False
        self.flush()

    def flush(self) -> None:
        """Send all settlements that wait."""
        settlings, self._open = self._open, []
        self.last_ack = None
        if self.leased:
            now = self.monotonic()
            for late in [settling for settling in settlings if now >= settling.delivery.until_s]:
                self._finish([late], _lease_over(late.delivery))
            settlings = [settling for settling in settlings if now < settling.delivery.until_s]
        if not settlings or not self.alive:
            return
        entries = latest_commits(settlings) if self.kind == SubscriptionKind.GROUP else merged(settlings)
        for settling in settlings:
            settling.state = SENT
            self._unanswered[settling] = None
        request = _SettleRequest(self, [settled for _, settled in entries])
        self.link.ask(request, Settle(self.id, [entry for entry, _ in entries]))

    async def until_settled(self) -> None:
        """Send all settlements, and wait until the broker has answered, whatever it said."""
        self.flush()
        for settling in list(self._unanswered):
            await settling.until_done()

    def answered(self, settlings: list[Settling], error: LinnError | None) -> None:
        """What became of some settlements that were sent."""
        for settling in settlings:
            self._unanswered.pop(settling, None)
            if settling.verdict == Verdict.NACK:  # What comes from now on was read after reading was set back.
                self._positions.pop(settling.delivery.partition, None)
        self._finish(settlings, error)

    def _finish(self, settlings: list[Settling], error: LinnError | None) -> None:
        for settling in settlings:
            settling.finish(error)
        if error is not None and not any(settling.awaited for settling in settlings):
            self._consumer.refused(error)

    def end(self) -> dict[int, int]:
        """The link, or the subscription, is over; where a reader goes on."""
        if self.alive:
            self.alive = False
            self.link.subscriptions.pop(self.id, None)
            lost, self._open, self._unanswered = [*self._unanswered, *self._open], [], {}
            self.last_ack = None
            if lost:
                self._finish(lost, _too_late())
        return self._positions if self.kind == SubscriptionKind.READER else {}


def check_ms(ms: int) -> None:
    """Raises MessageInvalid where `ms` is not a number of milliseconds that can be sent."""
    checked_number(ms, "a time in milliseconds", U32_MAX)


def _too_late() -> DeliveryNotCurrent:
    return DeliveryNotCurrent("the connection that the records came by is gone; the broker may deliver them again")


def _lease_over(delivery: Delivery) -> DeliveryNotCurrent:
    text = f"the lease of delivery {delivery.delivery_id} is over; the broker delivers its records again"
    return DeliveryNotCurrent(text)


class _SettleRequest:
    """The caller of one Settle."""

    __slots__ = ("_entries", "_subscription")

    def __init__(self, subscription: Subscription, entries: list[list[Settling]]) -> None:
        self._subscription = subscription
        self._entries = entries

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        refused: dict[int, LinnError] = {}
        if isinstance(message, messages.Settled):
            refused = {refusal.entry: error_from_code(refusal.code, refusal.text) for refusal in message.refused}
        for index, settlings in enumerate(self._entries):
            self._subscription.answered(settlings, refused.get(index))

    def failed(self, error: LinnError) -> None:
        if isinstance(error, ConnectionLost):
            error = _too_late()
        for settlings in self._entries:
            self._subscription.answered(settlings, error)
