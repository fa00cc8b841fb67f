"""A program that uses what the blocking client alone has, for mypy and for a broker: URL TOPIC."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import assert_type

import linn
from linn.sync import Batch, BulkReceipt, Message, Output, Receipt, Settled


def main(url: str, topic: str) -> None:
    with linn.sync.connect(url) as client:
        client.admin.create_topic(topic)
        client.admin.create_topic(f"{topic}-out")
        with client.producer(topic) as producer:
            assert_type(producer.publish(b"1", timeout_s=20.0), Receipt)
            assert_type(producer.publish_many([b"2"], timeout_s=20.0), BulkReceipt)
            producer.flush(timeout_s=20.0)
        with client.transaction(topic) as tx:
            assert_type(tx.publish(topic, b"3", timeout_s=20.0), Receipt)
            assert_type(tx.publish_many(topic, [b"4"], timeout_s=20.0), BulkReceipt)
        with client.consumer(topic) as consumer:
            message = consumer.get()
            assert_type(message, Message)
            settled = message.extend(60_000)
            assert_type(settled, Settled)
            settled.wait(timeout_s=20.0)
            another = consumer.get(timeout_s=20.0)
            assert_type(another, Message | None)
            if another is not None:
                another.nack(delay_ms=1, reason="later").wait()
            assert_type(consumer.next_batch(), Batch)
            assert_type(consumer.next_batch(timeout_s=0.0), Batch | None)

        def interrupt(message: Message) -> Output:
            raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            client.process(topic, interrupt, f"{topic}-out", name=topic, prefetch=10, timeout_s=10)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
