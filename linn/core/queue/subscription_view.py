"""The state of a shared subscription, for its observers: counts, and ranges of records by state."""

from __future__ import annotations

from linn.core.queue.dead_letter import DeadRange, Ending
from linn.core.queue.event import ATTEMPTS_MAX
from linn.core.queue.lease import Lease
from linn.core.queue.offset_ranges import Range
from linn.core.queue.record_states import DecidedRange, Decision, RecordStates
from linn.core.queue.subscription_statistics import SubscriptionStatistics, statistics_of
from linn.message_status import MessageState


class SubscriptionView:
    """The reading half of `SharedSubscription`, which sets the attribute."""

    _states: RecordStates

    def leases_of(self, consumer: int) -> list[Lease]:
        """A consumer's leases, oldest first."""
        return self._states.leases.of_consumer(consumer)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def decided(self) -> list[DecidedRange]:
        """Everything that was decided and is not done, lowest offset first."""
        return [DecidedRange(*piece) for piece in self._states.decided]

    def decided_to(self, holder: str) -> list[DecidedRange]:
        """Everything that was decided to one holder and is not done, lowest offset first."""
        return [it for it in self.decided() if it.decision.holder.name == holder]

    def decided_within(self, first: int, end: int, decision: Decision) -> list[Range]:
        """The parts of [first, end) for which a decision holds."""
        return [(start, stop) for start, stop, it in self._states.decided.pieces(first, end) if it == decision]

    def decided_before(self, offset: int) -> list[DecidedRange]:
        """Everything below an offset that was decided and is not done."""
        decided = self._states.decided
        return [DecidedRange(*piece) for piece in decided.pieces(0, offset)] if decided.count and offset else []

    @property
    def decided_count(self) -> int:
        """The number of records that were decided and are not done."""
        return self._states.decided.count

    @property
    def pinned_count(self) -> int:
        """The number of settled records behind the first that is decided and not done."""
        states = self._states
        if not states.decided.count:
            return 0
        first = states.decided.lowest(1)[0][0]
        return states.settled.count - sum(end - start for start, end in states.settled.intersect(states.low, first + 1))

    # --- dead letters ------------------------------------------------------------------------------------------------

    def dead(self) -> list[DeadRange]:
        """All dead records, lowest offset first, until `dead_lettered` settles them; also after a restart."""
        return self._states.dead.ranges()

    def lowest_dead(self, records: int) -> list[DeadRange]:
        """The lowest of `dead()`, until they hold so many records; costs as much as it returns."""
        return self._states.dead.lowest(records)

    def intended(self) -> list[DeadRange]:
        """The dead records of the step that was begun, lowest offset first; also after a restart."""
        return self._states.dead.intended()

    def cause_of(self, offset: int) -> str:
        """The reason that a consumer gave last for returning or rejecting a record; "" if none was given, or kept."""
        causes = self._states.causes.pieces(offset, offset + 1) if self._states.causes.count else ()
        return causes[0][2] if causes else ""

    # --- one record ---

    def state_at(self, offset: int) -> tuple[MessageState, str]:
        """The state of the record at an offset, and the reason if it is dead or ended as a dead letter."""
        states = self._states
        if offset < states.low or offset in states.settled:
            ended = states.ended.pieces(offset, offset + 1)
            return ended_as(ended[0][2]) if ended else ("settled", "")
        if (dead := states.dead.at(offset)) is not None:
            return ended_as(Ending(dead.reason))
        if states.decided.pieces(offset, offset + 1):
            return "decided", ""
        attempts = 0 if offset >= states.cursor else states.returned.attempts_at(offset)
        # What is in no other state is leased.
        return ("delivered" if attempts is None or attempts & ATTEMPTS_MAX else "stored"), ""

    def endings(self, first: int, end: int) -> list[tuple[int, int, Ending]]:
        """The endings of settled records of [first, end) that no consumer settled, as far as they are kept here."""
        return self._states.ended.pieces(first, end) if first < end else []

    # --- counts ------------------------------------------------------------------------------------------------------

    def settled_before(self) -> int:
        """The offset before which every record is settled; never goes back. The topic may be trimmed up to it."""
        return self._states.low

    @property
    def cursor(self) -> int:
        """The offset from which on no record has been delivered or indexed."""
        return self._states.cursor

    @property
    def settled(self) -> list[Range]:
        """Settled ranges above `settled_before`, in order."""
        return list(self._states.settled)

    def ready_count(self, end: int) -> int:
        """The number of records below `end` (the high watermark) that `acquire` could give, as of the last `expire`."""
        return self._states.returned.ready.count + max(0, end - self._states.cursor)

    def lowest_ready(self, end: int) -> int | None:
        """The lowest offset below `end` (the high watermark) of a ready record, as of the last `expire`, or None."""
        states = self._states
        if states.returned.ready.count:
            return states.returned.ready.lowest(1)[0][0]
        return states.cursor if states.cursor < end else None

    def postponed_ms(self, offset: int) -> int:
        """The wall time to which a record that waits was postponed; 0: it was not."""
        delayed = self._states.returned.delayed
        found = delayed.pieces(offset, offset + 1) if delayed.count else ()
        return found[0][2].ready_ms if found else 0

    def is_dead(self, first: int, end: int) -> bool:
        """Whether all records of [first, end) are dead, and have not left yet."""
        return self._states.dead.covers(first, end)

    def is_waiting(self, offset: int) -> bool:
        """Whether a record waits, for a consumer or for its time, and nothing has begun with it."""
        states = self._states
        returned = states.returned
        if offset >= states.cursor or returned.ready.pieces(offset, offset + 1):
            return True
        return self.postponed_ms(offset) > 0

    def end_of_waiting(self, records: int, end: int) -> int:
        """The offset below which the lowest `records` records lie that wait for delivery; at most `end`."""
        return self._states.returned.end_of_lowest(records, self._states.cursor, end)

    def unsettled(self, first: int, end: int) -> list[Range]:
        """The parts of [first, end) that are not settled, in order."""
        first = max(first, self._states.low)
        return self._states.settled.gaps(first, end) if first < end else []

    def unsettled_count(self, end: int) -> int:
        """The number of unsettled records below `end` (the high watermark), in any state."""
        states = self._states
        returned = states.returned.ready.count + states.returned.delayed.count
        held = states.leases.count + states.decided.count
        return max(0, end - states.cursor) + held + returned + states.dead.count

    @property
    def delayed_count(self) -> int:
        """The number of records whose delay has not passed."""
        return self._states.returned.delayed.count

    @property
    def dead_count(self) -> int:
        """The number of dead records that are not copied yet."""
        return self._states.dead.count

    @property
    def leased_count(self) -> int:
        """The number of leased records."""
        return self._states.leases.count

    def leased_by(self, consumer: int) -> int:
        """The number of records leased to a consumer."""
        leases = self._states.leases.of_consumer(consumer)
        return sum(end - first for lease in leases for first, end in lease.ranges())

    def statistics(self) -> SubscriptionStatistics:
        """The subscription in numbers. Examines every range."""
        return statistics_of(self._states)

    def check(self) -> None:
        """Assert that each record is in exactly one state. For tests: it examines every range."""
        self._states.check()


def ended_as(ending: Ending) -> tuple[MessageState, str]:
    """The state of a record that ended in this way, and the reason if it is dead."""
    if ending is Ending.EXPIRED:
        return "expired", ""
    return ("dropped", "") if ending is Ending.DROPPED else ("dead", ending.name.lower())
