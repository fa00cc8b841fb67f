"""A program that uses all of the blocking client, for mypy to read and for a broker to run against: URL TOPIC."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from sqlite3 import Connection
from typing import assert_type
from uuid import UUID

import linn
from linn.core.batch.record import LabelValue, Record
from linn.descriptions import (
    BrokerDescription,
    ConnectionDescription,
    DecidedDeliveries,
    ExchangeDescription,
    GroupOffset,
    GroupSummary,
    TopicDescription,
    TransactionDescription,
    TransactionSummaries,
)
from linn.errors import ConnectionUnknown, DeliveryNotCurrent, LimitExceeded, TransactionUnknown
from linn.participants import SqliteParticipant
from linn.sync import (
    Admin,
    Batch,
    BulkReceipt,
    Client,
    Consumer,
    ExactlyOnceConsumer,
    FetchedBatches,
    Message,
    Offsets,
    Output,
    Producer,
    Receipt,
    Settled,
    SharedTransactions,
    Transaction,
    TransactionTicket,
)


def publish(producer: Producer) -> None:
    receipt = producer.publish(
        b"1",
        key=b"k",
        routing_key="a.b",
        labels={"text": "t", "number": 1, "fraction": 0.5, "yes": True},
        headers={"name": b"value", "none": None},
        id=UUID(int=1),
        timestamp_ms=1,
        priority=0,
        delay_ms=0,
        ttl_ms=0,
        mandatory=False,
        timeout_s=20.0,
    )
    assert_type(receipt, Receipt)
    assert_type(receipt.partition, int | None)
    try:
        producer.publish_nowait(None, headers=[("name", b"value"), ("name", None)])
    except LimitExceeded as error:
        assert_type(error.code, str)
    many = producer.publish_many([b"2", None], keys=[b"k", None], labels=[{"a": 1}, None], timeout_s=20.0)
    assert_type(many, BulkReceipt)
    assert_type(many.partitions, dict[int, Offsets])
    producer.flush(timeout_s=20.0)


def settle(message: Message) -> None:
    assert_type(message.value, bytes | None)
    assert_type(message.text, str)
    assert_type(message.key, bytes | None)
    assert_type(message.labels, Mapping[str, LabelValue])
    assert_type(message.headers, tuple[tuple[str, bytes | None], ...])
    assert_type((message.topic, message.partition, message.offset), tuple[str, int, int])
    assert_type((message.attempt, message.priority, message.timestamp_ms), tuple[int, int, int])
    assert_type((message.routing_key, message.id), tuple[str, UUID])
    assert_type(message.record(), Record)
    assert_type(message.batch, Batch)
    assert_type(message.extend(60_000), Settled)
    with message.process(on_error="reject") as same:
        assert_type(same, Message)


def consume(consumer: Consumer) -> None:
    for message in consumer:
        assert_type(message, Message)
        settle(message)
        break
    assert_type(consumer.get(), Message)
    another = consumer.get(timeout_s=20.0)
    assert_type(another, Message | None)
    if another is not None:
        another.nack(delay_ms=1, reason="later").wait(timeout_s=20.0)
    assert_type(consumer.next_batch(timeout_s=0.0), Batch | None)
    batch = consumer.next_batch()
    assert_type(batch, Batch)
    assert_type(batch.values, list[bytes | None])
    assert_type((batch.start_offset, batch.end_offset, len(batch)), tuple[int, int, int])
    assert_type([message.value for message in batch], list[bytes | None])
    batch.extend(60_000)
    batch.nack()
    for again in consumer.batches():
        with again.process() as same:
            assert_type(same, Batch)
        break
    assert_type(consumer.partitions, dict[str, list[int]])
    stop = threading.Event()

    def work(message: Message) -> None:
        stop.set()

    consumer.run(work, concurrency=2, stop=stop, reject_on=(ValueError, KeyError), attempts_max=3)


def read(client: Client, topic: str) -> None:
    with client.consumer(topic, group="g", start=datetime.now(UTC), prefetch=10) as member:
        assert_type(member.topics, tuple[str, ...])
    fetched = client.fetch(topic, 0, 0, bytes_min=1, bytes_max=1 << 16, wait_s=0.0)
    assert_type(fetched, FetchedBatches)
    assert_type(fetched.batches, list[Batch])
    assert_type(client.find_offset(topic, 0, 0), int)
    (info,) = client.describe(topic).topics
    assert_type(info.kind, str)


def administer(admin: Admin, topic: str) -> None:
    assert_type(admin.create_topic(topic, kind="both", partitions=1), bool)
    assert_type(admin.alter_topic(topic, lease="1m"), list[str])
    assert_type(admin.topic(topic), TopicDescription)
    assert_type(admin.topics(), list[TopicDescription])
    assert_type(admin.create_exchange(f"{topic}-x", type="topic"), bool)
    admin.bind(f"{topic}-x", topic, "a.#")
    assert_type(admin.exchanges(), list[ExchangeDescription])
    admin.unbind(f"{topic}-x", topic, "a.#")
    admin.delete_exchange(f"{topic}-x")
    assert_type(admin.groups(topic), list[GroupSummary])
    assert_type(admin.create_subscription(topic, "s", start="latest"), bool)
    admin.delete_subscription(topic, "s", force=True)
    assert_type(admin.decided_deliveries(topic, "", "c", partition=0, delivery_id=1), DecidedDeliveries)
    with suppress(DeliveryNotCurrent):
        admin.resolve_delivery(topic, 0, 1, "c", "return", subscription="", first=0, end=1)
    assert_type(admin.transactions("open", limit=10), TransactionSummaries)
    with suppress(TransactionUnknown):
        assert_type(admin.transaction("nobody"), TransactionDescription)
    with suppress(TransactionUnknown):
        assert_type(admin.abort_transaction("nobody"), int)
    assert_type(admin.connections(), list[ConnectionDescription])
    with suppress(ConnectionUnknown):
        admin.close_connection(0, "reason")
    assert_type(admin.broker(), BrokerDescription)


def transact(client: Client, topic: str) -> None:
    client.admin.create_topic(f"{topic}-in", kind="both")
    client.admin.create_topic(f"{topic}-out")
    with client.producer(f"{topic}-in") as producer:
        producer.publish_many([b"1", b"2"])
    with client.consumer(f"{topic}-in", isolation="read_uncommitted") as consumer:
        message = next(consumer)
        with client.transaction("t", timeout_s=10) as tx:
            assert_type(tx, Transaction)
            assert_type(tx.name, str)
            assert_type(tx.publish(f"{topic}-out", b"1", key=b"k"), Receipt)
            assert_type(tx.publish_many(f"{topic}-out", [b"1"], timeout_s=5), BulkReceipt)
            assert_type(tx.producer(f"{topic}-out"), Producer)
            tx.ack(message)
    with client.consumer(f"{topic}-in", "g") as member, client.transaction("t") as tx:
        tx.commit(member.next_batch())
        tx.abort()
    shared = client.shared_transactions("s", run=1, timeout_s=10)
    assert_type(shared, SharedTransactions)
    ticket = shared.join()
    assert_type(ticket, TransactionTicket)
    with shared.producer(ticket, f"{topic}-out") as branch:
        assert_type(branch, Producer)
        assert_type(branch.id, int)
        branch.publish_many([b"1"], partition=0)
    shared.commit(ticket, [branch.id], sequence=1)
    shared.abort(shared.join())

    def interrupt(message: Message) -> Output:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        client.process(f"{topic}-in", interrupt, f"{topic}-out", name="p", prefetch=10, timeout_s=10)


def store(client: Client, topic: str) -> None:
    participant = SqliteParticipant(":memory:")
    client.admin.create_topic(f"{topic}-once", delivery="exactly-once")
    with client.producer(f"{topic}-once") as producer:
        producer.publish(b"1")
    with client.consumer(f"{topic}-once", name="c", exactly_once=participant) as consumer:
        assert_type(consumer, ExactlyOnceConsumer[Connection])
        assert_type(consumer.topics, tuple[str, ...])
        assert_type(next(consumer), tuple[Message, Connection])
        consumer.commit()
        stop = threading.Event()
        stop.set()

        def book(message: Message, db: Connection) -> None:
            db.execute("SELECT 1")

        consumer.run(book, stop=stop, reject_on=ValueError)
        consumer.close()
    client.admin.delete_topic(f"{topic}-once")


def main(url: str, topic: str) -> None:
    with linn.sync.connect(url, name="typed", request_timeout_s=20.0, metadata_age_max_s=1.0) as client:
        assert_type(client, Client)
        assert_type(client.broker, str)
        administer(client.admin, topic)
        with client.producer(topic, acks="leader", linger_ms=1, codec="zstd", in_flight_max=1) as producer:
            publish(producer)
            producer.publish_many([b"3", b"4", b"5"])
        with client.consumer(topic) as consumer:
            consume(consumer)
        with client.consumer(topic, mode="pull") as puller:
            for batch in puller.pull(1, wait_s=0.0):
                batch.ack()
                puller.close()
        read(client, topic)
        transact(client, topic)
        store(client, topic)
        assert_type(client.admin.group("g")["offsets"], list[GroupOffset])
        assert_type(client.admin.purge_topic(topic), int)
        client.admin.delete_topic(topic)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
