"""The event log of one subscription: its events are written, made durable, replaced by snapshots, and replayed.

Laws: a settlement is answered after its event is committed, as records of the topic are; events go to the log before
the delivery that they describe. Without a state log nothing survives a restart, and nothing is waited for.

A replicated log is written only while this broker leads it. `abandon` ends that: nothing is written any more, and what
waits for events that are not committed fails with NotLeader.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial

from linn.core.delivery.consumer import do_nothing
from linn.core.env.env import Clock, Spawn
from linn.core.env.log_fields import log_fields
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, StorageError, SyncFailed
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.log.state_log import ROOM_RETRY_S, StateLog
from linn.core.queue.damage import warn_of_lost
from linn.core.queue.event import SubscriptionEvent, clip_event, decode_events, encode_events
from linn.core.queue.lease import Lease
from linn.core.queue.subscription import SharedSubscription

logger = logging.getLogger("linn.queue")


class SubscriptionLog:
    """The log of one shared subscription on one partition."""

    def __init__(
        self, partition: Partition, subscription: SharedSubscription, state: StateLog | None, clock: Clock, spawn: Spawn
    ) -> None:
        """`partition` has the records; `state` is None if nothing survives a restart."""
        self.state = state
        self.is_open = False
        """Whether records are delivered: from `begin` to `close`."""
        self.clipped = False
        """Whether the log marks records as settled that were lost in a power failure."""
        self._partition = partition
        self._subscription = subscription
        self._clock = clock
        self._spawn = spawn
        self.ids_noted = state is None
        """Whether the log durably has the next delivery id: no id may be given out before."""
        self._low_noted = (0, 0)
        """An offset before which all was settled, and the end of the log that says so."""
        self._low_durable = 0
        self.on_room: Callable[[], None] = do_nothing
        """Called when events are written that a full disk had no room for."""
        self._writes_later = False

    # --- starting and stopping ---

    async def replay(self, end: int) -> None:
        """Apply the log to a fresh subscription; events about offsets from `end` on are ignored. Raises LogCorrupt."""
        if self.state is not None:
            async for record in self.state.replay():
                for event in decode_events(record):
                    kept = clip_event(event, end)
                    self.clipped = self.clipped or kept != event
                    if kept is not None:
                        self._subscription.apply(kept)

    async def begin(self) -> None:
        """Get ready for deliveries. Raises StorageError: call it again. NotLeader: the log is lost.

        A replicated log does not wait here for the next delivery id to be committed, but before the first delivery:
        other logs of the topic are opened meanwhile.
        """
        if self.clipped and self.state is not None:
            # Offsets beyond the end will be given again: the old log's events about them must go first.
            await self.state.compact(self._snapshot, force=True)
            warn_of_lost(self._partition)
            self.clipped = False
        if self.state is not None and not self.is_empty():
            self.flush()
            if not self.state.is_replicated:
                await self._note_ids()
        self.check_led()
        self.is_open = True

    @property
    def is_replicated(self) -> bool:
        """Whether another broker may lead next, with the committed events."""
        return self.state is not None and self.state.is_replicated

    def abandon(self, reason: NotLeader) -> None:
        """Write nothing more, because another broker leads the log. `begin`, `flush` and waits raise the reason."""
        self.is_open = False
        if self.state is not None:
            self.state.abandon(reason)

    @property
    def is_lost(self) -> bool:
        """Whether another broker may lead the log by now."""
        return self.state is not None and self.state.lost is not None

    def check_led(self) -> None:
        """Check that the log is still this broker's. Raises NotLeader."""
        if self.state is not None:
            self.state.check_led()

    def is_empty(self) -> bool:
        """Whether it has no events."""
        return self.state is None or not self.state.partition.log.bounds()[1]

    async def _note_ids(self) -> None:
        """Commit the next delivery id. A queue that never delivered anything postpones this to the first delivery."""
        assert self.state is not None
        await self.state.make_durable()
        self.ids_noted = True

    async def _note_first_ids(self) -> None:
        """Sync the next delivery id for a waiting consumer. Raises StorageError; a failed sync ends the broker too."""
        self.flush()
        try:
            await self._note_ids()
        except SyncFailed as error:
            failed = error

            async def fail() -> None:
                raise failed

            self._spawn(fail)
            raise

    async def close(self, unsettled: Sequence[Lease]) -> None:
        """Write a snapshot, so that the next start is quick. The settlements of `unsettled` are undone.

        A replicated log gets none: who leads it next replays it anyway. What waits for its events is answered. Where
        another broker leads the log now, it is that one's to write.
        """
        self.is_open = False
        if self.state is None or not self.state.partition.leads or not (self.ids_noted or not self.is_empty()):
            return  # There is nothing to write down.
        try:
            if self.state.is_replicated:
                if not unsettled:  # Their events were not written yet, so there is nothing to undo.
                    self.flush()
            else:
                for lease in unsettled:
                    self._subscription.take_back(lease)
                await self.state.compact(self._snapshot, force=True)
            await self.state.commit_all()  # A transaction may wait for it, also if the log is deleted next.
        except NotLeader:
            pass
        except SyncFailed:
            raise
        except StorageError as error:
            logger.warning("%(partition)s: closed without a snapshot: %(error)s", about(self._partition, error))

    def left_off(self) -> Sequence[SubscriptionEvent]:
        """The state for a successor, as far as no log has it, when this is closed."""
        if self.state is not None:
            return ()
        self.flush()
        return self._subscription.snapshot_events()

    # --- writing ---

    def flush(self) -> tuple[Mark, int] | None:
        """Write pending events as one record; returns the mark and the offset to wait for, or None for nothing.

        Raises StorageError: they are kept, and written with the next ones or once there is room. NotLeader: they are
        dropped, and so is the subscription.
        """
        events, state = self._subscription.take_events(), self.state
        if state is None:
            return None
        if not events and not state.waiting:
            state.check_led()
            return state.committed, state.partition.log.bounds()[1]
        try:
            end = state.write(encode_events(events) if events else b"", self._encoded_snapshot)
        except NotLeader:
            raise
        except StorageError:
            if self.is_open and not self._writes_later:
                self._writes_later = True
                self._spawn(self._write_later)
            raise
        if self.is_open and state.is_due():
            self._spawn(partial(state.compact_in_background, self._snapshot))
        return state.committed, end

    def flush_or_keep(self) -> bool:
        """Flush where no answer depends on it: a full disk is no reason to stop the queue, and a lost log ends it soon.

        Returns whether the log is still this broker's, as far as it knows.
        """
        try:
            self.flush()
        except NotLeader:
            return False
        except StorageError as error:
            text = "%(partition)s: %(count)d records of its log wait for the disk: %(error)s"
            logger.warning(text, about(self._partition, error) | {"count": self.state.waiting if self.state else 0})
        return True

    async def _write_later(self) -> None:
        """Write the records that a full disk had no room for, once it has."""
        try:
            while self.is_open and self.state is not None and self.state.waiting:
                await self._clock.sleep(ROOM_RETRY_S)
                with contextlib.suppress(StorageError):
                    self.state.write(b"", self._encoded_snapshot)
        finally:
            self._writes_later = False
        self.on_room()

    def _snapshot(self) -> list[bytes]:
        # First, because the disk may have no room for the snapshot either.
        self.flush()
        return [self._encoded_snapshot()]

    def _encoded_snapshot(self) -> bytes:
        return encode_events(self._subscription.snapshot_events())

    # --- durability ---

    async def until_committed(self) -> None:
        """Flush, and wait until nothing of it is lost, neither in a power failure nor with this broker.

        Raises StorageError, NotLeader.
        """
        if awaited := self.flush():
            await awaited[0].wait(awaited[1])

    async def commit_all(self) -> None:
        """Do the same, without waiting for a background task that may be cancelled. Raises StorageError, NotLeader."""
        self.flush()
        if self.state is not None:
            await self.state.commit_all()

    async def until_deliverable(self) -> None:
        """Wait until a lease may be handed to its consumer. Raises StorageError, NotLeader."""
        if not self.ids_noted:
            await self._note_first_ids()
        if self._subscription.semantics.settles_on_delivery and self.state is not None:
            self.state.check_led()
            await self.state.committed.wait(self.state.partition.log.bounds()[1])

    def settled_durably(self) -> int:
        """The offset before which every record is settled, also after a power failure, and at the next leader; it may
        be a little behind.
        """
        settled_before = self._subscription.settled_before()
        if self.state is None:
            return settled_before
        state, (low, position) = self.state, self._low_noted
        if state.committed.offset >= position:
            self._low_durable = low
            if not self._subscription.events_waiting and not state.waiting:
                self._low_noted = settled_before, state.partition.log.bounds()[1]
        return self._low_durable


def about(partition: Partition, error: LinnError | None = None) -> dict[str, object]:
    """The fields of a log line about a partition."""
    return {"partition": str(partition.id), "topic": partition.id.topic} | log_fields(error)
