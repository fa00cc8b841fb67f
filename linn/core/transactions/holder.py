"""Holders: the names under which transactions hold records of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from linn.core.queue.event_run import is_transactions
from linn.core.queue.partition_queue import PartitionQueue


class ProducerTransaction(NamedTuple):
    """A transaction, as partitions and queues identify it."""

    producer_id: int
    number: int


def holder_of(producer_id: int, number: int) -> str:
    """The name under which a transaction holds records of queues. No consumer's name has a NUL."""
    return f"\0{producer_id}/{number}"


def transaction_of(holder: str) -> ProducerTransaction:
    """The transaction that holds records under this name."""
    producer_id, number = holder[1:].split("/")
    return ProducerTransaction(int(producer_id), int(number))


def transactions_in(partition_queue: PartitionQueue) -> Iterator[tuple[str, ProducerTransaction]]:
    """The transactions that hold records of a queue's partition, with the names of their holders."""
    for holder in dict.fromkeys(it.decision.holder.name for it in partition_queue.subscription.decided()):
        if is_transactions(holder):
            yield holder, transaction_of(holder)
