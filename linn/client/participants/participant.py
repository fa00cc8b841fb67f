"""Port for participants: a store that takes an application's effects and the marks of their records in one transaction.

A mark says which records had their effect. A record is named by (topic id, partition, epoch, offset), where the epoch
is the leader epoch in which the broker appended it, so no two records ever share a name. A floor (epoch, offset)
replaces all marks below it: every record of that epoch or an older one, at a lower offset, is finished. Marks below the
floor are deleted, so a participant stores one row per place and a few for records in flight.

Laws: effects through the handle, marks and floor are durable together, or none of them is; `commit` stores nothing if a
part of the marks is stored already, and raises; after an exception from any method, `rollback` leaves the store as it
was before `begin`, and the next `begin` works; `close` is idempotent. A participant is used by one consumer at a time,
and by one thread, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

H_co = TypeVar("H_co", covariant=True)


class Place(NamedTuple):
    """The source of records, as a participant's marks name it."""

    topic_id: UUID
    """Id of the topic; a topic that is deleted and made again has another id."""
    partition: int
    reader: str
    """Name of the shared subscription, of the group, or of the consumer that reads a stream by itself; "" for a queue.
    Two readers of one topic may have different effects on the same store. A consumer is refused if the store has
    effects from before a change of the topic's kind.
    """


class Mark(NamedTuple):
    """Records that had their effect: offsets [first, end), appended in one leader epoch."""

    epoch: int
    first: int
    end: int


class Floor(NamedTuple):
    """All records at offsets below `offset` that were appended in `epoch` or before are finished."""

    epoch: int
    offset: int


NO_FLOOR = Floor(0, 0)


class Participant(Protocol[H_co]):
    """A participant whose methods block; for both clients."""

    def open(self) -> None:
        """Connect, and create the tables for marks. Called once, before all other methods."""

    def floor(self, place: Place) -> Floor:
        """Return the floor of a place, at which a stream is read on; `NO_FLOOR` only if nothing was ever committed. Not
        called within a transaction.
        """

    def begin(self, place: Place) -> H_co:
        """Begin a transaction for records of one place, and return the handle for the application."""

    def applied(self, mark: Mark) -> Sequence[tuple[int, int]]:
        """Return the parts of a mark's offsets that had their effect already, below the floor or marked, in order."""

    def prepare(self) -> None:
        """Check everything that could make `commit` fail, such as deferred constraints. Raises if it would fail."""

    def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        """Commit the transaction with its marks, and raise the floor of its place.

        The floor is raised if neither its epoch nor its offset is lower than before, and stays as it is otherwise: a
        log that lost its end in a power failure goes on at a lower offset in a later epoch, and finished records must
        not be forgotten. Marks that the floor covers are deleted.

        Raises:
            ParticipantConflict: a part of the marks is stored: another process has applied these records meanwhile.
                Nothing was committed.
        """

    def rollback(self) -> None:
        """Undo the transaction, if one is open."""

    def close(self) -> None:
        """Roll back the open transaction, and release everything."""


class AsyncParticipant(Protocol[H_co]):
    """A participant whose methods are coroutines, for the async client. See `Participant` for their promises."""

    def open(self) -> Awaitable[None]: ...
    def floor(self, place: Place) -> Awaitable[Floor]: ...
    def begin(self, place: Place) -> Awaitable[H_co]: ...
    def applied(self, mark: Mark) -> Awaitable[Sequence[tuple[int, int]]]: ...
    def prepare(self) -> Awaitable[None]: ...
    def commit(self, marks: Sequence[Mark], floor: Floor) -> Awaitable[None]: ...
    def rollback(self) -> Awaitable[None]: ...
    def close(self) -> Awaitable[None]: ...
