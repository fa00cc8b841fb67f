"""The producer ids of a client: those that its first connection was given, which no other client ever gets."""

from __future__ import annotations

from linn.core.errors.tree import LimitExceeded

IDS_PER_CLIENT = 256
"""Ids that a broker gives to a connection."""
EPOCH_MAX = (1 << 16) - 1


class ProducerIds:
    """The producer ids of one client, with the first epoch in which each can be used."""

    def __init__(self) -> None:
        self._next = 0
        self._end = 0
        self._returned: list[tuple[int, int]] = []

    def begin(self, first: int) -> None:
        """Take over the ids of the client's first connection; those of later ones are not needed."""
        if not self._end:
            self._next, self._end = first, first + IDS_PER_CLIENT

    def take(self) -> tuple[int, int]:
        """An id and its epoch. Raises LimitExceeded."""
        if self._next < self._end:
            self._next += 1
            return self._next - 1, 0
        if not self._returned:
            raise LimitExceeded(
                f"a client has at most {IDS_PER_CLIENT} idempotent producers at a time: close one, or open this one"
                " with idempotent=False"
            )
        return self._returned.pop(0)

    def give_back(self, producer_id: int, epoch: int) -> None:
        """Return an id that was used up to this epoch."""
        if epoch < EPOCH_MAX:
            self._returned.append((producer_id, epoch + 1))
