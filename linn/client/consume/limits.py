"""Limits of one subscription, set by the application and the topic."""

from __future__ import annotations

from typing import NamedTuple

from linn.client.consume.prefetch import PREFETCH_FIRST


class Limits(NamedTuple):
    """Limits of one subscription."""

    credit: int
    """Limit on records in flight; 0: pull mode."""
    adapts: bool
    """Whether a queue's credit adapts, from `PREFETCH_FIRST` on; `credit` holds for streams then."""
    renewal_max_s: float
    """Time after a delivery for which its lease is renewed; 0: never."""
    session_s: float
    is_two_phase: bool = False

    @property
    def first_credit(self) -> int:
        """Credit for the Subscribe request, when it is not known yet whether the topic is a queue."""
        return min(self.credit, PREFETCH_FIRST) if self.adapts else self.credit
