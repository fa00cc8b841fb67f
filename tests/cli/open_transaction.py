"""A transaction that stays open while commands look at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from linn.client.blocking.generated.transaction import Transaction
from linn.sync import connect


@contextmanager
def open_transaction(url: str, name: str, topic: str, group: str = "readers") -> Iterator[Transaction]:
    """Open a transaction that has written one record in a topic, which is queue and stream, and settles one of each.

    It is aborted afterwards, if nobody has done that before.
    """
    with connect(url) as client:
        client.admin.create_topic(topic, kind="both")
        with client.producer(topic) as producer:
            producer.publish(b"one")
        with (
            client.consumer(topic) as consumer,
            client.consumer(topic, group=group) as member,
            client.transaction(name, timeout_s=600) as transaction,
        ):
            transaction.publish(topic, b"two")
            transaction.ack(next(consumer))
            transaction.commit(next(member))
            transaction._thread.call(transaction._made._settle)  # Clients do that when they commit.
            try:
                yield transaction
            finally:
                transaction.abort()
