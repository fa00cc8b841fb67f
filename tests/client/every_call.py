"""A program that uses whatever both clients have, for mypy to read and for a broker to run against: URL TOPIC LOOP.

It is written for the async client. Without `async` and `await` it is a program for the blocking client.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from sqlite3 import Connection
from typing import assert_type
from uuid import UUID

import anyio

import linn
from linn.client import (
    Admin,
    Batch,
    BulkReceipt,
    Client,
    Consumer,
    ExactlyOnceConsumer,
    FetchedBatches,
    Message,
    Offsets,
    Producer,
    Receipt,
    Reply,
    SharedTransactions,
    Transaction,
    TransactionTicket,
)
from linn.core.batch.record import LabelValue, Record
from linn.descriptions import (
    BrokerDescription,
    ClusterDescription,
    ConnectionDescription,
    DecidedDeliveries,
    ExchangeDescription,
    GroupOffset,
    GroupSummary,
    RightDescription,
    RoleDescription,
    TopicDescription,
    TransactionDescription,
    TransactionSummaries,
    UserDescription,
)
from linn.errors import (
    ConnectionUnknown,
    DeliveryNotCurrent,
    InboxUnknown,
    LimitExceeded,
    NoReply,
    StatusUnsupported,
    TransactionUnknown,
)
from linn.message_status import MessageStatus, ScheduledChanged, ScheduledMessages
from linn.participants import SqliteParticipant


async def publish(producer: Producer) -> None:
    receipt = await producer.publish(
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
        at=None,
        mandatory=False,
    )
    assert_type(receipt, Receipt)
    assert_type(receipt.partition, int | None)
    assert_type(receipt.id, UUID)
    assert_type(receipt.routed, bool | None)
    try:
        producer.publish_nowait(None, headers=[("name", b"value"), ("name", None)])
    except LimitExceeded as error:
        assert_type(error.code, str)
    many = await producer.publish_many([b"2", None], keys=[b"k", None], labels=[{"a": 1}, None], routing_keys="c")
    assert_type(many, BulkReceipt)
    assert_type(many.partitions, dict[int, Offsets])
    assert_type(many.copies, int | None)
    await producer.flush()


async def settle(message: Message) -> None:
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
    await message.extend(60_000)
    async with message.process(on_error="reject") as same:
        assert_type(same, Message)


async def consume(consumer: Consumer) -> None:
    async for message in consumer:
        assert_type(message, Message)
        await settle(message)
        break
    await (await anext(consumer)).nack(delay_ms=1, reason="later")
    batch = await consumer.next_batch()
    assert_type(batch, Batch)
    assert_type(batch.values, list[bytes | None])
    assert_type((batch.start_offset, batch.end_offset, len(batch)), tuple[int, int, int])
    assert_type([message.value for message in batch], list[bytes | None])
    await batch.extend(60_000)
    await batch.nack()
    async for again in consumer.batches():
        async with again.process() as same:
            assert_type(same, Batch)
        break
    assert_type(consumer.partitions, dict[str, list[int]])
    assert_type(consumer.is_active, bool)
    await consumer.wait_active()
    stop = anyio.Event()

    async def work(message: Message) -> None:
        stop.set()

    await consumer.run(work, concurrency=2, stop=stop, reject_on=(ValueError, KeyError), attempts_max=3)


async def read(client: Client, topic: str) -> None:
    async with client.consumer(topic, group="g", start=datetime.now(UTC), prefetch=10) as member:
        assert_type(member.topics, tuple[str, ...])
        assert_type((await client.admin.group("g"))["offsets"], list[GroupOffset])
    fetched = await client.fetch(topic, 0, 0, bytes_min=1, bytes_max=1 << 16, wait_s=0.0)
    assert_type(fetched, FetchedBatches)
    assert_type(fetched.batches, list[Batch])
    assert_type(fetched.high_watermark, int)
    assert_type(await client.find_offset(topic, 0, 0), int)
    (info,) = (await client.describe(topic)).topics
    assert_type(info.kind, str)


async def ask(client: Client, topic: str) -> None:
    with suppress(NoReply):
        reply = await client.request(topic, b"1", timeout_s=0.1, key=b"k", headers={"name": b"value"})
        assert_type(reply, Reply)
        assert_type((reply.value, reply.text), tuple[bytes | None, str])
        assert_type(reply.headers, tuple[tuple[str, bytes | None], ...])
    assert_type(await client.request_many(topic, b"1", replies_max=2, timeout_s=0.1), list[Reply])
    async with client.consumer(topic) as consumer:
        message = await anext(consumer)
        assert_type(message.reply_to, str | None)
        assert_type(await message.reply(b"2", headers={"name": b"value"}), bool)
    with suppress(StatusUnsupported):
        found = await client.status(topic, [UUID(int=1), str(UUID(int=2))], wait_s=0.1)
        assert_type(found, list[MessageStatus])
        assert_type(found[0]["partition"], int | None)
    assert_type(await client.scheduled(topic, count=1, ids=["0/0"]), ScheduledMessages)
    assert_type(await client.cancel_scheduled(topic, ["0/0"]), list[ScheduledChanged])
    assert_type(await client.move_scheduled(topic, ["0/0"], at=None, delay_ms=1), list[ScheduledChanged])
    with suppress(InboxUnknown):
        await client.reply("0.1", b"2", headers=[("name", None)])


async def administer(admin: Admin, topic: str) -> None:
    assert_type(await admin.create_topic(topic, kind="both", partitions=1), bool)
    assert_type(await admin.alter_topic(topic, lease="1m"), list[str])
    assert_type(await admin.topic(topic), TopicDescription)
    assert_type(await admin.topics(), list[TopicDescription])
    assert_type(await admin.create_exchange(f"{topic}-x", type="topic"), bool)
    await admin.bind(f"{topic}-x", topic, "a.#")
    assert_type(await admin.exchanges(), list[ExchangeDescription])
    await admin.unbind(f"{topic}-x", topic, "a.#")
    await admin.delete_exchange(f"{topic}-x")
    assert_type(await admin.groups(topic), list[GroupSummary])
    assert_type(await admin.create_subscription(topic, "s", start="latest"), bool)
    await admin.delete_subscription(topic, "s", force=True)
    assert_type(await admin.decided_deliveries(topic, "", "c", partition=0, delivery_id=1), DecidedDeliveries)
    with suppress(DeliveryNotCurrent):
        await admin.resolve_delivery(topic, 0, 1, "c", "return", subscription="", first=0, end=1)
    assert_type(await admin.transactions("open", limit=10), TransactionSummaries)
    with suppress(TransactionUnknown):
        assert_type(await admin.transaction("nobody"), TransactionDescription)
    with suppress(TransactionUnknown):
        assert_type(await admin.abort_transaction("nobody"), int)
    assert_type(await admin.connections(), list[ConnectionDescription])
    with suppress(ConnectionUnknown):
        await admin.close_connection(0, "reason")
    assert_type(await admin.broker(), BrokerDescription)
    assert_type(await admin.cluster(), ClusterDescription)
    assert_type(await admin.create_role(topic, {f"topic:{topic}": ["see"]}), bool)
    assert_type(await admin.alter_role(topic, {f"topic:{topic}": ["publish"]}), bool)
    assert_type(await admin.role(topic), RoleDescription)
    assert_type(await admin.roles(), list[RoleDescription])
    assert_type(await admin.create_user(topic, [topic], scram="", certificate=topic, uid=123), bool)
    assert_type(await admin.alter_user(topic, [topic], scram="", certificate="", uid=-1), bool)
    assert_type(await admin.alter_user(topic, add_roles=[topic], remove_roles=[topic]), bool)
    assert_type(await admin.user(topic), UserDescription)
    assert_type(await admin.users(), list[UserDescription])
    assert_type(await admin.can(topic, "publish", f"topic:{topic}"), RightDescription)
    await admin.delete_user(topic)
    await admin.delete_role(topic)


async def transact(client: Client, topic: str) -> None:
    await client.admin.create_topic(f"{topic}-in", kind="both")
    await client.admin.create_topic(f"{topic}-out")
    async with client.producer(f"{topic}-in") as producer:
        await producer.publish_many([b"1", b"2"])
    async with client.consumer(f"{topic}-in", isolation="read_uncommitted") as consumer:
        message = await anext(consumer)
        async with client.transaction("t", timeout_s=10) as tx:
            assert_type(tx, Transaction)
            assert_type(tx.name, str)
            assert_type(await tx.publish(f"{topic}-out", b"1", key=b"k"), Receipt)
            assert_type(await tx.publish_many(f"{topic}-out", [b"1"]), BulkReceipt)
            assert_type(await tx.producer(f"{topic}-out"), Producer)
            tx.ack(message)
    async with client.consumer(f"{topic}-in", "g") as member, client.transaction("t") as tx:
        tx.commit(await member.next_batch())
        await tx.abort()
    shared = client.shared_transactions("s", run=1, timeout_s=10)
    assert_type(shared, SharedTransactions)
    ticket = await shared.join()
    assert_type(ticket, TransactionTicket)
    async with shared.producer(ticket, f"{topic}-out") as branch:
        assert_type(branch, Producer)
        assert_type(branch.id, int)
        await branch.publish_many([b"1"], partition=0)
    await shared.commit(ticket, [branch.id], sequence=1)
    await shared.abort(await shared.join())


async def store(client: Client, topic: str) -> None:
    participant = SqliteParticipant(":memory:")
    await client.admin.create_topic(f"{topic}-once", delivery="exactly-once")
    async with client.producer(f"{topic}-once") as producer:
        await producer.publish(b"1")
    async with client.consumer(f"{topic}-once", name="c", exactly_once=participant) as consumer:
        assert_type(consumer, ExactlyOnceConsumer[Connection])
        assert_type(consumer.topics, tuple[str, ...])
        assert_type(await anext(consumer), tuple[Message, Connection])
        await consumer.commit()
        stop = anyio.Event()
        stop.set()

        def book(message: Message, db: Connection) -> None:
            db.execute("SELECT 1")

        await consumer.run(book, stop=stop, reject_on=ValueError)
        await consumer.aclose()
    await client.admin.delete_topic(f"{topic}-once")


async def main(url: str, topic: str) -> None:
    async with linn.connect(url, name="typed", request_timeout_s=20.0, metadata_age_max_s=1.0) as client:
        assert_type(client, Client)
        assert_type(client.broker, str)
        await administer(client.admin, topic)
        async with client.producer(topic, acks="leader", linger_ms=1, codec="zstd", in_flight_max=1) as producer:
            await publish(producer)
            await producer.publish_many([b"3", b"4", b"5"])
        async with client.consumer(topic) as consumer:
            await consume(consumer)
        async with client.consumer(topic, mode="pull") as puller:
            for batch in await puller.pull(1, wait_s=0.0):
                await batch.ack()
                await puller.aclose()
        await ask(client, topic)
        await read(client, topic)
        await transact(client, topic)
        await store(client, topic)
        assert_type(await client.admin.purge_topic(topic), int)
        await client.admin.delete_topic(topic)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], backend=sys.argv[3])
