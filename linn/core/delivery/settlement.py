"""Settlements: what a consumer says about the records that it was given, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark

SETTLE_STEP = 32
"""Settlements of one step, fewer if they are about many ranges: 0.3 ms."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """A consumer's verdict on the records [first, end) of a partition, or on all that is left of a lease."""

    partition: int
    delivery_id: int
    first: int
    """Like `end`, -1 for all records that the lease still holds."""
    end: int
    verdict: int
    """A `Verdict`; any other number is refused with SubscriptionWrongKind."""
    ms: int = 0
    """The delay of a nack, or the time by which a lease is extended."""
    reason: str = ""
    """The reason of a nack or a reject, for people, of any length."""

    @property
    def is_whole(self) -> bool:
        """Whether it is about all that is left of a lease, and names no offsets."""
        return self.first == self.end == -1


@dataclass(frozen=True, slots=True)
class SettleOutcome:
    """The results of some settlements."""

    refused: Sequence[tuple[int, LinnError]]
    """(index, error): DeliveryNotCurrent, GroupFenced, LimitExceeded, SubscriptionWrongKind, PartitionUnknown."""
    awaits: Sequence[tuple[Mark, int]]
    """(mark, offset): the other settlements are durable once each mark has passed its offset."""
