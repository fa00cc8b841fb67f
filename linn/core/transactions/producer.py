"""TransactionalProducer: the state of one name's transactions, without I/O.

A name has one transaction at a time. It is idle until its first operation, open until its end is requested, and ending
until all its writes are marked; then the number grows, so that a late request can't touch the next transaction.

Branches are the producers that write in it, each with its own sequences. The commit names the branches that count; the
writes of other branches are aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from linn.core.errors.tree import (
    LimitExceeded,
    SequenceTaken,
    TransactionAborted,
    TransactionBusy,
    TransactionError,
    TransactionFenced,
    TransactionUnknown,
)
from linn.core.groups.event import OffsetCommitted
from linn.core.groups.member import GroupMember
from linn.core.log.mark import Mark
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.topics.topic import Topic
from linn.core.transactions.event import Committed, Named, NameForgotten, OffsetsApplied, TransactionEvent

BRANCHES_MAX = 4_096
"""Limit of the producers that may write under one name: Spark's tasks, or a client's topics."""
PLACES_MAX = 32_768
"""Limit of the partitions that one transaction may touch, counted for each producer: 1,000 tasks by 32 partitions, say.
Each takes about 200 bytes, and 20 us for its marker at the end."""
OPENINGS_MAX = 16
"""Recent openings of a name that are remembered, because a broken connection may repeat a request late."""
UNUSED_S = 3_600
"""Time since its last transaction after which a name may be forgotten to make room: no client repeats requests then."""
UNUSED_WITH_SEQUENCE_S = 7 * 86_400
"""The same for a name whose commits have sequences: a job that was stopped for days may repeat its last commit."""
OFFSETS_MAX = 4_096
"""Limit of the offsets of groups in one transaction: they are in one record of the log."""


class Owner(NamedTuple):
    """The client that opened a name: the name's producer id, the epoch of the opening, and the client's user."""

    producer_id: int
    epoch: int
    user: str


class TransactionId(NamedTuple):
    """One transaction of a name, as its owner refers to it."""

    producer_id: int
    epoch: int
    user: str
    number: int

    @property
    def owner(self) -> Owner:
        """The client that owns this transaction."""
        return Owner(self.producer_id, self.epoch, self.user)


class State(Enum):
    """The state of a name's present transaction."""

    IDLE = "idle"
    OPEN = "open"
    ENDING = "ending"


class AbortReason(Enum):
    """The reason why a transaction was aborted."""

    ASKED = "asked"
    TIMEOUT = "timeout"
    FENCED = "fenced"
    OPERATOR = "operator"
    GROUP = "group"


@dataclass(slots=True)
class PendingOffset:
    """An offset that a member of a group commits with a transaction."""

    member: GroupMember
    epoch: int
    committed: OffsetCommitted


@dataclass(slots=True)
class Work:
    """The work done in one transaction."""

    wrote: dict[int, dict[tuple[Topic, int], int]] = field(default_factory=dict)
    """The offset after the last batch, by producer, and by (topic, partition)."""
    offsets: dict[tuple[str, str, int], PendingOffset] = field(default_factory=dict)
    """Offsets by group, topic and partition."""
    held: dict[PartitionQueue, tuple[Mark, int] | None] = field(default_factory=dict)
    """Partitions of queues with held records, and the mark to wait for until the hold is durable."""
    sequence: int = 0
    """The client's own number of its commit; 0: none."""
    identity: str = ""
    """The client's name for the work committed under the sequence."""
    _written: int = 0
    """The number of entries in `wrote`, kept because every batch needs it."""

    def add(self, producer_id: int, topic: Topic, partition: int, end: int) -> None:
        """Record the end of a producer's writes to a partition."""
        places = self.wrote.setdefault(producer_id, {})
        self._written += (topic, partition) not in places
        places[topic, partition] = end

    @property
    def places(self) -> int:
        """The number of partitions touched, counted for each producer."""
        return self._written + len(self.held)


class TransactionalProducer:
    """The transactions of one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.producer_id = 0
        self.epoch = -1
        """-1: the name was never opened."""
        self.number = 0
        """The number of the present transaction."""
        self.user = ""
        """The user whose client has opened the name; "" if no client has since the start."""
        self.timeout_s = 0.0
        self.opened_ms = 0
        """Wall time at which a client took the name."""
        self.state = State.IDLE
        self.branches: dict[int, None] = {}
        """Producers that may write in its transactions."""
        self.work = Work()
        self.began_s = 0.0
        """Monotonic time at which the present transaction was opened."""
        self.committed: Committed | None = None
        """The last decision to commit."""
        self.has_offsets_to_apply = False
        self.markers: list[tuple[Mark, int]] = []
        """Marks that pass when the markers of the last commit are durable; its decision is kept until then."""
        self.tickets: dict[str, int] = {}
        """Tickets by group that hold back new readers until the offsets of the decision are applied."""
        self._aborted: tuple[int, str] | None = None
        """The number of the last transaction aborted without its owner's request, and the reason."""
        self.resumed = -1
        """The first epoch of the client that owns the name, if it has opened it again since; -1: only this one."""
        self.is_untouched = False
        """Whether its owner has made no request yet: it may not know its epoch."""
        self._openings: deque[int] = deque(maxlen=OPENINGS_MAX)
        """The clients' numbers of the openings since the start, oldest first."""
        self.is_closed = True
        """Whether the name has no owner since the start of the broker: the logs may contain earlier numbers."""

    # --- the owner ---

    def is_owned_by(self, owner: Owner) -> bool:
        """Whether this client, which opened the name once, still owns it."""
        first = self.epoch if self.resumed < 0 else self.resumed
        return owner.producer_id == self.producer_id and first <= owner.epoch <= self.epoch

    def repeated_opening(self, user: str, owner: Owner | None, opening: int) -> Named | None:
        """The opening that a client repeats, perhaps late; None: it requests a new one.

        Raises TransactionFenced: another client has taken the name since, or the same one under another epoch.
        """
        if not self.is_closed and user != self.user:
            if owner is not None:
                raise TransactionFenced(f'another user took over the transactions of "{self.name}"')
            return None  # Whatever its number is: the opening of another user is not repeated.
        if opening and not self.is_closed and opening in self._openings:
            if opening != self._openings[-1]:
                raise TransactionFenced(f'"{self.name}" was taken over since this client has opened it')
        elif owner is None:
            return None
        elif not self.is_owned_by(owner):
            raise TransactionFenced(f'another client took over the transactions of "{self.name}"')
        elif owner.epoch == self.epoch or self.is_closed:
            return None
        elif not self.is_untouched:
            raise TransactionFenced(f'"{self.name}" was opened again since')
        return Named(self.name, self.producer_id, self.epoch, self.number, self.opened_ms, self.resumed)

    def opening(self, fresh_id: int, now_ms: int, owner: Owner | None) -> Named:
        """The event of a client that takes over the name, to be logged: a later epoch and unused numbers.

        Numbers continue at a new multiple of 2**32: the log does not say how many transactions were aborted before a
        restart.
        """
        assert self.state is State.IDLE
        number = ((self.number >> 32) + 1) << 32
        if self.epoch < 0 or self.epoch == (1 << 16) - 1:
            return Named(self.name, fresh_id, 0, number, now_ms)
        resumed = -1 if owner is None else owner.epoch if self.resumed < 0 else self.resumed
        return Named(self.name, self.producer_id, self.epoch + 1, number, now_ms, resumed)

    def opened(self, named: Named, user: str, timeout_s: float, opening: int = 0) -> None:
        """Record that a user's client has taken over the name."""
        self.apply(named)
        self.user = user
        self._openings.append(opening)
        self.timeout_s, self.is_closed, self.is_untouched = timeout_s, False, True
        self.branches.clear()
        self._aborted = None

    def check_owner(self, owner: Owner) -> None:
        """Check that a request comes from the client that owns the name.

        The key of the name's producer id is no proof of that where another user has opened the name since.

        Raises TransactionFenced, TransactionUnknown.
        """
        if owner.epoch != self.epoch or (not self.is_closed and owner.user != self.user):
            raise TransactionFenced(f'another client took over the transactions of "{self.name}"')
        if self.is_closed:
            raise TransactionUnknown(f'the broker was restarted since "{self.name}" was opened: open it again')
        self.is_untouched = False

    def check_current(self, number: int) -> None:
        """Check that a request is about the present transaction, and that it is not ending.

        Raises TransactionBusy, TransactionAborted, TransactionUnknown.
        """
        if self._aborted is not None and self._aborted[0] == number:
            raise TransactionAborted(f'transaction {number} of "{self.name}" was aborted: {self._aborted[1]}')
        if self.state is State.ENDING and number in (self.number, self.number + 1):
            raise TransactionBusy(f'transaction {self.number} of "{self.name}" is being ended')
        if number != self.number:
            raise TransactionUnknown(f'"{self.name}" is at transaction {self.number}, not {number}')

    def add_branch(self, producer_id: int) -> int | None:
        """Let a producer write in its transactions; return the branch without writes that made room for it, if any.

        Raises LimitExceeded.
        """
        dropped = None
        if producer_id not in self.branches and len(self.branches) >= BRANCHES_MAX:
            dropped = next((branch for branch in self.branches if branch not in self.work.wrote), None)
            if dropped is None:
                raise LimitExceeded(
                    f'{BRANCHES_MAX:,} producers write in the transaction of "{self.name}", and no more'
                )
            del self.branches[dropped]
        self.branches.pop(producer_id, None)
        self.branches[producer_id] = None
        return dropped

    @property
    def is_ending(self) -> bool:
        """Whether the end of the present transaction is under way."""
        return self.state is State.ENDING

    def is_unused(self, now_ms: int, now_s: float) -> bool:
        """Whether it was unused for so long that it may make room for another name."""
        has_sequence = self.committed is not None and self.committed.sequence > 0
        unused_s = UNUSED_WITH_SEQUENCE_S if has_sequence else UNUSED_S
        is_old = self.opened_ms < now_ms - 1_000 * unused_s and self.began_s < now_s - unused_s
        return self.state is State.IDLE and is_old

    # --- work ---

    def begin(self, now_s: float) -> bool:
        """Open the present transaction. Returns whether it was idle."""
        if self.state is not State.IDLE:
            return False
        self.state, self.began_s = State.OPEN, now_s
        return True

    def check_room(self) -> None:
        """Check that the transaction may touch another partition. Raises LimitExceeded."""
        if self.work.places >= PLACES_MAX:
            raise LimitExceeded(
                f"a transaction touches at most {PLACES_MAX:,} partitions, counted for each producer: "
                "write with fewer producers, or in several transactions"
            )

    def add_offset(self, group: str, pending: PendingOffset) -> None:
        """Commit an offset with the transaction; the last one for a partition counts. Raises LimitExceeded."""
        key = group, pending.committed.topic, pending.committed.partition
        if key not in self.work.offsets and len(self.work.offsets) >= OFFSETS_MAX:
            raise LimitExceeded(f"a transaction commits at most {OFFSETS_MAX} offsets")
        self.work.offsets[key] = pending

    # --- the end ---

    def was_committed(self, number: int) -> bool:
        """Whether this was the last transaction that committed."""
        return self.committed is not None and self.committed.number == number

    def has_taken_effect(self, sequence: int, identity: str) -> bool:
        """Whether the commit of this sequence and identity was the last one that took effect. 0: a commit without one.

        Raises SequenceTaken: the name has committed other work under this sequence, or a later sequence.
        """
        last = self.committed
        if last is None or not sequence or sequence > last.sequence:
            return False
        if sequence < last.sequence:
            raise SequenceTaken(f'"{self.name}" has committed sequence {last.sequence}, which is later than {sequence}')
        if identity != last.identity:
            raise SequenceTaken(
                f'"{self.name}" has committed sequence {sequence} with the identity "{last.identity}", not "{identity}"'
            )
        return True

    def check_ended(self, number: int) -> None:
        """Report the outcome of a transaction that was not committed, when its owner repeats the request to end it.

        Raises TransactionAborted, TransactionUnknown; TransactionBusy while it is being ended.
        """
        if self.is_closed:
            raise TransactionAborted(f'transaction {number} of "{self.name}" was aborted: the broker was restarted')
        self.check_current(number)

    def check_branches(self, branches: Collection[int]) -> None:
        """Check the producers that a commit names. Raises TransactionError."""
        unknown = [branch for branch in branches if branch not in self.branches]
        if unknown:
            raise TransactionError(f'producer {unknown[0]} is no branch of the transactions of "{self.name}"')

    def decided(self, branches: Collection[int]) -> Committed:
        """Make the decision to commit the present transaction, to be logged."""
        offsets = [(group, pending.committed) for (group, _, _), pending in self.work.offsets.items()]
        last = self.committed
        sequence, identity = self.work.sequence, self.work.identity
        if last is not None and last.sequence > sequence:
            sequence, identity = last.sequence, last.identity
        return Committed(self.name, self.number, list(branches), offsets, sequence, identity)

    def end(self, committed: Committed | None, why: str = "") -> Work:
        """End the present transaction, after a commit decision is logged. Call `ended` when everything is marked.

        `why`: the reason of an abort that its owner did not request.
        """
        self.state = State.ENDING
        if committed is not None:
            self.committed, self.has_offsets_to_apply = committed, bool(committed.offsets)
        elif why:
            self._aborted = self.number, why
        return self.work

    def ended(self) -> None:
        """Go on to the next transaction, once everything is marked."""
        self.state, self.work = State.IDLE, Work()
        self.number += 1

    # --- the log ---

    def snapshot(self) -> list[TransactionEvent]:
        """The state as events."""
        events: list[TransactionEvent] = [
            Named(self.name, self.producer_id, self.epoch, self.number, self.opened_ms, self.resumed),
        ]
        if self.committed is not None:
            events.append(self.committed)
            if not self.has_offsets_to_apply:
                events.append(OffsetsApplied(self.name))
        return events

    def apply(self, event: TransactionEvent) -> None:
        """Apply an event of the log."""
        match event:
            case Named(_, producer_id, epoch, number, opened_ms, resumed):
                self.producer_id, self.epoch, self.opened_ms, self.resumed = producer_id, epoch, opened_ms, resumed
                self.number = max(self.number, number)
            case Committed(_, number):
                self.committed, self.has_offsets_to_apply = event, bool(event.offsets)
                self.number = max(self.number, number + 1)
            case OffsetsApplied():
                self.has_offsets_to_apply = False
            case NameForgotten():
                pass
