"""A shared subscription in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """Numbers about a subscription: of records, unless the name says otherwise."""

    settled_before: int
    """Offset."""
    cursor: int
    """Offset of the first record that was never examined."""
    settled_beyond: int
    leased: int
    decided: int
    ready: int
    """Returned and ready records; those beyond the cursor are not counted."""
    delayed: int
    dead: int
    leases: int
    """Number of leases."""
    ranges: int
    """Number of ranges kept in memory, all states together."""
