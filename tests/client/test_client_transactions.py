"""Transactions of the async client: publishes, acks and offsets take effect together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import anyio
import pytest
from both_loops import on_both_clients, on_both_loops

import linn
from linn.client import Batch, Client
from linn.core.errors.tree import (
    LimitExceeded,
    LinnError,
    MessageInvalid,
    SubscriptionWrongKind,
    TransactionAborted,
    TransactionError,
    TransactionFenced,
    Unroutable,
)
from linn.testing.broker_thread import BrokerThread

CONFIG = """
[exchanges.events]
type = "topic"
"""


@pytest.fixture(scope="module")
def running() -> Iterator[BrokerThread]:
    with BrokerThread(CONFIG) as running:
        yield running


@pytest.fixture
def broker(running: BrokerThread) -> str:
    return running.url


async def filled(client: Client, name: str, *, count: int = 3, kind: Any = "queue", partitions: int = 1) -> None:
    """A source with records, and a sink that is a stream and a queue."""
    await client.admin.create_topic(name, kind=kind, partitions=partitions)
    await client.admin.create_topic(f"{name}-out", kind="both")
    async with client.producer(name) as producer:
        await producer.publish_many([b"%d" % number for number in range(count)])


async def values(client: Client, topic: str) -> list[bytes | None]:
    return [value for batch in (await client.fetch(topic, 0, 0)).batches for value in batch.values]


async def unsettled(client: Client, topic: str) -> int:
    queue = (await client.admin.topic(topic))["queue"]
    assert queue is not None
    return queue["unsettled"]


async def committed(client: Client, group: str) -> list[int | None]:
    return [entry["offset"] for entry in (await client.admin.group(group))["offsets"]]


@on_both_clients
async def test_a_block_publishes_to_topics_and_through_an_exchange_when_it_ends(client: Client, name: str) -> None:
    await filled(client, name)
    await client.admin.create_topic(f"{name}-more", kind="both")
    await client.admin.bind("events", f"{name}-more", f"{name}.#")
    async with client.transaction(f"{name}-tx") as tx:
        assert tx.name == f"{name}-tx"
        receipt = await tx.publish(f"{name}-out", b"one", key=b"k", labels={"n": 1})
        assert (receipt.topic, receipt.partition, receipt.offset) == (f"{name}-out", 0, 0)
        assert (await tx.publish_many(f"{name}-out", [b"two", b"three"])).count == 2
        (await tx.producer(f"{name}-out")).publish_nowait(b"four")
        await tx.publish(None, b"five", exchange="events", routing_key=f"{name}.a")
        await tx.publish_many(None, [b"six"], exchange="events", routing_keys=f"{name}.b")
        assert await values(client, f"{name}-out") == await values(client, f"{name}-more") == []
    assert await values(client, f"{name}-out") == [b"one", b"two", b"three", b"four"]
    assert await values(client, f"{name}-more") == [b"five", b"six"]
    (batch,) = (await client.fetch(f"{name}-out", 0, 0)).batches[:1]
    (message, *_) = batch
    assert (message.key, dict(message.labels)) == (b"k", {"n": 1})


@on_both_clients
async def test_a_block_that_raises_or_aborts_leaves_nothing(client: Client, name: str) -> None:
    await filled(client, name)
    async with client.consumer(name, prefetch=100) as consumer:
        for error in (ZeroDivisionError, KeyboardInterrupt, None):
            batch = await consumer.next_batch()
            with pytest.raises(error) if error else nullcontext():
                async with client.transaction(f"{name}-tx") as tx:
                    await tx.publish(f"{name}-out", b"lost")
                    tx.ack(batch)
                    if error is not None:
                        raise error
                    await tx.abort()
                    await tx.abort()
        again = await consumer.next_batch()
        assert again.values == [b"0", b"1", b"2"]
        assert [message.attempt for message in again] == [4, 4, 4]
    assert await values(client, f"{name}-out") == []
    async with client.transaction(f"{name}-tx") as tx:
        await tx.publish(f"{name}-out", b"kept")
    assert await values(client, f"{name}-out") == [b"kept"]


@on_both_clients
async def test_acks_of_messages_and_of_a_batch_take_effect_with_the_commit(client: Client, name: str) -> None:
    await filled(client, name, count=8)
    async with client.consumer(name, prefetch=100) as consumer:
        messages = [await anext(consumer) for _ in range(5)]
        async with client.transaction(f"{name}-tx") as tx:
            for message in (messages[0], messages[1], messages[3]):
                tx.ack(message)
            await tx.publish(f"{name}-out", b"made")
            assert await unsettled(client, name) == 8
        assert await unsettled(client, name) == 5
        messages[2].ack()
        await messages[4].ack()
        assert await unsettled(client, name) == 3
    async with client.consumer(name, prefetch=100) as consumer:
        batch = await consumer.next_batch()
        assert batch.values == [b"5", b"6", b"7"]
        async with client.transaction(f"{name}-tx") as tx:
            tx.ack(batch)
    assert await unsettled(client, name) == 0
    assert await values(client, f"{name}-out") == [b"made"]


@on_both_clients
async def test_the_offset_of_a_group_moves_with_the_commit_and_goes_back_with_an_abort(
    client: Client, name: str
) -> None:
    await filled(client, name, kind="stream")
    async with client.consumer(name, name) as member:
        batch = await member.next_batch()
        assert batch.values == [b"0", b"1", b"2"]
        async with client.transaction(f"{name}-tx") as tx:
            tx.commit(batch)
            await tx.abort()
        assert await committed(client, name) == [None]
        again = await member.next_batch()
        assert again.values == [b"0", b"1", b"2"], "it comes again"
        async with client.transaction(f"{name}-tx") as tx:
            tx.commit(next(iter(again)))
            await tx.publish(f"{name}-out", b"made")
        assert await committed(client, name) == [1]
        async with client.transaction(f"{name}-tx") as tx:
            tx.commit(again)
        assert await committed(client, name) == [3]
    assert await values(client, f"{name}-out") == [b"made"]


@pytest.mark.parametrize("group", [False, True])
@on_both_loops
async def test_all_batches_of_an_aborted_transaction_come_again(client: Client, name: str, group: bool) -> None:
    await filled(client, name, kind="stream" if group else "queue")
    async with client.producer(name) as producer:
        await producer.publish_many([b"3", b"4"])
    async with client.consumer(name, name if group else None, prefetch=100) as consumer:
        batches = [await consumer.next_batch() for _ in range(2)]
        assert [len(batch) for batch in batches] == [3, 2]
        async with client.transaction(f"{name}-tx") as tx:
            for batch in batches:
                (tx.commit if group else tx.ack)(batch)
            await tx.abort()
        found = sorted([(await anext(consumer)).text for _ in range(5)])
        assert found == ["0", "1", "2", "3", "4"]


@on_both_clients
async def test_only_what_was_received_in_such_a_way_is_settled(client: Client, name: str) -> None:
    await filled(client, name, kind="both")
    fetched = (await client.fetch(name, 0, 0)).batches[0]
    async with client.consumer(name, prefetch=100) as consumer, client.transaction(f"{name}-tx") as tx:
        batch = await consumer.next_batch()
        for wrong in (lambda: tx.commit(batch), lambda: tx.ack(fetched), lambda: tx.commit(fetched)):
            with pytest.raises(SubscriptionWrongKind):
                wrong()
        for settle in (tx.ack, tx.commit):
            with pytest.raises(MessageInvalid):
                settle(b"0")  # type: ignore[arg-type]
        for target in ((None, None), ("a", "b")):
            with pytest.raises(TransactionError):
                await tx.producer(target[0], exchange=target[1])
        await tx.abort()
    for wrong_name in ("", "\ud800", 7):
        with pytest.raises(MessageInvalid):
            client.transaction(wrong_name)  # type: ignore[arg-type]


@on_both_loops
async def test_a_transaction_that_was_open_for_too_long_is_aborted(
    running: BrokerThread, client: Client, name: str
) -> None:
    await filled(client, name)

    async def too_long(then: str) -> None:
        async with client.transaction(f"{name}-tx", timeout_s=30) as tx:
            await tx.publish(f"{name}-out", b"lost")
            async with client.producer(f"{name}-out") as producer:
                await producer.publish(b"plain")
            running.advance(seconds=31)
            while not await values(client, f"{name}-out"):  # What is behind it waits for its end.
                await anyio.sleep(0)
            if then == "publish":
                await tx.publish(f"{name}-out", b"late")

    for then in ("commit", "publish"):
        with pytest.raises(TransactionAborted, match="timeout"):
            await too_long(then)
    assert set(await values(client, f"{name}-out")) == {b"plain"}
    async with client.transaction(f"{name}-tx") as tx:
        await tx.publish(f"{name}-out", b"kept")
    assert b"kept" in await values(client, f"{name}-out")


@pytest.mark.parametrize("at", ["publish", "producer", "ack", "offset", "commit"])
@on_both_loops
async def test_a_second_client_of_the_name_fences_the_first(client: Client, other: Client, name: str, at: str) -> None:
    await filled(client, name, kind="stream" if at == "offset" else "queue")
    async with client.consumer(name, name if at == "offset" else None) as consumer:
        batch = await consumer.next_batch()

        async def work(tx: linn.client.Transaction) -> None:
            await tx.publish(f"{name}-out", b"zombie")
            async with other.transaction(f"{name}-tx") as its:
                await its.publish(f"{name}-out", b"owner")
            if at == "publish":
                with pytest.raises(TransactionFenced):
                    await tx.publish(f"{name}-out", b"zombie")
                with pytest.raises(TransactionFenced):
                    await tx.publish_many(f"{name}-out", [b"zombie"])
            elif at == "producer":
                (await tx.producer(f"{name}-out")).publish_nowait(b"zombie")
            elif at == "ack":
                tx.ack(batch)
            elif at == "offset":
                tx.commit(batch)

        with pytest.raises(TransactionFenced):
            async with client.transaction(f"{name}-tx") as tx:
                await work(tx)
        with pytest.raises(TransactionFenced):
            async with client.transaction(f"{name}-tx"):
                pass
    assert await values(client, f"{name}-out") == [b"owner"]
    if at == "ack":
        assert await unsettled(client, name) == 3


@on_both_loops
async def test_a_block_that_is_cancelled_is_aborted(client: Client, name: str) -> None:
    await filled(client, name)
    async with client.consumer(name, prefetch=100) as consumer:
        batch = await consumer.next_batch()
        with anyio.CancelScope() as scope:
            async with client.transaction(f"{name}-tx") as tx:
                await tx.publish(f"{name}-out", b"lost")
                tx.ack(batch)
                scope.cancel()
                await anyio.sleep_forever()
        assert (await consumer.next_batch()).values == [b"0", b"1", b"2"]
    async with client.producer(f"{name}-out") as producer:
        await producer.publish(b"plain")
    assert await values(client, f"{name}-out") == [b"plain"], "nothing is open that would hold it back"


@on_both_loops
async def test_tasks_publish_in_one_transaction(client: Client, name: str) -> None:
    await filled(client, name)
    async with client.transaction(f"{name}-tx") as tx, anyio.create_task_group() as tasks:

        async def work(first: int) -> None:
            for number in range(first, first + 10):
                await tx.publish(f"{name}-out", b"%d" % number)

        for first in (0, 10, 20):
            tasks.start_soon(work, first)
    found = [int(value or b"") for value in await values(client, f"{name}-out")]
    assert sorted(found) == list(range(30))
    for first in (0, 10, 20):
        assert [number for number in found if first <= number < first + 10] == list(range(first, first + 10))


@on_both_loops
async def test_nothing_is_done_in_a_transaction_that_has_ended(client: Client, name: str) -> None:
    await filled(client, name)
    batch: Batch
    async with client.consumer(name, prefetch=100) as consumer:
        batch = await consumer.next_batch()
        async with client.transaction(f"{name}-tx") as tx:
            producer = await tx.producer(f"{name}-out")
            await producer.publish(b"kept")
        for late in (tx.publish(f"{name}-out", b""), tx.publish_many(f"{name}-out", [b""]), tx.producer("t")):
            with pytest.raises(TransactionError, match="has ended"):
                await late
        for settle in (tx.ack, tx.commit):
            with pytest.raises(TransactionError, match="has ended"):
                settle(batch)
        with pytest.raises(TransactionError):
            await producer.publish(b"late")
        with pytest.raises(TransactionError):
            await producer.publish_many([b"late"])
        not_entered = client.transaction(f"{name}-tx")
        with pytest.raises(TransactionError, match="not entered"):
            not_entered.ack(batch)
        async with client.transaction(f"{name}-tx") as tx:
            await tx.publish(f"{name}-out", b"next")
    assert await values(client, f"{name}-out") == [b"kept", b"next"]


@on_both_loops
async def test_a_name_has_one_transaction_at_a_time(client: Client, name: str) -> None:
    await filled(client, name)
    async with client.transaction(f"{name}-tx") as tx:
        await tx.publish(f"{name}-out", b"outer")
        with pytest.raises(TransactionError, match="is open"):
            async with client.transaction(f"{name}-tx"):
                pass
        async with client.transaction(f"{name}-other") as other:
            await other.publish(f"{name}-out", b"another name")
    assert await values(client, f"{name}-out") == [b"outer", b"another name"]


@on_both_clients
async def test_a_message_that_is_not_stored_makes_the_commit_raise(client: Client, name: str) -> None:
    await filled(client, name)

    async def work() -> None:
        async with client.transaction(f"{name}-tx") as tx:
            await tx.publish(f"{name}-out", b"lost")
            nobody = await tx.producer(exchange="events")
            nobody.publish_nowait(b"nobody", routing_key="no.where", mandatory=True)

    with pytest.raises(Unroutable):
        await work()
    async with client.transaction(f"{name}-tx") as tx:
        await tx.publish(f"{name}-out", b"kept")
    assert await values(client, f"{name}-out") == [b"kept"]


@on_both_loops
async def test_a_transaction_follows_one_whose_marks_take_turns_with_other_work(
    broker: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("linn.core.transactions.ending.MARKED_AT_ONCE", 1)
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream", partitions=8)
        job = client.shared_transactions(f"{name}-job", run=7)
        for sequence in (1, 1, 2, 2, 3):  # A sequence that has taken effect is aborted.
            ticket = await job.join()
            async with job.producer(ticket, name) as producer:
                for partition in range(8):
                    await producer.publish_many([b"%d" % sequence], partition=partition)
            await job.commit(ticket, [producer.id], sequence=sequence)
        for raises in (True, False, True, False):
            with pytest.raises(ZeroDivisionError) if raises else anyio.CancelScope():
                async with client.transaction(f"{name}-tx") as tx:
                    for partition in range(8):
                        await (await tx.producer(name)).publish_many([b"4"], partition=partition)
                    assert 1 / (not raises)
        for partition in range(8):
            batches = (await client.fetch(name, partition, 0)).batches
            assert [value for batch in batches for value in batch.values] == [b"1", b"2", b"3", b"4", b"4"]


@pytest.mark.parametrize("limit", ["PLACES_MAX", "BRANCHES_MAX", "OFFSETS_MAX"])
@on_both_loops
async def test_a_transaction_has_its_limits(
    broker: str, name: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"linn.core.transactions.producer.{limit}", 2)
    async with linn.connect(broker) as client:
        await client.admin.create_topic(name, kind="stream", partitions=3)
        async with client.producer(name) as producer:
            keys = [b"%d" % number for number in range(30)]
            await producer.publish_many(keys, keys=keys)

        async def work(tx: linn.client.Transaction) -> None:
            if limit == "PLACES_MAX":
                await tx.publish_many(name, keys, keys=keys)
            elif limit == "BRANCHES_MAX":
                for number in range(3):
                    await client.admin.create_topic(f"{name}-{number}")
                    await tx.publish(f"{name}-{number}", b"")
            else:
                async with client.consumer(name, name) as member:
                    partitions = set()
                    while len(partitions) < 3:
                        batch = await member.next_batch()
                        partitions.add(batch.partition)
                        tx.commit(batch)
                    await tx._commit()

        with pytest.raises(LimitExceeded) as caught:
            async with client.transaction(f"{name}-tx") as tx:
                await work(tx)
        assert caught.value.code == "limit.exceeded"
        monkeypatch.undo()
        assert isinstance(caught.value, LinnError)
        async with client.transaction(f"{name}-tx") as tx:
            await tx.publish(name, b"kept")
