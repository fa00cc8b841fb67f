"""Records that differ one by one and meet the same fate at the same time are worked on together.

One by one, each change would move all that lies behind it, in time that grows with the square of their number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from linn.core.queue.effects import Effects
from linn.core.queue.event import Returned, Settled
from linn.core.queue.event_run import EventRun, Snapshot
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.subscription import SharedSubscription
from linn.semantics.at_least_once import AtLeastOnce

COUNT = 2_000
ANN = 1


def with_holes(delay_ms: int) -> SharedSubscription:
    """COUNT settled records, and as many that were returned, in turn."""
    returned, settled, ends = [tuple(range(first, 2 * COUNT + first, 2)) for first in range(3)]
    runs = (
        EventRun(Settled.kind, settled, ends),
        EventRun(Returned.kind, returned, settled, (1,) * COUNT, (delay_ms,) * COUNT),
    )
    subscription = SharedSubscription(AtLeastOnce(LeaseSettings()), 0)
    subscription.apply(Snapshot(0, 1, runs))
    subscription.recovered(0.0)
    return subscription


def changes_in(work: Callable[[], object]) -> int:
    """The number of changes asked of a map or a set of ranges."""
    changes = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal changes
        name = frame.f_code.co_qualname
        changes += (
            event == "call" and name.startswith("Offset") and name.endswith((".set", ".take", "._merge", ".remove"))
        )

    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(profiler)
    return changes


def test_many_delays_that_pass_at_once_make_their_records_ready_together():
    subscription, effects = with_holes(60_000), []
    assert changes_in(lambda: effects.append(subscription.expire(60.0))) < 10
    assert effects == [Effects(ready=COUNT)]
    subscription.check()
    lease = subscription.acquire(ANN, 9, 2 * COUNT, 60.0)
    assert (lease.first, lease.end, lease.attempt) == (0, 1, 2)


def test_a_purge_settles_gaps_between_settled_records_in_one_event():
    subscription, effects = with_holes(0), []
    subscription.acquire(ANN, 1, 2 * COUNT, 0.0)
    assert changes_in(lambda: effects.append(subscription.purge(2 * COUNT))) < 10
    assert effects == [Effects(settled=COUNT - 1)]
    subscription.check()
    assert subscription.settled == [(1, 2 * COUNT)]
    assert subscription.settled_before() == 0
    assert subscription.consumer_gone(ANN, 0.0) == Effects(ready=1)
    assert subscription.purge(2 * COUNT) == Effects(settled=1)
    assert subscription.settled_before() == 2 * COUNT
