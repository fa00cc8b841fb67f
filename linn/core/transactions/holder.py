"""Holders: the names under which transactions hold records of queues."""

from __future__ import annotations

from collections.abc import Iterator

from linn.core.queue.decided import is_transactions
from linn.core.queue.partition_queue import PartitionQueue


def holder_of(producer_id: int, number: int) -> str:
    """The name under which a transaction holds records of queues. No consumer's name has a NUL."""
    return f"\0{producer_id}/{number}"


def owner_of(holder: str) -> tuple[int, int]:
    """Producer id and number of a holder's transaction."""
    producer_id, number = holder[1:].split("/")
    return int(producer_id), int(number)


def transactions_in(partition_queue: PartitionQueue) -> Iterator[tuple[str, tuple[int, int]]]:
    """The transactions that hold records of a queue's partition: the holder, and (producer id, number)."""
    for holder in dict.fromkeys(it.decision.holder.name for it in partition_queue.subscription.decided()):
        if is_transactions(holder):
            yield holder, owner_of(holder)
