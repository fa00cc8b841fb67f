"""Trimming of the log of one partition of a queue, and the handovers that hold it back.

Laws: settled records are not trimmed while they are being delivered: where delivery settles records, they are settled
before they are read. Where another broker may lead next, they are trimmed only when their settlement is committed. A
queue with `keep` is not trimmed here: retention drops its records by age, those below `trimmable_before` alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable

from linn.core.delivery.consumer import do_nothing
from linn.core.env.env import Spawn
from linn.core.errors.tree import LinnError, StorageError, SyncFailed
from linn.core.log.partition import Partition
from linn.core.queue.lease import Lease
from linn.core.queue.subscription import SharedSubscription
from linn.core.queue.subscription_log import SubscriptionLog, about

logger = logging.getLogger("linn.queue")

TRIM_AFTER_RECORDS = 10_000
"""Settled records are trimmed in steps of this many, or when the queue is empty."""


class Handovers:
    """Leases that are settled, and whose records their consumers have not read yet."""

    def __init__(self, log: SubscriptionLog) -> None:
        self.owed: deque[Lease] = deque()
        """Leases settled for a handover that has not happened: the state log had no room for the event."""
        self.reading: dict[int, int] = {}
        """The first offset, by consumer, that is settled on delivery but not read yet."""
        self._log = log

    def take(self, consumer: int) -> Lease:
        """Hand the lease owed longest to a consumer. Raises StorageError: the lease stays owed."""
        self._log.flush()
        lease = self.owed.popleft()
        self.reading[consumer] = lease.first
        return lease


class Trimming:
    """Trims the log of one partition."""

    def __init__(
        self,
        partition: Partition,
        subscription: SharedSubscription,
        log: SubscriptionLog,
        handovers: Handovers,
        spawn: Spawn,
    ) -> None:
        self.trims = True
        """Whether settled records are trimmed; a stream, and a queue with `keep`, leave that to retention."""
        self.kept_from: Callable[[], int | None] | None = None
        """Returns the offset from which on settled records are kept as well, or None."""
        self.on_room: Callable[[], None] = do_nothing
        """Called when records were settled or trimmed, which makes room."""
        self._partition = partition
        self._subscription = subscription
        self._log = log
        self._handovers = handovers
        self._spawn = spawn
        self._is_running = False

    def begin_if_due(self) -> None:
        """Trim in the background if it is worth it."""
        if not self.trims or self._is_running:
            return
        low = self._subscription.settled_before()
        settled_before = self._unneeded_before(low)
        settled = settled_before - self._partition.log.bounds()[0]
        is_kept = self.kept_from is not None and settled_before < low
        if settled >= TRIM_AFTER_RECORDS or (
            settled > 0 and (is_kept or settled_before == self._partition.stable_offset)
        ):
            self._is_running = True
            self._spawn(self._trim)

    def trimmable_before(self) -> int:
        """The offset below which no record is needed any more, also by another broker that leads next."""
        log, subscription = self._log, self._subscription
        return self._unneeded_before(log.settled_durably() if log.is_replicated else subscription.settled_before())

    def begin_thinning_if_due(self) -> None:
        """Have settled records dropped behind unsettled ones, in the background, if there are any."""
        partition, end = self._partition, self._partition.stable_offset
        is_allowed = self.trims and partition.leads and partition.thinning.is_allowed
        if not is_allowed or partition.thinning.is_running or not self._log.is_open:
            return
        if end - self._subscription.settled_before() > self._subscription.unsettled_count(end):
            self._spawn(self._thin)

    async def _thin(self) -> None:
        try:
            before = self._unneeded_before(self._partition.stable_offset)
            await self._partition.thinning.run(self._subscription.unsettled, before, self._log.until_committed)
        except SyncFailed:
            raise
        except LinnError as error:
            if self._log.is_open:
                logger.warning("%(partition)s is not thinned: %(error)s", about(self._partition, error))
        self.on_room()

    async def trim_now(self) -> None:
        """Trim as far as it is safe, however few records that are. Raises StorageError."""
        if self.trims and self._partition.leads:
            await self._partition.log.trim(before=self.trimmable_before())

    def _unneeded_before(self, settled_before: int) -> int:
        """The end of settled offsets of which none is kept, or not read by its consumer yet."""
        handovers = self._handovers
        if self.kept_from is not None and (kept := self.kept_from()) is not None:
            settled_before = min(settled_before, kept)
        if not handovers.reading and not handovers.owed:
            return settled_before
        return min([settled_before, *handovers.reading.values(), *[lease.first for lease in handovers.owed]])

    async def _trim(self) -> None:
        before, is_replicated = self._unneeded_before(self._subscription.settled_before()), self._log.is_replicated
        try:
            if is_replicated:
                with contextlib.suppress(StorageError):  # On a full disk the next settlement tries again.
                    await self._log.until_committed()
                    if self.trims:
                        await self._partition.log.trim(before=before)
            else:
                await self._partition.log.trim(before=before)
        finally:
            self._is_running = False
        self.on_room()
        if is_replicated and self._unneeded_before(self._subscription.settled_before()) > before:
            self.begin_if_due()  # More was settled while the replicas were waited for.
