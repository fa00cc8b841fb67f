"""Settlements: a consumer's verdicts on delivered records, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linn.core.errors.tree import LinnError
from linn.core.log.mark import Mark

SETTLE_STEP = 32
"""Settlements per step, fewer if they cover many ranges: 0.3 ms."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """A consumer's verdict on the records [first, end) of a partition, or on all remaining records of a lease."""

    partition: int
    delivery_id: int
    first: int
    """The first offset; -1, also for `end`: all records that the lease still holds."""
    end: int
    verdict: int
    """A `Verdict`; other numbers are refused with SubscriptionWrongKind."""
    ms: int = 0
    """The delay of a nack, or the extension of a lease."""
    reason: str = ""
    """The reason of a nack or a reject, for people, of any length."""

    @property
    def is_whole(self) -> bool:
        """Whether it covers all remaining records of a lease, without offsets."""
        return self.first == self.end == -1


@dataclass(frozen=True, slots=True)
class SettleOutcome:
    """The results of settlements."""

    refused: Sequence[tuple[int, LinnError]]
    """(index, error): DeliveryNotCurrent, GroupFenced, LimitExceeded, SubscriptionWrongKind, PartitionUnknown."""
    awaits: Sequence[tuple[Mark, int]]
    """(mark, offset): the accepted settlements are durable once each mark has passed its offset."""
