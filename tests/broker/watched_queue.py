"""The inside of a queue, watched while it lives: each grant of a lease, each record that makes room, each replay."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager

from linn.core.batch.batch import RecordBatch
from linn.core.env.steady_clock import SteadyClock
from linn.core.log.partition import Partition
from linn.core.queue.lease import Lease
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.subscription import SharedSubscription
from linn.core.queue.subscription_log import SubscriptionLog
from linn.testing.sim_env import SimClock

Granted = Callable[[SharedSubscription, Lease, Mapping[int, int], Set[int], int], None]
"""Takes a lease that was granted, the attempts of all that was ready before, by offset, the offsets in flight, and the
end."""


async def replay(part: PartitionQueue, clock: SimClock) -> None:
    """Replay the state log as a machine with another clock would: the state is the same, unless something happens."""
    state = part.log.state
    if not part.log.is_open or state is None:
        return
    await part.log.until_committed()
    replica, read_to = SharedSubscription(part.subscription.semantics, 0), state.partition.log.bounds()[1]
    if state.committed.offset != read_to:
        return
    ahead = copy.copy(clock)
    ahead.jump(3_600_000)
    log = SubscriptionLog(part.partition, replica, state, SteadyClock(ahead), part.spawn)
    await log.replay(part.partition.log.bounds()[1])
    here, there = plain_state(part.subscription), plain_state(replica)
    if not part.subscription.events_waiting and state.partition.log.bounds()[1] == read_to:
        assert here == there, f"a replay gives the same state: {here ^ there}"


def plain_state(subscription: SharedSubscription) -> set[tuple[object, ...]]:
    """The state of each record but those that were never delivered; leased records are returned as far as a log says,
    and records that a start has returned are leased.
    """
    states = subscription._states
    rows: list[tuple[int, int, object]] = [(first, end, "settled") for first, end in states.settled]
    for lease in states.leases:
        rows += [(first, end, lease.stored_attempt) for first, end in lease.ranges()]
    rows += states.orphaned
    rows += [(first, end, attempts) for first, end, attempts in states.returned.ready if attempts]
    rows += [*states.returned.delayed, *states.decided, *states.causes]
    rows += [(dead.first, dead.end, (dead.attempts, dead.reason, dead.intent)) for dead in states.dead.ranges()]
    return {(at, state) for first, end, state in rows for at in range(first, end)} | {("low", states.low)}


@contextmanager
def checked_grants(granted: Granted) -> Iterator[None]:
    """Have each grant of a lease checked against what was ready at that moment."""
    acquire = SharedSubscription.acquire

    def checked(
        self: SharedSubscription, consumer: int, records_max: int, end: int, now: float, *, skips_lost: bool = False
    ) -> Lease | None:
        states = self._states
        ready = {at: attempts for first, stop, attempts in states.returned.ready for at in range(first, stop)}
        ready |= dict.fromkeys(range(states.cursor, end), 0)
        held = [span for lease in states.leases for span in lease.ranges()]
        held += [row[:2] for row in (*states.decided, *states.returned.delayed)]
        in_flight = {at for first, stop in held for at in range(first, stop)}
        lease = acquire(self, consumer, records_max, end, now, skips_lost=skips_lost)
        if lease is not None:
            granted(self, lease, ready, in_flight, end)
        return lease

    SharedSubscription.acquire = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        SharedSubscription.acquire = acquire  # type: ignore[method-assign]


@contextmanager
def noted_appends(name: str, came: Callable[[int, RecordBatch], object]) -> Iterator[None]:
    """Have each batch noted that is stored in a topic, with its partition."""
    append = Partition.append

    def noted(self: Partition, batch: RecordBatch) -> int:
        offset = append(self, batch)
        if self.id.topic == name:
            came(self.id.index, RecordBatch(batch.message))
        return offset

    Partition.append = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Partition.append = append  # type: ignore[method-assign]


@contextmanager
def noted_drops(dropped: set[tuple[int, int]]) -> Iterator[None]:
    """Have records noted that make room for others, by partition and offset."""
    end_waiting = PartitionQueue.end_waiting

    def noted(self: PartitionQueue, records: int, *, is_dead: bool) -> int:
        subscription, index = self.subscription, self.partition.id.index
        end = self.partition.log.bounds()[1]
        before = [at for first, stop in subscription.unsettled(0, end) for at in range(first, stop)]
        try:
            return end_waiting(self, records, is_dead=is_dead)
        finally:  # If the broker dies meanwhile, they may be dropped.
            left = {at for first, stop in subscription.unsettled(0, end) for at in range(first, stop)}
            dropped.update((index, at) for at in before if at not in left)

    PartitionQueue.end_waiting = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        PartitionQueue.end_waiting = end_waiting  # type: ignore[method-assign]
