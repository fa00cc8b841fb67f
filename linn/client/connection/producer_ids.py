"""Producer ids of a client. The broker gives them to its first connection, and to no other client.

Later connections show the key that came with them, and the broker takes batches with these ids over them as well.
"""

from __future__ import annotations

from linn.core.errors.tree import LimitExceeded

IDS_PER_CLIENT = 256
"""Ids that a broker gives to a connection."""
EPOCH_MAX = (1 << 16) - 1

Use = tuple[int, int]
"""Transaction: producer id of its owner, and its number. (0, 0): none."""
NO_TRANSACTION: Use = (0, 0)


class ProducerIds:
    """Producer ids of one client, with the first usable epoch of each id.

    Law: no id is used twice in a transaction, as its commit names ids, nor in transactions of different owners.
    """

    def __init__(self) -> None:
        self.first = 0
        """First of the ids; 0 before the first connection."""
        self.key = 0
        """Secret that proves to the broker that they are this client's."""
        self._next = 0
        self._end = 0
        self._returned: list[tuple[int, int, Use]] = []

    def begin(self, first: int, key: int) -> None:
        """Take over the ids of the client's first connection; the ids of later connections are not needed."""
        if not self._end:
            self.first, self.key = first, key
            self._next, self._end = first, first + IDS_PER_CLIENT

    def forget(self) -> None:
        """Give up the ids, which the broker does not know: the next connection brings others."""
        self.first = self.key = self._next = self._end = 0
        self._returned.clear()

    def take(self, use: Use = NO_TRANSACTION) -> tuple[int, int]:
        """Return an id and its epoch, for a transaction if `use` is one. Raises LimitExceeded.

        Ids of the owner's earlier transactions come first, as the broker has to remember every id that it has seen.
        """
        owner, number = use
        if owner:
            for at, (producer_id, epoch, (former, last)) in enumerate(self._returned):
                if former == owner and last != number:
                    del self._returned[at]
                    return producer_id, epoch
        if self._next < self._end:
            self._next += 1
            return self._next - 1, 0
        for at, (producer_id, epoch, former_use) in enumerate(self._returned):
            if former_use == NO_TRANSACTION:
                del self._returned[at]
                return producer_id, epoch
        raise LimitExceeded(
            f"a client has {IDS_PER_CLIENT} ids of idempotent producers, and they are in use, or were used in"
            " transactions: close a producer, open this one with idempotent=False, or use another client"
        )

    def give_back(self, producer_id: int, epoch: int, use: Use = NO_TRANSACTION) -> None:
        """Give back an id that was used up to this epoch, and in the transaction `use`, if any."""
        if epoch < EPOCH_MAX and self.first <= producer_id < self._end:
            self._returned.append((producer_id, epoch + 1, use))
