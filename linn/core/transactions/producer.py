"""TransactionalProducer: the state of one name's transactions, without I/O.

A name has one transaction at a time. It is idle until its first operation, open until its end is requested, and ending
until all its writes are marked; then the number grows, so that a late request can't touch the next transaction. All of
this is in the log but the writes, which the topics' logs have: so a transaction goes on after a restart.

Branches are the producers that write in it, each with its own sequences. The commit names the branches that count; the
writes of other branches are aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import msgspec

from linn.core.errors.tree import (
    LimitExceeded,
    SequenceTaken,
    TransactionAborted,
    TransactionBusy,
    TransactionError,
    TransactionFenced,
    TransactionUnknown,
)
from linn.core.log.mark import Mark
from linn.core.log.partition import Partition
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.topics.topic import Topic
from linn.core.transactions.event import (
    Aborted,
    Branches,
    Committed,
    Joined,
    Named,
    NameEvent,
    NameForgotten,
)

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
"""Limit of the offsets of groups in one transaction, of about 300 bytes each in memory."""
Awaits = Sequence[tuple[Mark, int]]
"""Marks to wait for, each until it has passed an offset."""


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


class RequestedEnd(NamedTuple):
    """A client's request to end a transaction."""

    is_commit: bool
    branches: Collection[int] = ()
    """The producers whose writes count, of a commit."""
    sequence: int = 0
    """The client's own number of the commit; 0: none."""
    identity: str = ""
    """The client's name for the work committed under the sequence."""


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


@dataclass(slots=True)
class Work:
    """The work done in one transaction."""

    wrote: dict[int, dict[tuple[Topic, Partition], int]] = field(default_factory=dict)
    """The offset after the last batch, by producer, and by topic and one of its logs."""
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Offsets by group, topic and partition."""
    pending: dict[tuple[str, str], Awaits] = field(default_factory=dict)
    """Groups and topics with offsets, and the marks to wait for until they are durable."""
    held: dict[PartitionQueue, tuple[Mark, int] | None] = field(default_factory=dict)
    """Partitions of queues with held records, and the mark to wait for until the hold is durable."""
    sequence: int = 0
    """The client's own number of its commit; 0: none."""
    identity: str = ""
    """The client's name for the work committed under the sequence."""
    _written: int = 0
    """The number of entries in `wrote`, kept because every batch needs it."""

    def add(self, producer_id: int, topic: Topic, partition: Partition, end: int) -> None:
        """Record the end of a producer's writes to a partition."""
        places = self.wrote.setdefault(producer_id, {})
        self._written += (topic, partition) not in places
        places[topic, partition] = end

    @property
    def places(self) -> int:
        """The number of partitions touched, counted for each producer."""
        return self._written + len(self.held)


class TopicKey(NamedTuple):
    """A topic, as the transactions' log knows it."""

    name: str
    id: str
    """Its UUID, as hexadecimal digits."""


@dataclass(slots=True)
class Unmarked:
    """A transaction that has ended, and is not marked in all topics that it has joined."""

    number: int
    is_commit: bool
    counted: frozenset[int]
    """The producers whose writes count, and the name's own id if it is committed."""
    left: dict[TopicKey, dict[int, None]]
    """The topics that are not marked, with the producers that have joined there."""


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
        """The user whose client has opened the name."""
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
        self.markers: list[tuple[Mark, int]] = []
        """Marks that pass when the markers of the last commit are durable; its decision is kept until then."""
        self.unsynced: set[str] = set()
        """Topics in whose positions the last commit is marked, which may have to be synced for that."""
        self.joined: dict[TopicKey, dict[int, None]] = {}
        """In a cluster: the topics in which the present transaction may have something open, and its producers there.
        """
        self.unmarked: Unmarked | None = None
        """In a cluster: the last transaction, as long as it is not marked in all topics. The next one does not end."""
        self._aborted: tuple[int, int, str] | None = None
        """The first and the last number that were aborted last without the owner's request, and the reason."""
        self.is_decided = False
        """Whether the log has the end of the present transaction, which is still to be marked."""
        self.resumed = -1
        """The first epoch of the client that owns the name, if it has opened it again since; -1: only this one."""
        self.is_untouched = False
        """Whether its owner has made no request yet: it may not know its epoch."""
        self._openings: deque[int] = deque(maxlen=OPENINGS_MAX)
        """The clients' numbers of the last openings, oldest first."""

    # --- the owner ---

    def is_owned_by(self, owner: Owner) -> bool:
        """Whether this client, which opened the name once, still owns it."""
        first = self.epoch if self.resumed < 0 else self.resumed
        return owner.producer_id == self.producer_id and first <= owner.epoch <= self.epoch

    def repeated_opening(self, user: str, owner: Owner | None, opening: int) -> Named | None:
        """The opening that a client repeats, perhaps late; None: it requests a new one.

        Raises TransactionFenced: another client has taken the name since, or the same one under another epoch.
        """
        if self.epoch >= 0 and user != self.user:
            if owner is not None:
                raise TransactionFenced(f'another user took over the transactions of "{self.name}"')
            return None  # Whatever its number is: the opening of another user is not repeated.
        if opening and opening in self._openings:
            if opening != self._openings[-1]:
                raise TransactionFenced(f'"{self.name}" was taken over since this client has opened it')
        elif owner is None:
            return None
        elif not self.is_owned_by(owner):
            raise TransactionFenced(f'another client took over the transactions of "{self.name}"')
        elif owner.epoch == self.epoch:
            return None
        elif not self.is_untouched:
            raise TransactionFenced(f'"{self.name}" was opened again since')
        return self._named()

    def _named(self) -> Named:
        number = self.number + self.is_decided
        numbers = self.producer_id, self.epoch, number, self.opened_ms, self.resumed
        return Named(self.name, *numbers, self.user, round(1000 * self.timeout_s), list(self._openings))

    @property
    def unused_number(self) -> int:
        """A number beyond all that were used: the next multiple of 2**32, as the end of the log may be lost."""
        return ((self.number >> 32) + 1) << 32

    def opening(
        self, fresh_id: int, now_ms: int, owner: Owner | None, user: str, timeout_s: float, opening: int = 0
    ) -> Named:
        """The event of a client that takes over the name, to be logged: a later epoch and unused numbers."""
        assert self.state is State.IDLE
        openings = [*self._openings, opening][-OPENINGS_MAX:]
        named = Named(self.name, fresh_id, 0, self.unused_number, now_ms, -1, user, round(1000 * timeout_s), openings)
        if self.epoch < 0 or self.epoch == (1 << 16) - 1:
            return named
        resumed = -1 if owner is None else owner.epoch if self.resumed < 0 else self.resumed
        return msgspec.structs.replace(named, producer_id=self.producer_id, epoch=self.epoch + 1, resumed=resumed)

    def check_owner(self, owner: Owner) -> None:
        """Check that a request comes from the client that owns the name.

        The key of the name's producer id is no proof of that where another user has opened the name since.

        Raises TransactionFenced.
        """
        if owner.epoch != self.epoch or owner.user != self.user:
            raise TransactionFenced(f'another client took over the transactions of "{self.name}"')
        self.is_untouched = False

    def check_current(self, number: int) -> None:
        """Check that a request is about the present transaction, and that it is not ending.

        Raises TransactionBusy, TransactionAborted, TransactionUnknown.
        """
        if self._aborted is not None and self._aborted[0] <= number <= self._aborted[1]:
            raise TransactionAborted(f'transaction {number} of "{self.name}" was aborted: {self._aborted[2]}')
        if self.state is State.ENDING and number in (self.number, self.number + 1):
            raise TransactionBusy(f'transaction {self.number} of "{self.name}" is being ended')
        if number != self.number:
            raise TransactionUnknown(f'"{self.name}" is at transaction {self.number}, not {number}')

    def adding(self, branch: int) -> Branches:
        """The event of a producer that may write in its transactions, to be logged. Raises LimitExceeded.

        If there are too many, it takes the place of one that has not written.
        """
        dropped = 0
        if len(self.branches) >= BRANCHES_MAX:
            joined = {branch for branches in self.joined.values() for branch in branches}
            dropped = next((it for it in self.branches if it not in self.work.wrote and it not in joined), 0)
            if not dropped:
                raise LimitExceeded(
                    f'{BRANCHES_MAX:,} producers write in the transaction of "{self.name}", and no more'
                )
        return Branches(self.name, [branch], dropped)

    def joining(self, branch: int, topic: TopicKey) -> Joined | None:
        """The event of a producer that begins to write in a topic, to be logged; None: it has begun there before.

        Raises LimitExceeded.
        """
        if branch in self.joined.get(topic, ()):
            return None
        if sum(map(len, self.joined.values())) >= PLACES_MAX:
            raise LimitExceeded(f"a transaction touches at most {PLACES_MAX:,} topics, counted for each producer")
        return Joined(self.name, self.number, branch, topic.name, topic.id)

    @property
    def is_ending(self) -> bool:
        """Whether the end of the present transaction is under way."""
        return self.state is State.ENDING

    def is_unused(self, now_ms: int, now_s: float) -> bool:
        """Whether it was unused for so long that it may make room for another name."""
        has_sequence = self.committed is not None and self.committed.sequence > 0
        unused_s = UNUSED_WITH_SEQUENCE_S if has_sequence else UNUSED_S
        is_old = self.opened_ms < now_ms - 1_000 * unused_s and self.began_s < now_s - unused_s
        return self.state is State.IDLE and self.unmarked is None and is_old

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

    def check_offset(self, group: str, topic: str, partition: int) -> None:
        """Check that the transaction may commit an offset there. Raises LimitExceeded."""
        if len(self.work.offsets) >= OFFSETS_MAX and (group, topic, partition) not in self.work.offsets:
            raise LimitExceeded(f"a transaction commits at most {OFFSETS_MAX} offsets")

    # --- the end ---

    def has_aborted(self, number: int) -> bool:
        """Whether the owner may take an earlier number that was not committed for an aborted one, and go on.

        After a power loss the numbers go on at `unused_number`, which the owner learns by opening the name again.
        """
        return number < self.number and number >> 32 == self.number >> 32

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

    def check_branches(self, branches: Collection[int]) -> None:
        """Check the producers that a commit names. Raises TransactionError."""
        unknown = [branch for branch in branches if branch not in self.branches]
        if unknown:
            raise TransactionError(f'producer {unknown[0]} is no branch of the transactions of "{self.name}"')

    def decided(self, branches: Collection[int]) -> Committed:
        """Make the decision to commit the present transaction, to be logged."""
        last = self.committed
        sequence, identity = self.work.sequence, self.work.identity
        if last is not None and last.sequence > sequence:
            sequence, identity = last.sequence, last.identity
        return Committed(self.name, self.number, list(branches), sequence, identity)

    def end(self, end: Committed | Aborted) -> Work:
        """End the present transaction, after the decision is logged. Call `ended` when everything is marked."""
        self.state, self.is_decided = State.ENDING, True
        self._leave_unmarked(end)
        if isinstance(end, Committed):
            self.committed = end
        elif end.why:
            self._aborted = end.number, end.number, end.why
        return self.work

    def is_unmarked(self, number: int) -> bool:
        """Whether a transaction has ended, and is not marked in all topics."""
        return self.unmarked is not None and self.unmarked.number == number

    def _leave_unmarked(self, end: Committed | Aborted) -> None:
        is_commit = isinstance(end, Committed)
        if end.number == self.number and self.joined:
            counted = frozenset((*end.branches, self.producer_id)) if isinstance(end, Committed) else frozenset[int]()
            self.unmarked = Unmarked(end.number, is_commit, counted, self.joined)
        elif end.number >= self.number:
            self.unmarked = None  # It has ended because the one before was marked everywhere.

    def ended(self) -> None:
        """Go on to the next transaction, once everything is marked."""
        self._go_on_at(self.number + 1)

    def _go_on_at(self, number: int) -> None:
        if number > self.number:
            self.number, self.work, self.joined = number, Work(), {}
            self.state, self.is_decided = State.IDLE, False

    # --- the log ---

    def snapshot(self) -> list[NameEvent]:
        """The state as events."""
        events, unmarked = list[NameEvent](), self.unmarked
        if self.committed is not None and not (unmarked is not None and unmarked.is_commit):
            events.append(self.committed)
        if unmarked is not None:
            events.append(msgspec.structs.replace(self._named(), number=unmarked.number))
            events += self._joins(unmarked.number, unmarked.left)
            end = self.committed if unmarked.is_commit else Aborted(self.name, unmarked.number)
            assert end is not None, "an unmarked commit is the last one"
            events.append(end)
        events.append(self._named())
        if self._aborted is not None:
            first, last, why = self._aborted
            events.append(Aborted(self.name, first, why, last))
        if not self.is_untouched:
            events.append(Branches(self.name, list(self.branches)))
        return events if self.is_decided else events + self._joins(self.number, self.joined)

    def _joins(self, number: int, topics: Mapping[TopicKey, Iterable[int]]) -> list[NameEvent]:
        return [Joined(self.name, number, branch, *topic) for topic, branches in topics.items() for branch in branches]

    def apply(self, event: NameEvent) -> None:
        """Apply an event of the log."""
        match event:
            case Named():
                self.producer_id, self.epoch = event.producer_id, event.epoch
                self.opened_ms, self.resumed = event.opened_ms, event.resumed
                self.user, self.timeout_s = event.user, event.timeout_ms / 1000
                self._openings.clear()
                self._openings.extend(event.openings)
                self.branches.clear()
                self._aborted, self.is_untouched = None, True
                self._go_on_at(event.number)
            case Branches(_, branches, dropped):
                self.branches.pop(dropped, None)
                self.branches.update(dict.fromkeys(branches))
                self.is_untouched = False
            case Joined(_, number, branch, topic, topic_id):
                self.is_untouched = False
                if number == self.number:
                    self.joined.setdefault(TopicKey(topic, topic_id), {})[branch] = None
            case Committed(_, number):
                self._leave_unmarked(event)
                self.committed = event
                self.is_untouched = False
                self._go_on_at(number + 1)
            case Aborted(_, number, why, last):
                last = max(number, last)
                self._leave_unmarked(event)
                if why:
                    self._aborted = number, last, why
                self.is_untouched = False
                self._go_on_at(last + 1)
            case NameForgotten():
                pass
