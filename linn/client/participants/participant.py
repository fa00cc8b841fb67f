"""Port for participants: a store that takes an application's effects and the marks of their records in one transaction.

A mark says which records had their effect. A record is named by (topic id, partition, epoch, offset), where the epoch
is that in which the broker appended it, so no two records ever share a name. A floor (epoch, offset) stands for all
marks before it: every record of that epoch or an older one, at an offset below, has been dealt with for good. Marks
below the floor are forgotten, so a participant stores one row per place and a few for what is in flight.

Laws: what the application did through the handle, the marks and the floor are durable together, or none of them is;
`commit` refuses marks of which a part is there already, and stores nothing then; after an exception from any method,
`rollback` leaves the store as it was before `begin`, and the next `begin` works; `close` is idempotent. A participant
is used by one consumer at a time, and by one thread, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

H_co = TypeVar("H_co", covariant=True)


class Place(NamedTuple):
    """The source of records, as a participant's marks name it."""

    topic_id: UUID
    """A topic that is deleted and made again has another id."""
    partition: int
    reader: str
    """Name of the shared subscription, of the group, or of the consumer that reads a stream by itself; "" for a queue.
    Two readers of one topic may have different effects on the same store. A consumer is refused where the store has
    effects that it had as the other, before the topic's kind was changed.
    """


class Mark(NamedTuple):
    """Records that had their effect: offsets [first, end), appended in one leader epoch."""

    epoch: int
    first: int
    end: int


class Floor(NamedTuple):
    """Everything at an offset below `offset` that was appended in `epoch` or before has been dealt with."""

    epoch: int
    offset: int


NO_FLOOR = Floor(0, 0)


class Participant(Protocol[H_co]):
    """A participant whose methods block; for both clients."""

    def open(self) -> None:
        """Connect, and make the tables that marks need. Called once, before everything else."""

    def floor(self, place: Place) -> Floor:
        """The floor of a place: where a stream is read on; `NO_FLOOR` if nothing was ever committed, and only then. Not
        between `begin` and its end.
        """

    def begin(self, place: Place) -> H_co:
        """Begin a transaction about records of one place, and return the handle that the application works with."""

    def applied(self, mark: Mark) -> Sequence[tuple[int, int]]:
        """The parts of a mark's offsets that had their effect already, below the floor or marked, in order."""

    def prepare(self) -> None:
        """Find out now what would keep `commit` from succeeding, such as a deferred constraint. Raises if it can't."""

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        """Commit the transaction with its marks, and raise the floor of its place.

        The floor is raised if neither its epoch nor its offset is lower than before, and stays as it is otherwise: a
        log that lost its end in a power failure goes on at a lower offset in a later epoch, and what was dealt with
        before must not be forgotten. Marks that the floor covers are forgotten.

        Raises:
            ParticipantConflict: a part of the marks is there: another process has applied these records meanwhile.
                Nothing was committed.
        """

    def rollback(self) -> None:
        """Undo the transaction, if one is open."""

    def close(self) -> None:
        """Roll back what is open, and release everything."""


class AsyncParticipant(Protocol[H_co]):
    """A participant whose methods are coroutines, for the async client. See `Participant` for what each does."""

    def open(self) -> Awaitable[None]: ...
    def floor(self, place: Place) -> Awaitable[Floor]: ...
    def begin(self, place: Place) -> Awaitable[H_co]: ...
    def applied(self, mark: Mark) -> Awaitable[Sequence[tuple[int, int]]]: ...
    def prepare(self) -> Awaitable[None]: ...
    def commit(self, marks: Sequence[Mark], floor: Floor) -> Awaitable[None]: ...
    def rollback(self) -> Awaitable[None]: ...
    def close(self) -> Awaitable[None]: ...
