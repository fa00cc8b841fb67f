"""Receipts of published messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID


class Receipt(NamedTuple):
    """Receipt of one message: its topic, partition and offset.

    Example:
        receipt = await producer.publish(b"two coffees")
        assert receipt.offset is not None
    """

    topic: str | None
    """None for an exchange: the message may be in several topics, or in none."""
    partition: int | None
    """None if the message went to several partitions or to none, and with acks="none"."""
    offset: int | None
    """None if `partition` is None."""
    id: UUID
    """The message's id, the same in every topic."""
    batch_copies: int | None
    """Records stored for its whole batch in all topics; 0: no binding took any of it. None with acks="none"."""
    routed: bool | None
    """Whether a topic took the message. None if unknown: with acks="none", and through an exchange without `mandatory`
    if other messages of its batch were taken.
    """
    topic_id: UUID | None = None
    """Id of the topic that took it; a later topic with the same name has another id. None if `partition` is None."""
    leader_epoch: int | None = None
    """Leader epoch in which it was appended: topic id, epoch and offset identify the record, even after a power loss.
    None if `partition` is None.
    """
    scheduled: str | None = None
    """Id of a message that comes into its topic later, and has no offset yet. None if it is there, or `partition` is
    None.
    """

    def _delayed(self) -> Receipt:
        """Return the receipt of a message that comes later."""
        id = None if self.offset is None else f"{self.partition}/{self.offset}"
        return self._replace(offset=None, scheduled=id)


class Offsets(NamedTuple):
    """Offsets of the first and the last record of a publish in one partition; other records may lie between them.

    Example:
        receipt = await producer.publish_many([b"one", b"two"])
        for partition, (first, last) in receipt.partitions.items():
            print(partition, first, last)
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BulkReceipt:
    """Receipt of one `publish_many`.

    Example:
        receipt = await producer.publish_many([b"one", b"two"])
        assert receipt.count == 2
    """

    count: int
    """Number of messages published."""
    topic: str | None
    """None for an exchange."""
    partitions: dict[int, Offsets]
    """Offsets by partition, without batches that an exchange split."""
    copies: int | None
    """Number of records stored in all topics together; None with acks="none"."""
    is_scheduled: bool = False
    """Whether the messages come into the topic later. Then `partitions` has the numbers of their ids: the id of number
    5 in partition 0 is "0/5".
    """

    def _delayed(self) -> BulkReceipt:
        """Return the receipt of messages that come later."""
        return replace(self, is_scheduled=True)
