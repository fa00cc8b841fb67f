"""Settling: a consumer's settlements until the broker has answered them. Pure: no I/O.

Laws: settlements reach the broker in order, with adjoining ones merged. A refusal is raised to the task that awaits the
settlement, or else by the consumer's next step. That a lost connection made a settlement void is raised only to the
task that awaits it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, Self

import anyio
import anyio.lowlevel

from linn.client.arguments import U32_MAX, checked_number
from linn.client.connection.answer import again
from linn.core.batch.batch import RecordBatch
from linn.core.errors.codes import error_from_code
from linn.core.errors.tree import ConnectionLost, DeliveryNotCurrent, LinnError
from linn.wire.messages import WHOLE_LEASE, Deliver, Message, Phase, Settlement, Verdict
from linn.wire.messages import Settled as SettledMessage

OPEN, SENT, DONE = range(3)
SETTLES_NOTHING = (Verdict.EXTEND, Verdict.RELEASE, Verdict.READY)


class Delivery:
    """Records that were delivered together, under one lease or without a lease."""

    __slots__ = (
        "__weakref__",
        "attempt",
        "delivery_id",
        "end",
        "first",
        "is_decided",
        "partition",
        "rejected",
        "settled_before",
        "since_s",
        "sparse",
        "until_s",
    )

    def __init__(
        self,
        partition: int,
        delivery_id: int,
        attempt: int,
        first: int = 0,
        end: int = 0,
        since_s: float = 0.0,
        until_s: float = math.inf,
    ) -> None:
        self.partition = partition
        self.delivery_id = delivery_id
        self.attempt = attempt
        self.first = first
        """First offset of the lease, as `end` is its end; 0 without a lease."""
        self.end = end
        self.since_s = since_s
        """Time of arrival, by the client's clock."""
        self.until_s = until_s
        """Latest end of the lease, by the client's clock. It does not affect decided records."""
        self.is_decided = False
        """Whether the broker has decided all of these records for this consumer before, and repeats the decision."""
        self.rejected: list[tuple[int, int]] = []
        """Ranges that the application has rejected, in a two-phase delivery: their effects must not be stored."""
        self.sparse: Sequence[RecordBatch] = ()
        """The batches, if they have or leave gaps: a queue with an order delivers scattered records."""
        self.settled_before = 0
        """Offset below which every record is finally settled, in a two-phase delivery."""

    @classmethod
    def of(cls, message: Deliver, batches: Sequence[RecordBatch], now: float) -> Self:
        """Make the delivery of a message under a lease, or of a repeated decision, that has arrived now."""
        first, end = batches[0].base_offset, batches[-1].end_offset
        made = cls(message.partition, message.delivery_id, message.attempt, first, end, now)
        made.settled_before, made.is_decided = message.settled_before, message.phase == Phase.COMMIT
        if sum([records.count for records in batches]) != end - first:
            made.sparse = batches
        return made

    def count(self, first: int, end: int) -> int:
        """Count the records of [first, end)."""
        if not self.sparse:
            return end - first
        return sum([it.index_at(end) - it.index_at(first) for it in self.sparse if first < it.end_offset])


class PendingSettlement:
    """A range of records and its verdict. Awaiting it waits for the broker's answer, and raises a refusal.

    It is sent even without being awaited. Cancellation: it is sent nevertheless.
    """

    __slots__ = (
        "_event",
        "_send",
        "awaited",
        "delivery",
        "end",
        "error",
        "first",
        "is_void",
        "ms",
        "reason",
        "state",
        "verdict",
    )

    def __init__(
        self,
        delivery: Delivery,
        first: int,
        end: int,
        verdict: Verdict,
        ms: int,
        send: Callable[[], None],
        reason: str = "",
    ) -> None:
        self.delivery = delivery
        self.first = first
        self.end = end
        self.verdict = verdict
        self.ms = ms
        self.reason = reason
        self.state = OPEN
        self.awaited = False
        self.is_void = False
        """Whether the connection was lost before the broker answered."""
        self.error: LinnError | None = None
        self._send = send
        self._event: anyio.Event | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        self.awaited = True
        if self.state == OPEN:
            self._send()
        await self.until_done()
        if self.error is not None:
            raise again(self.error)

    async def until_done(self) -> None:
        """Wait for the broker's answer without raising a refusal."""
        if self.state == DONE:
            await anyio.lowlevel.checkpoint()
            return
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def finish(self, error: LinnError | None) -> None:
        """Set the broker's answer, or an error if there will be no answer."""
        self.state, self.error = DONE, error
        if self._event is not None:
            self._event.set()

    @property
    def count(self) -> int:
        """Number of records."""
        return self.delivery.count(self.first, self.end)

    def joins(self, later: PendingSettlement) -> bool:
        """Tell whether `later`, made after this one, can be merged into its entry."""
        return (
            self.delivery.delivery_id == later.delivery.delivery_id
            and self.delivery.partition == later.delivery.partition
            and self.end == later.first
            and self.verdict == later.verdict
            and self.ms == later.ms
            and self.reason == later.reason
        )


class NothingToSettle:
    """Awaitable for records that need no settlement."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return anyio.lowlevel.checkpoint().__await__()


NOTHING_TO_SETTLE = NothingToSettle()
Settled = Awaitable[None]
"""Handle of a settlement. Awaiting the broker's answer is optional."""


def is_void(settled: Settled | None) -> bool:
    """Tell whether the connection was lost before a settlement was answered: the records may be delivered again."""
    return isinstance(settled, PendingSettlement) and settled.is_void


def merged(settlings: list[PendingSettlement]) -> list[tuple[Settlement, list[PendingSettlement]]]:
    """Build the entries of one Settle request, each with the settlements in it.

    An entry for a whole delivery names no offsets: it settles the rest, if some records were settled before.
    """
    if len({(settling.verdict, settling.ms) for settling in settlings}) == 1:
        # All have the same verdict, so their order does not matter.
        settlings = sorted(settlings, key=lambda one: (one.delivery.partition, one.delivery.delivery_id, one.first))
    entries: list[tuple[Settlement, list[PendingSettlement]]] = []
    for settling in settlings:
        if entries and entries[-1][1][-1].joins(settling):
            entries[-1][0].end = settling.end
            entries[-1][1].append(settling)
        else:
            entries.append((_entry(settling, settling.first), [settling]))
    for entry, settled in entries:
        delivery = settled[0].delivery
        if (entry.first, entry.end) == (delivery.first, delivery.end) and entry.verdict != Verdict.DONE:
            entry.first = entry.end = WHOLE_LEASE
    return entries


def _entry(settling: PendingSettlement, first: int) -> Settlement:
    delivery = settling.delivery
    return Settlement(delivery.partition, delivery.delivery_id, first, settling.end, settling.verdict, settling.ms)


def with_reasons(entries: list[tuple[Settlement, list[PendingSettlement]]]) -> list[str]:
    """Set the indexes of reasons in entries, and return the reasons."""
    places: dict[str, int] = {}
    for entry, settled in entries:
        if settled[0].reason:
            entry.reason = places.setdefault(settled[0].reason, len(places) + 1)
    return list(places)


def latest_commits(settlings: list[PendingSettlement]) -> list[tuple[Settlement, list[PendingSettlement]]]:
    """Build the entries for a consumer group: a run of acks becomes one commit per partition."""
    entries: list[tuple[Settlement, list[PendingSettlement]]] = []
    furthest: dict[tuple[int, int], tuple[Settlement, list[PendingSettlement]]] = {}
    for settling in settlings:
        if settling.verdict != Verdict.ACK:
            furthest = {}  # Acks after another verdict must not be sent before it.
            entries.append((_entry(settling, settling.first), [settling]))
            continue
        key = settling.delivery.partition, settling.delivery.delivery_id
        known = furthest.get(key)
        if known is None:
            known = furthest[key] = (_entry(settling, settling.first), [])
            entries.append(known)
        known[0].first = min(known[0].first, settling.first)
        known[0].end = max(known[0].end, settling.end)
        known[1].append(settling)
    return entries


def check_ms(ms: int) -> None:
    """Check a number of milliseconds. Raises MessageInvalid if it can't be sent."""
    checked_number(ms, "a time in milliseconds", U32_MAX)


def is_late(settling: PendingSettlement, now: float) -> bool:
    """Tell whether a settlement comes after the end of its lease. Decided records need no lease."""
    return now >= settling.delivery.until_s and settling.verdict != Verdict.DONE


def make_void(settlings: Iterable[PendingSettlement]) -> None:
    """Finish settlements whose connection is gone."""
    text = "the connection that the records came by is gone; the broker may deliver them again"
    for settling in settlings:
        settling.is_void = True
        settling.finish(DeliveryNotCurrent(text))


def records_in(settlings: Iterable[PendingSettlement]) -> int:
    """Count the records that would be settled."""
    return sum([s.count for s in settlings if s.verdict not in SETTLES_NOTHING])


def lease_over(delivery: Delivery) -> DeliveryNotCurrent:
    """Make the error of a settlement that comes too late."""
    text = f"the lease of delivery {delivery.delivery_id} is over; the broker delivers its records again"
    return DeliveryNotCurrent(text)


class Settler(Protocol):
    """The subscription that has sent settlements."""

    alive: bool

    def answered(self, settlings: list[PendingSettlement], error: LinnError | None) -> None:
        """Handle the broker's answer to settlements, all accepted or all refused."""

    def lost(self, settlings: list[PendingSettlement]) -> None:
        """Make settlements void that were sent over a connection that is lost."""


class SettleRequest:
    """The caller of one Settle."""

    __slots__ = ("_entries", "_subscription")

    def __init__(self, subscription: Settler, entries: list[list[PendingSettlement]]) -> None:
        self._subscription = subscription
        self._entries = entries

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """Pass on what the broker said of each entry."""
        refused: dict[int, LinnError] = {}
        if isinstance(message, SettledMessage):
            refused = {refusal.entry: error_from_code(refusal.code, refusal.text) for refusal in message.refused}
        for index, settlings in enumerate(self._entries):
            self._subscription.answered(settlings, refused.get(index))

    def failed(self, error: LinnError) -> None:
        """Refuse all, or make them void with the connection."""
        if not self._subscription.alive:
            return  # They are void.
        for settlings in self._entries:
            if isinstance(error, ConnectionLost):
                self._subscription.lost(settlings)
            else:
                self._subscription.answered(settlings, error)
