"""A shared subscription in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from linn.core.queue.record_states import RecordStates


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """Numbers about a subscription: of records, unless the name says otherwise."""

    settled_before: int
    """Offset."""
    cursor: int
    """Offset of the first record that was never examined."""
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


def statistics_of(states: RecordStates) -> SubscriptionStatistics:
    """The numbers of a subscription in these states. Examines every range."""
    return SubscriptionStatistics(
        settled_before=states.low,
        cursor=states.cursor,
        leased=states.leases.count,
        decided=states.decided.count,
        ready=states.returned.ready.count,
        delayed=states.returned.delayed.count,
        dead=states.dead.count,
        leases=len(states.leases),
        ranges=len(states.ranges()),
    )
