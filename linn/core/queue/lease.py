"""Leases: records that one consumer holds for a time; and the book of all leases of one subscription.

Laws: a lease is a set of offsets with one attempt number: one range in a queue without an order, at most
LEASE_RANGES_MAX otherwise. Its delivery id is greater than every one given out before, also before a restart. It is
current for an offset from the grant until that offset is settled or returned, and never at or after its deadline,
whether or not the expiry has been processed yet. Nothing that a peer sends can make the book assert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Annotated, Literal

import msgspec

from linn.core.delivery.vocabulary import CONNECTION_LEASE_MS
from linn.core.errors.tree import DeliveryNotCurrent, LimitExceeded
from linn.core.queue.event import LOST
from linn.core.queue.offset_ranges import OffsetRanges, Range

LEASE_MS_MAX = 7 * 24 * 3_600_000
"""Longest lease, extension and delay: a week. A job that takes longer extends; a client's 2^63 is refused."""

CONNECTION_WORD = {"words": {"connection": CONNECTION_LEASE_MS}}
"""The way in which settings name a lease without a deadline."""

LEASE_RECORDS_MAX = 16_384
"""Limit of the records of one lease: a consumer with a huge credit still leaves something to the others."""
LEASE_RANGES_MAX = 512
"""Limit of the ranges of one lease: each is a row of the state log, and is read and settled by itself."""
DOUBLINGS_MAX = 62
"""Doublings after which an exponential delay stops growing: every cap is reached long before."""
STALE_DEADLINES_MIN = 64
"""Stale entries, beyond two per lease, at which the heap of deadlines is rebuilt."""

Backoff = Literal["fixed", "linear", "exponential"]


class LeaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of leases and redelivery."""

    lease_ms: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=LEASE_MS_MAX,
            description="How long a consumer holds a record before it is returned; "
            '"connection": as long as it is connected.',
            extra=CONNECTION_WORD,
        ),
    ] = msgspec.field(default=30_000, name="lease")
    max_deliveries: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=1 << 31)] | None,
        msgspec.Meta(
            description='Attempts before a record is dead-lettered, or dropped; or "unlimited".',
            extra={"none": "unlimited"},
        ),
    ] = None
    redelivery_delay_ms: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=LEASE_MS_MAX,
            description="Wait before a returned record is delivered again; up to a tenth is added.",
        ),
    ] = msgspec.field(default=0, name="redelivery_delay")
    redelivery_delay_max_ms: Annotated[
        int,
        msgspec.Meta(ge=0, le=LEASE_MS_MAX, description="The longest such wait, however many attempts there were."),
    ] = msgspec.field(default=600_000, name="redelivery_delay_max")
    redelivery_backoff: Annotated[
        Backoff,
        msgspec.Meta(description="How that wait grows with the attempts."),
    ] = "fixed"

    def redelivery_ms(self, attempts: int, asked_ms: int | None = None) -> int | None:
        """The delay of a record that is returned after so many attempts, at least one; None: it gets no more.

        `asked_ms`: the delay that its consumer asks for, if any.
        """
        assert attempts >= 1
        if self.max_deliveries is not None and attempts >= self.max_deliveries:
            return None
        if asked_ms is not None:
            return asked_ms
        delay_ms = self.redelivery_delay_ms
        if self.redelivery_backoff == "linear":
            delay_ms *= attempts
        elif self.redelivery_backoff == "exponential":
            delay_ms <<= min(attempts - 1, DOUBLINGS_MAX)
        return min(delay_ms, self.redelivery_delay_max_ms)


@dataclass(slots=True, eq=False)
class Lease:
    """A grant of `acquire`: offsets from `first` to `end` - 1, to one consumer, until `deadline`. Only the book changes
    it.
    """

    delivery_id: int
    consumer: int
    first: int
    end: int
    attempt: int
    """Number of this attempt to deliver the records; the first is 1."""
    deadline: float
    """Monotonic seconds; infinity: it ends with its consumer's connection."""
    held: OffsetRanges | None = None
    """Offsets still held, of a lease of several ranges or after a part was settled or returned; None: all of them."""
    granted: Sequence[Range] | None = None
    """The offsets as they were granted; None: all from `first` to `end` - 1."""
    ended: bool = False
    """Whether it holds no offsets any more."""
    is_lost: bool = False
    """Whether the records came back before because their consumer was lost."""

    @property
    def stored_attempt(self) -> int:
        """The attempt as it is stored, with the flag of records that came back by a loss."""
        return self.attempt | LOST if self.is_lost else self.attempt

    def ranges(self) -> list[Range]:
        """The offsets that it still holds, in order."""
        if self.ended:
            return []
        return [(self.first, self.end)] if self.held is None else list(self.held)

    def granted_from(self, offset: int) -> list[Range]:
        """The offsets that were granted, held or not, from an offset on."""
        granted = [(self.first, self.end)] if self.granted is None else self.granted
        return [(max(first, offset), end) for first, end in granted if end > offset]

    def count_within(self, first: int, end: int) -> int:
        """The number of offsets of [first, end) that it still holds."""
        return sum([max(0, min(stop, end) - max(start, first)) for start, stop in self.ranges()])

    def covers(self, first: int, end: int) -> bool:
        """Whether it still holds every offset of [first, end)."""
        if self.held is None:
            return self.first <= first and end <= self.end and not self.ended
        return self.held.covers(first, end)


def deadline_of(lease_ms: int, now: float) -> float:
    """The deadline of a lease that begins now."""
    return math.inf if lease_ms == CONNECTION_LEASE_MS else now + lease_ms / 1000


OnReleased = Callable[[Lease, Sequence[Range], bool], None]
"""A callback with offsets that a lease no longer holds; True: neither its consumer nor the broker for
it released them.
"""


def _tell_nobody(lease: Lease, ranges: Sequence[Range], lost: bool) -> None:
    return


class LeaseBook:
    """All leases that have not ended. `len` is the number of leases, `count` the number of records leased."""

    __slots__ = ("_by_consumer", "_deadlines", "_leases", "count", "next_delivery_id", "on_released")

    def __init__(self) -> None:
        self.on_released: OnReleased = _tell_nobody
        self.next_delivery_id = 1
        self.count = 0
        self._leases = 0
        self._by_consumer: dict[int, dict[int, Lease]] = {}
        self._deadlines: list[tuple[float, int, Lease]] = []

    def grant(self, consumer: int, ranges: Sequence[Range], attempt: int, deadline: float) -> Lease:
        """Grant a lease of ascending ranges with the next delivery id. None of these records may be leased."""
        delivery_id = self.next_delivery_id
        self.next_delivery_id = delivery_id + 1
        first, end = ranges[0][0], ranges[-1][1]
        lease = Lease(delivery_id, consumer, first, end, attempt, deadline)
        count = end - first
        if len(ranges) > 1:
            lease.granted, lease.held = ranges, OffsetRanges(ranges)
            count = lease.held.count
        mine = self._by_consumer.get(consumer)
        if mine is None:
            mine = self._by_consumer[consumer] = {}
        mine[delivery_id] = lease
        self._leases += 1
        self.count += count
        self._push(lease)
        return lease

    def current(self, consumer: int, delivery_id: int, now: float) -> Lease:
        """The consumer's lease of this id. Raises DeliveryNotCurrent."""
        mine = self._by_consumer.get(consumer)
        lease = mine.get(delivery_id) if mine is not None else None
        if lease is None or lease.deadline <= now:
            raise DeliveryNotCurrent(f"delivery {delivery_id} is not current: it ended, or was never this consumer's")
        return lease

    def release(self, lease: Lease, ranges: Iterable[Range] | None, *, lost: bool = False) -> list[Range]:
        """End the lease, or the named part of it; returns the offsets released, in order.

        `lost`: it expired, or the records are gone. In a lease of several ranges, a named range means the records in it
        that the lease still holds.

        Raises:
            DeliveryNotCurrent: a range is empty, is named twice, or is not held by the lease. Nothing was changed.
        """
        if ranges is not None and lease.granted is not None and not lease.ended:
            ranges = _held_in(lease, ranges)
        elif ranges == [(lease.first, lease.end)] and lease.held is None and not lease.ended:
            ranges = None
        pieces = lease.ranges() if ranges is None else _checked(lease, ranges)
        if ranges is None:
            self._end(lease)
        elif pieces:
            self._shrink(lease, pieces)
        for first, end in pieces:
            self.count -= end - first
        if pieces:
            self.on_released(lease, pieces, lost)
        return pieces

    def extend(self, lease: Lease, ranges: Iterable[Range] | None, lease_ms: int, now: float) -> None:
        """Move the deadline to `lease_ms` from now, which may also be earlier. A lease without a deadline gets none.

        Raises:
            DeliveryNotCurrent: a range is empty, or the lease was not granted for all of it.
            LimitExceeded: `lease_ms` is out of bounds.
        """
        for first, end in ranges or ():
            if not lease.first <= first < end <= lease.end:
                raise _not_current_for(lease, first, end)
        if lease.deadline == math.inf:
            return
        if not 1 <= lease_ms <= LEASE_MS_MAX:
            raise LimitExceeded(f"a lease lasts from 1 to {LEASE_MS_MAX} ms; {lease_ms} was asked for")
        lease.deadline = now + lease_ms / 1000
        self._push(lease)

    def of_consumer(self, consumer: int) -> list[Lease]:
        """The consumer's leases, oldest first."""
        return list(self._by_consumer.get(consumer, {}).values())

    def forget_consumer(self, consumer: int) -> None:
        """Remove a consumer that holds no leases."""
        held = self._by_consumer.pop(consumer, None)
        assert not held

    def pop_expired(self, now: float) -> Lease | None:
        """The lease with the earliest deadline, if that has passed; it has not ended yet: release it."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now:
            return None
        return heappop(self._deadlines)[2]

    def next_deadline(self) -> float | None:
        """The earliest deadline of all leases, or None."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][2].ended or deadlines[0][2].deadline != deadlines[0][0]):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def cut(self, before: int) -> int:
        """Remove every offset below `before` from the leases; returns the number of leased ones. Examines
        every lease.
        """
        lost = 0
        for lease in self:
            below = [(first, min(end, before)) for first, end in lease.ranges() if first < before]
            if below:
                lost += sum(end - first for first, end in self.release(lease, below, lost=True))
        return lost

    def _push(self, lease: Lease) -> None:
        if lease.deadline == math.inf:
            return
        heappush(self._deadlines, (lease.deadline, lease.delivery_id, lease))
        if len(self._deadlines) > 2 * self._leases + STALE_DEADLINES_MIN:
            self._deadlines = [
                (lease.deadline, lease.delivery_id, lease) for lease in self if lease.deadline < math.inf
            ]
            heapify(self._deadlines)

    def _end(self, lease: Lease) -> None:
        lease.ended = True
        lease.held = None
        self._leases -= 1
        del self._by_consumer[lease.consumer][lease.delivery_id]

    def _shrink(self, lease: Lease, pieces: list[Range]) -> None:
        held = lease.held
        if held is None:
            held = lease.held = OffsetRanges([(lease.first, lease.end)])
        for first, end in pieces:
            held.remove(first, end)
        if not held:
            self._end(lease)

    def __iter__(self) -> Iterator[Lease]:
        return iter([lease for mine in self._by_consumer.values() for lease in mine.values()])

    def __len__(self) -> int:
        return self._leases


def _checked(lease: Lease, ranges: Iterable[Range]) -> list[Range]:
    """The ranges in order, after checking that the lease holds each and none is repeated. Raises DeliveryNotCurrent."""
    pieces = sorted(ranges)
    previous = lease.first
    for first, end in pieces:
        if not previous <= first < end or not lease.covers(first, end):
            raise _not_current_for(lease, first, end)
        previous = end
    return pieces


def _held_in(lease: Lease, ranges: Iterable[Range]) -> list[Range] | None:
    """The offsets that a lease of several ranges holds in ascending ranges; None: all that it holds.

    Raises DeliveryNotCurrent: it holds none in one of them, or they overlap.
    """
    held, found, previous = lease.held, list[Range](), lease.first
    assert held is not None
    for first, end in sorted(ranges):
        pieces = held.intersect(first, end) if previous <= first < end else []
        if not pieces:
            raise _not_current_for(lease, first, end)
        found += pieces
        previous = end
    return None if found and len(found) == len(held) and found == list(held) else found


def _not_current_for(lease: Lease, first: int, end: int) -> DeliveryNotCurrent:
    named = f"offsets {first} to {end - 1}" if first < end else "no offsets at all"
    return DeliveryNotCurrent(f"delivery {lease.delivery_id} is not current for {named}")
