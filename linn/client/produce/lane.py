"""Numbering of a producer's batches, by which the broker recognises a batch that is sent again.

Laws (see the broker's `core.log.producers`):
- Batches of a lane are numbered in the order in which they are first sent, and keep their numbers when they are sent
  again. So a batch with an unknown outcome is stored once, however often it is sent.
- A lane begins a new epoch only while none of its numbered batches has an unknown outcome.
"""

from __future__ import annotations

from linn.client.connection.producer_ids import EPOCH_MAX, NO_TRANSACTION, ProducerIds, Use
from linn.core.batch.batch import SCATTERED, TRANSACTIONAL, RecordBatch

SEQUENCE_END = 1 << 32


class Identity:
    """One producer's id, and the latest epoch of its lanes."""

    def __init__(self, ids: ProducerIds, use: Use = NO_TRANSACTION) -> None:
        """Raises LimitExceeded."""
        self.ids = ids
        self._first = ids.first
        self.producer_id, self.epoch = ids.take(use)
        self.use = use
        """Transaction to which batches belong when they are numbered."""

    def next_epoch(self, epoch: int) -> int:
        """Return the epoch after `epoch`, of another id if that was the last one or the id is lost.

        Raises LimitExceeded if there is no other id.
        """
        if epoch >= EPOCH_MAX or self._first != self.ids.first:
            self._first = self.ids.first
            self.producer_id, self.epoch = self.ids.take(self.use)
            return self.epoch
        self.epoch = max(self.epoch, epoch + 1)
        return epoch + 1

    def close(self) -> None:
        """Return the id."""
        self.ids.give_back(self.producer_id, self.epoch, self.use)


class Lane:
    """Numbers of a sequence of batches: the batches of one partition, or all if the broker chooses partitions."""

    __slots__ = ("_attributes", "_first", "_identity", "_ids", "epoch", "is_over", "next_sequence", "producer_id")

    def __init__(self, identity: Identity, *, scattered: bool) -> None:
        self._identity = identity
        self._attributes = SCATTERED if scattered else 0
        self._ids = identity.ids
        self._first = self._ids.first
        self.producer_id = identity.producer_id
        self.epoch = identity.epoch
        self.next_sequence = 0
        self.is_over = False
        """Whether the next batch begins a new epoch, because an earlier batch was not confirmed."""

    def needs_new_epoch(self, count: int) -> bool:
        """Tell whether a new epoch has to begin before a batch of `count` records.

        It has to if the client lost its ids as well: see `ProducerIds.forget`.
        """
        return self.is_over or self.next_sequence + count > SEQUENCE_END or self._first != self._ids.first

    def begin(self) -> None:
        """Begin a new epoch. Raises LimitExceeded."""
        self.epoch = self._identity.next_epoch(self.epoch)
        self.producer_id = self._identity.producer_id
        self._first = self._ids.first
        self.next_sequence = 0
        self.is_over = False

    def number(self, batch: RecordBatch) -> None:
        """Number and seal a batch."""
        _, transaction = self._identity.use
        attributes = self._attributes | TRANSACTIONAL if transaction else self._attributes
        batch.number(self.producer_id, self.epoch, self.next_sequence, attributes, transaction)
        self.next_sequence += batch.count
