from __future__ import annotations

from uuid import UUID

import anyio
import pytest
from both_loops import on_both_clients, on_both_loops
from scripted_peer import Peer, Session, impatient, running_peer

import linn
from linn.client import Client
from linn.core.batch.key_hash import partition_of
from linn.core.errors.tree import (
    ClientClosed,
    ConnectionLost,
    LimitExceeded,
    LinnError,
    MessageInvalid,
    MessageTooLarge,
    RequestTimeout,
    TopicFull,
    TopicUnknown,
)
from linn.wire import messages as m
from linn.wire.connection import Event


@on_both_clients
async def test_a_receipt_has_the_messages_placement(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    async with client.producer(name) as producer:
        receipts = [await producer.publish(b"%d" % number) for number in range(3)]
    fetched = await client.fetch(name, 0, receipts[1].offset or 0)
    message = next(iter(fetched.batches[0]))
    assert [receipt.offset for receipt in receipts] == [0, 1, 2]
    assert (message.value, message.id, message.offset) == (b"1", receipts[1].id, 1)


@on_both_clients
async def test_every_property_of_a_message_arrives(broker: str, name: str) -> None:
    properties = {
        "key": b"k",
        "routing_key": "a.b",
        "labels": {"origin": "JFK", "late": True, "distance": 1, "speed": 1.0},
        "headers": (("h", b"1"), ("h", None)),
        "id": UUID(int=7),
        "timestamp_ms": 1,
        "priority": 9,
        "delay_ms": 0,
        "ttl_ms": 0,
    }
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream")
        async with client.producer(name, linger_ms=20) as producer:
            producer.publish_nowait(b"plain")
            receipt = await producer.publish(b"rich", **properties)  # type: ignore[arg-type]
            producer.publish_nowait(b"rich too", **properties)  # type: ignore[arg-type]
            producer.publish_nowait(memoryview(b"a view"))  # type: ignore[arg-type]
            producer.publish_nowait(None, key=b"gone")
            await producer.flush()
            many = await producer.publish_many(
                [b"a", b"b", None],
                keys=[b"1", None, b"3"],
                routing_keys=["x", "y", "x"],
                labels=[{"n": 1}, {"n": True}, None],
                headers=[{"h": b"1"}, None, ()],
                priority=3,
            )
        read = [message.record() for batch in (await client.fetch(name, 0, 0)).batches for message in batch]
    plain, rich, rich_too, view, tombstone, a, b, c = read
    for record in (rich, rich_too):
        assert {field: getattr(record, field) for field in properties} == properties
    assert [record.value for record in (rich_too, view, tombstone)] == [b"rich too", b"a view", None]
    assert receipt.id == UUID(int=7)
    assert (plain.value, plain.key, plain.headers, dict(plain.labels)) == (b"plain", None, (), {})
    assert [record.value for record in (a, b, c)] == [b"a", b"b", None]
    assert [record.key for record in (a, b, c)] == [b"1", None, b"3"]
    assert [(record.routing_key, dict(record.labels)) for record in (a, b, c)] == [
        ("x", {"n": 1}),
        ("y", {"n": True}),
        ("x", {}),
    ]
    assert type(b.labels["n"]) is bool
    assert a.headers == (("h", b"1"),)
    assert c.priority == 3
    assert (many.count, many.partitions) == (3, {0: (5, 7)})


@on_both_loops
async def test_many_messages_keep_ids_and_times_of_their_own(broker: str, name: str) -> None:
    ids, times = [UUID(int=100 - number) for number in range(50)], [1_000 + 7 * number for number in range(50)]
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream", partitions=3)
        async with client.producer(name, batch_bytes_max=1 << 10) as producer:
            keys = [b"%d" % (number % 5) for number in range(50)]
            await producer.publish_many([b"x" * 90] * 50, keys=keys, ids=ids, timestamp_ms=times)
            for wrong in ({"ids": ids[:3]}, {"ids": ["no"] * 50}, {"timestamp_ms": [-1] * 50}):
                with pytest.raises(MessageInvalid):
                    await producer.publish_many([b"x"] * 50, **wrong)  # type: ignore[arg-type]
        read = [
            (message.id, message.timestamp_ms)
            for partition in range(3)
            for batch in (await client.fetch(name, partition, 0)).batches
            for message in batch
        ]
    assert sorted(read, key=lambda pair: pair[1]) == list(zip(ids, times, strict=True))


@on_both_loops
async def test_many_messages_are_cut_into_batches_whatever_their_sizes(broker: str, name: str) -> None:
    values = [bytes([index % 256]) * (index % 1_500) for index in range(3_000)] + [b"x" * 60_000] * 20 + [b""] * 20_000
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream")
        async with client.producer(name, batch_bytes_max=64 << 10, codec="zstd") as producer:
            receipt = await producer.publish_many(values)
            assert (await producer.publish_many([])).count == 0
        assert receipt.count == receipt.copies == len(values)
        assert receipt.partitions == {0: (0, len(values) - 1)}
        read: list[bytes | None] = []
        while len(read) < len(values):
            for batch in (await client.fetch(name, 0, len(read), bytes_max=4 << 20)).batches:
                assert batch.records.body_bytes <= 128 << 10
                read += batch.values
        assert read == values


@on_both_clients
async def test_a_key_decides_the_partition_as_kafka_would(broker: str, name: str) -> None:
    keys = [b"%d" % number for number in range(50)]
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream", partitions=4)
        async with client.producer(name) as producer:
            for key in keys[:5]:
                assert (await producer.publish(b"one", key=key)).partition == partition_of(key, 4)
            await producer.publish_many(keys, keys=keys)
            without = {(await producer.publish(b"none")).partition for _ in range(8)}
        assert without == {0, 1, 2, 3}
        for partition in range(4):
            messages = [message for batch in (await client.fetch(name, partition, 0)).batches for message in batch]
            found = [message.key for message in messages if message.value == message.key]
            assert found == [key for key in keys if partition_of(key, 4) == partition]


@on_both_loops
async def test_an_exchange_keeps_keys_in_their_partition(broker: str, name: str) -> None:
    keys = [b"%d" % number for number in range(40)]
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream", partitions=3)
        await client.admin.bind("events", name, f"{name}.*")
        async with client.producer(exchange="events") as producer:
            many = await producer.publish_many(keys, keys=keys, routing_keys=f"{name}.x")
            one = await producer.publish(b"0", key=b"0", routing_key=f"{name}.y")
            lost = await producer.publish(b"", routing_key="nowhere")
        assert (many.topic, many.copies, one.topic, one.batch_copies, lost.batch_copies) == (None, 40, None, 1, 0)
        for partition in range(3):
            batches = (await client.fetch(name, partition, 0)).batches
            assert all(partition_of(message.key or b"", 3) == partition for batch in batches for message in batch)


@on_both_clients
async def test_a_wrong_message_fails_its_own_call_and_no_other(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    async with client.producer(name) as producer:
        producer.publish_nowait(b"before")
        for wrong in (
            {"value": "text"},
            {"value": "text", "key": b"k"},
            {"value": b"", "key": "k"},
            {"value": b"", "labels": {"a": [1]}},
            {"value": b"", "labels": {1: "a"}},
            {"value": b"", "routing_key": 7},
            {"value": b"", "headers": {"h": "text"}},
            {"value": b"", "priority": 256},
            {"value": b"", "delay_ms": -1},
            {"value": b"", "id": "7"},
            {"value": b"", "timestamp_ms": 1.5},
        ):
            with pytest.raises(MessageInvalid):
                await producer.publish(**wrong)
            with pytest.raises(MessageInvalid):
                producer.publish_nowait(**wrong)
        for values in ([b"a", "b"], [1], "text"):
            with pytest.raises(MessageInvalid):
                await producer.publish_many(values)
        with pytest.raises(MessageInvalid, match="keys has 1 entry for 2 values"):
            await producer.publish_many([b"", b""], keys=[b"1"])
        producer.publish_nowait(b"after", key=b"k")
    batches = (await client.fetch(name, 0, 0)).batches
    assert [value for batch in batches for value in batch.values] == [b"before", b"after"]


@on_both_clients
async def test_a_message_over_the_limit_is_not_sent(broker: str, name: str) -> None:
    large = bytes(64 << 10)
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream")
        async with client.producer(name) as producer:
            await producer.publish(large)
            with pytest.raises(MessageTooLarge):
                await producer.publish(large, key=b"k")
            with pytest.raises(MessageTooLarge):
                producer.publish_nowait(large + b"1")
            with pytest.raises(MessageTooLarge):
                producer.publish_nowait(large, key=b"k")
            with pytest.raises(MessageTooLarge, match="message 2 has"):
                await producer.publish_many([b"", b"", large + b"1"])
        assert (await client.fetch(name, 0, 0)).high_watermark == 1


@on_both_loops
async def test_an_unknown_topic_is_named(client: Client) -> None:
    async with client.producer("no-such-topic") as producer:
        with pytest.raises(TopicUnknown, match="no-such-topic"):
            await producer.publish(b"")
        with pytest.raises(TopicUnknown, match="no-such-topic") as caught:
            await producer.publish_many([b"", b""])
        assert caught.value.__notes__ == ["confirmed of this publish_many: 0 messages"]


@on_both_clients
async def test_the_flush_raises_a_failure_of_publish_nowait_once(client: Client) -> None:
    async with client.producer("no-such-topic") as producer:
        producer.publish_nowait(b"")
        with pytest.raises(TopicUnknown):
            await producer.flush()
        await producer.flush()
        producer.publish_nowait(b"")
        with pytest.raises(TopicUnknown):
            await producer.aclose()


@on_both_loops
async def test_leaving_the_block_flushes(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    async with client.producer(name, linger_ms=10_000) as producer:
        for number in range(10):
            producer.publish_nowait(b"%d" % number)
    assert (await client.fetch(name, 0, 0)).high_watermark == 10


@on_both_loops
async def test_without_acks_the_flush_waits_for_the_broker_to_have_read(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream")
    async with client.producer(name, acks="none") as producer:
        receipt = await producer.publish(b"0")
        many = await producer.publish_many([bytes(1_000)] * 10_000)
        await producer.flush()
        assert (receipt.partition, receipt.offset, many.copies) == (None, None, None)
        assert (await client.fetch(name, 0, 0)).high_watermark == 10_001


@on_both_loops
async def test_messages_that_come_while_one_is_under_way_share_a_batch(peer: Peer) -> None:
    async with linn.connect(peer.url) as client, client.producer("t") as producer:
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(producer.publish, b"%d" % number)
    assert [len(event.batches[0]) for event in peer.events if event.batches] == [1, 49]
    assert sorted(peer.logs["t/0"]) == sorted(b"%d" % number for number in range(50))


@on_both_loops
async def test_linger_gathers_messages_for_a_while(peer: Peer) -> None:
    async with linn.connect(peer.url) as client, client.producer("t", linger_ms=20) as producer:
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(producer.publish, b"%d" % number)
    assert [len(event.batches[0]) for event in peer.events if event.batches] == [5]


@on_both_loops
async def test_after_a_lost_connection_all_comes_again_in_order(peer: Peer) -> None:
    """The peer takes two batches without a word, the connection is cut, and all eight arrive in order."""
    del peer.answers[m.Publish]
    async with linn.connect(peer.url, backoff_s=0.01) as client:
        async with client.producer("t", in_flight_max=4) as producer, anyio.create_task_group() as tasks:

            async def publish_many(prefix: bytes) -> None:
                receipt = await producer.publish_many([prefix + bytes(200)] * 4)
                assert receipt.count == 4

            for prefix in (b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"):
                tasks.start_soon(publish_many, prefix)
            await peer.until(lambda: len(peer.messages(m.Publish)) == 4)
            sent = [event.batches[0].value(0) for event in peer.events if event.batches]
            peer.answers[m.Publish] = peer.publish
            await peer.cut()
    stored = peer.logs["t/0"]
    assert len(stored) == 32
    assert stored[:16:4] == sent
    assert stored[::4] == stored[3::4]


@on_both_loops
async def test_a_retriable_refusal_is_retried_in_order(peer: Peer) -> None:
    refusals = 3

    def publish(session: Session, event: Event) -> m.Message:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            return m.Failed("topic.full", "full", True)
        return peer.publish(session, event)

    peer.answers[m.Publish] = publish
    async with linn.connect(peer.url, backoff_s=0.01) as client:
        async with client.producer("t", in_flight_max=1) as producer:
            for number in range(10):
                producer.publish_nowait(b"%d" % number)
                await producer.publish(b"+%d" % number)
    expected = [value for number in range(10) for value in (b"%d" % number, b"+%d" % number)]
    assert peer.logs["t/0"] == expected


async def fates_behind_a_refusal(stored_behind: bool) -> list[str]:
    """Three batches in flight, of which the first is refused for now; the results that their publishers get."""
    count = 0

    def publish(session: Session, event: Event) -> m.Message | None:
        nonlocal count
        count += 1
        if count == 1:
            return m.Failed("topic.full", "full", True)
        return peer.publish(session, event) if stored_behind or count > 3 else None

    fates: list[str] = []
    async with running_peer() as peer:
        peer.answers[m.Publish] = publish
        timeout_s = 30.0 if stored_behind else 0.2
        async with linn.connect(peer.url, backoff_s=0.01, request_timeout_s=timeout_s) as client:
            producer = client.producer("t", in_flight_max=3)

            async def publish_many() -> None:
                try:
                    await producer.publish_many([bytes(200)] * 4)
                    fates.append("stored")
                except RequestTimeout:
                    fates.append("unknown")
                except TopicFull:
                    fates.append("refused")

            with anyio.move_on_after(30):
                async with producer, anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(publish_many)
    assert count == (4 if stored_behind else 3)
    return sorted(fates)


@on_both_loops
async def test_a_refused_batch_is_resent_after_later_ones_were_confirmed() -> None:
    assert await fates_behind_a_refusal(stored_behind=True) == ["stored"] * 3


@on_both_loops
async def test_a_refused_batch_fails_with_its_refusal_when_its_time_is_up_before_those_behind_it_were_answered() -> (
    None
):
    assert await fates_behind_a_refusal(stored_behind=False) == ["refused", "unknown", "unknown"]


@on_both_loops
async def test_a_refusal_that_lasts_is_raised_in_the_end(peer: Peer) -> None:
    peer.answers[m.Publish] = lambda session, event: m.Failed("topic.full", "full", True)
    async with linn.connect(peer.url, backoff_s=0.001, retries_max=3) as client, client.producer("t") as producer:
        with pytest.raises(TopicFull):
            await producer.publish(b"")
    assert len(peer.messages(m.Publish)) == 4


@on_both_loops
async def test_messages_not_confirmed_in_time_have_an_unknown_fate(peer: Peer) -> None:
    del peer.answers[m.Publish]
    async with linn.connect(peer.url) as client, client.producer("t") as producer:
        with pytest.raises(RequestTimeout, match="may or may not"), impatient(client):
            await producer.publish(b"")
        peer.answers[m.Publish] = peer.publish
        assert (await producer.publish(b"")).offset == 0


@on_both_loops
async def test_publishing_fails_while_no_broker_returns_and_works_again_later(peer: Peer) -> None:
    del peer.answers[m.Publish]
    async with linn.connect(peer.url, backoff_s=0.001, retries_max=2) as client, client.producer("t") as producer:
        async with anyio.create_task_group() as tasks:

            async def publish() -> None:
                with pytest.raises(ConnectionLost):
                    await producer.publish(b"lost")

            tasks.start_soon(publish)
            await peer.until(lambda: len(peer.messages(m.Publish)) == 1)
            peer.answers[m.Hello] = lambda session, event: m.Failed("connection.lost", "no", True)
            await peer.cut()
        peer.answers.update({m.Hello: peer.welcome, m.Publish: peer.publish})
        assert (await producer.publish(b"found")).offset == 0


@on_both_loops
async def test_a_cancelled_waiting_publish_is_withdrawn_without_harm_to_others(peer: Peer) -> None:
    async with linn.connect(peer.url) as client, client.producer("t", linger_ms=10_000) as producer:
        receipts: list[linn.client.Receipt] = []

        async def publish(value: bytes) -> None:
            receipts.append(await producer.publish(value))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish, b"first")
            await anyio.sleep(0)
            with anyio.move_on_after(0.01):
                await publish(b"cancelled")
            tasks.start_soon(publish, b"last")
            await anyio.wait_all_tasks_blocked()
            await producer.flush()
    assert peer.logs["t/0"] == [b"first", b"last"]
    assert sorted(receipt.offset or 0 for receipt in receipts) == [0, 1]
    batch = next(event.batches[0] for event in peer.events if event.batches)
    assert {receipt.id for receipt in receipts} == {batch.id(0), batch.id(1)}


@on_both_loops
async def test_a_cancelled_publish_that_was_sent_leaves_the_connection_whole(peer: Peer) -> None:
    del peer.answers[m.Publish]
    async with linn.connect(peer.url) as client, client.producer("t") as producer:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.publish, b"unknown fate")
            await peer.until(lambda: any(event.batches for event in peer.events))
            tasks.cancel_scope.cancel()
        peer.answers[m.Publish] = peer.publish
        (session,) = peer.sessions
        asked = next(event for event in peer.events if event.batches)
        await session.send(peer.publish(session, asked), asked.correlation)
        assert (await producer.publish(b"next")).offset == 1


@on_both_loops
async def test_a_slow_broker_slows_publishers_down_and_bounds_the_buffer(peer: Peer, client: Client) -> None:
    async with client.producer("t", buffer_bytes_max=1 << 20, batch_bytes_max=64 << 10) as producer:
        peer.reading = anyio.Event()
        sent = 0

        def fill() -> None:
            nonlocal sent
            while True:
                producer.publish_nowait(bytes(10_000))
                sent += 1

        with pytest.raises(LimitExceeded, match="buffer_bytes_max"):
            fill()
        assert 100 < sent < 130
        with anyio.move_on_after(0.05) as scope:
            await producer.publish_many([b"late"])
        assert scope.cancelled_caught
        peer.reading.set()
        await producer.flush()
        assert (await producer.publish(b"")).offset == sent


@on_both_loops
async def test_many_large_messages_pass_a_slow_reader(peer: Peer) -> None:
    """The data exceeds the socket buffers: the writer has to wait, and everything arrives whole and in order."""
    async with (
        linn.connect(peer.url) as client,
        client.producer("t", in_flight_max=64, idempotent=False) as producer,
    ):
        values = [b"%d" % number * 20_000 for number in range(300)]
        peer.reading = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(producer.publish_many, values)
            await anyio.sleep(0.05)
            peer.reading.set()
    assert peer.logs["t/0"] == values


@on_both_loops
async def test_keys_count_only_where_the_topics_partitioner_says_so(broker: str, name: str) -> None:
    keys = [b"%d" % (number % 5) for number in range(40)]
    values = [b"%d" % number for number in range(40)]
    async with linn.connect(broker) as client:
        for partitioner in ("murmur2", "sticky", "round-robin"):
            topic = f"{name}-{partitioner}"
            await client.admin.create_topic(topic, kind="stream", partitions=4, partitioner=partitioner)
            async with client.producer(topic) as producer:
                many = await producer.publish_many(values, keys=keys)
                one = await producer.publish(b"one", key=b"k")
            assert (many.count, many.copies, one.routed) == (40, 40, True)
            stored = [
                [message.key for batch in (await client.fetch(topic, index, 0)).batches for message in batch]
                for index in range(4)
            ]
            if partitioner == "murmur2":
                assert all(partition_of(key or b"", 4) == index for index in range(4) for key in stored[index])
            elif partitioner == "sticky":
                assert sorted(map(len, stored)) == [0, 0, 1, 40]
            else:
                assert sorted(map(len, stored)) == [10, 10, 10, 11]
            assert one.partition is not None
            assert one.offset == len(stored[one.partition]) - 1


@on_both_loops
async def test_closing_the_client_ends_a_wait_for_room_with_an_error(peer: Peer) -> None:
    async with anyio.create_task_group() as tasks:
        failed: list[LinnError] = []
        async with linn.connect(peer.url, backoff_s=0.01) as client:
            producer = await client.producer("t", buffer_bytes_max=1).__aenter__()

            async def publish() -> None:
                try:
                    await producer.publish(b"in vain")
                except LinnError as error:
                    failed.append(error)

            del peer.answers[m.Publish], peer.answers[m.Hello]
            tasks.start_soon(publish)
            await peer.until(lambda: bool(peer.messages(m.Publish)))
            tasks.start_soon(publish)
            await anyio.wait_all_tasks_blocked()
            await peer.cut()
            while client._connector.usable is not None:
                await anyio.sleep(0.001)
        with anyio.fail_after(30):
            while len(failed) < 2:
                await anyio.sleep(0.001)
            await publish()
        # What was sent is lost with its connection, where that is noticed before the client is closed.
        assert {type(error) for error in failed} <= {ClientClosed, ConnectionLost}
        assert isinstance(failed[-1], ClientClosed)
