"""What a producer gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID


class Receipt(NamedTuple):
    """Where one message was put.

    Example:
        receipt = await producer.publish(b"two coffees")
        assert receipt.offset is not None
    """

    topic: str | None
    """None where it went through an exchange: it may be in several topics, or in none."""
    partition: int | None
    """None where it went to several partitions or to none, and with acks="none"."""
    offset: int | None
    """None where `partition` is."""
    id: UUID
    """The message's id, in every topic."""
    batch_copies: int | None
    """Records that its whole batch became, in all topics; 0: no binding took any of it. None with acks="none"."""
    routed: bool | None
    """Whether a topic took it. None where the broker did not say: through an exchange without `mandatory`, where others
    of its batch were taken; and with acks="none"."""


class Offsets(NamedTuple):
    """Some records of one partition, the last included; others may lie between them.

    Example:
        receipt = await producer.publish_many([b"one", b"two"])
        for partition, (first, last) in receipt.partitions.items():
            print(partition, first, last)
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class BulkReceipt:
    """Where the messages of one `publish_many` were put.

    Example:
        receipt = await producer.publish_many([b"one", b"two"])
        assert receipt.count == 2
    """

    count: int
    """Messages published."""
    topic: str | None
    """None where they went through an exchange."""
    partitions: dict[int, Offsets]
    """By partition, as far as the broker said: without batches that an exchange split."""
    copies: int | None
    """Records stored in all topics together; None with acks="none"."""
