"""Transactions of a client whose broker, connection or patience ends in the middle: everything or nothing, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from both_loops import on_both_loops
from relay import Relay, Restartable, restartable, running_relay

import linn
from linn.client import Client
from linn.core.errors.tree import (
    RequestTimeout,
    TransactionFenced,
)
from linn.wire import messages as m

CONFIG = """
[storage.segmented-log]
fsync = "always"
[broker]
default_storage = "segmented-log"
[topics.jobs]
[topics.visits]
kind = "stream"
[topics.made]
kind = "both"
"""
READ = [b"0", b"1", b"2"]


@asynccontextmanager
async def apart(broker: Restartable, request_timeout_s: float = 30.0) -> AsyncIterator[tuple[Relay, Client, Client]]:
    """A relay, a client behind it, and one that is connected directly."""
    async with running_relay(broker.address) as relay:
        options = {"request_timeout_s": request_timeout_s, "backoff_s": 0.001}
        async with linn.connect(relay.url, **options) as client, linn.connect(f"linn://{broker.address}") as direct:
            yield relay, client, direct


async def filled(client: Client, topic: str) -> None:
    async with client.producer(topic) as producer:
        await producer.publish_many(READ)


async def made(client: Client) -> list[bytes | None]:
    return [value for batch in (await client.fetch("made", 0, 0)).batches for value in batch.values]


async def until_made(client: Client, *values: bytes) -> None:
    while await made(client) != [*values]:
        await anyio.sleep(0.01)


async def state(client: Client, group: str | None) -> int:
    """The number of records that are settled, of a queue or by a group."""
    if group is None:
        queue = (await client.admin.topic("jobs"))["queue"]
        assert queue is not None
        return len(READ) - queue["unsettled"]
    return (await client.admin.group(group))["offsets"][0]["offset"] or 0


def settle(tx: linn.client.Transaction, batch: linn.client.Batch, group: str | None) -> None:
    (tx.ack if group is None else tx.commit)(batch)


async def commit_in_doubt(
    client: Client, relay: Relay, fault: str, value: bytes, batch: linn.client.Batch, group: str | None
) -> None:
    """Commit a transaction, to whose end something happens on the way."""
    async with client.transaction("tx") as tx:
        await tx.publish("made", value)
        settle(tx, batch, group)
        setattr(relay, fault, m.EndTransaction)


@on_both_loops
async def test_a_transaction_goes_on_over_a_restart_of_the_broker(tmp_path: Path) -> None:
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker) as (relay, client, _):
            await filled(client, "jobs")

            async def work(at: str) -> None:
                async with client.transaction("tx") as tx:
                    await tx.publish("made", b"before")
                    await anyio.to_thread.run_sync(broker.stop)
                    await relay.cut()
                    await anyio.to_thread.run_sync(broker.start)
                    relay.address = broker.address
                    if at == "publish":
                        await tx.publish("made", b"after")
                    elif at == "nowait":
                        (await tx.producer("made")).publish_nowait(b"after")

            expected: list[bytes] = []
            for round, at in enumerate(("commit", "publish", "nowait")):
                await work(at)
                expected += [b"before", *([b"after"] if at != "commit" else []), b"%d" % round]
                async with client.consumer("jobs") as consumer, client.transaction("tx") as tx:
                    await tx.publish("made", b"%d" % round)
                    tx.ack(await anext(consumer))
                assert await state(client, None) == round + 1
            assert await made(client) == expected


@pytest.mark.parametrize(("group", "loses"), [(None, "loses"), (None, "loses_answer_to"), ("g", "loses_answer_to")])
@on_both_loops
async def test_the_decision_is_asked_for_again_when_the_connection_ends(
    tmp_path: Path, group: str | None, loses: str
) -> None:
    topic = "visits" if group else "jobs"
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker) as (relay, client, direct):
            await filled(client, topic)
            async with client.consumer(topic, group, prefetch=100) as consumer:
                batch = await consumer.next_batch()
                async with client.transaction("tx") as tx:
                    await tx.publish("made", b"made")
                    settle(tx, batch, group)
                    setattr(relay, loses, m.EndTransaction)
                assert relay.loses is relay.loses_answer_to is None, "the connection was cut"
                assert await state(direct, group) == 3
                async with client.transaction("tx") as tx:
                    await tx.publish("made", b"next")
                async with client.producer(topic) as producer:
                    await producer.publish(b"3")
                assert (await anext(consumer)).value == b"3", "what was settled does not come again"
            assert await made(client) == [b"made", b"next"]


@on_both_loops
async def test_a_commit_whose_request_is_lost_with_the_members_connection_takes_effect(tmp_path: Path) -> None:
    """The member's share was given up with the connection. Its next owner waits for the end of the transaction."""
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker) as (relay, client, direct):
            await filled(client, "visits")
            async with client.consumer("visits", "g", prefetch=100, session_timeout_s=0) as consumer:
                batch = await consumer.next_batch()
                async with client.transaction("tx") as tx:
                    await tx.publish("made", b"made")
                    tx.commit(batch)
                    relay.loses = m.EndTransaction
                assert await state(direct, "g") == 3
                async with client.producer("visits") as producer:
                    await producer.publish(b"3")
                assert (await anext(consumer)).value == b"3"
            assert await made(client) == [b"made"]


@on_both_loops
async def test_a_name_that_is_opened_again_after_a_lost_answer_does_not_fence_itself(tmp_path: Path) -> None:
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker) as (relay, client, _):
            relay.loses_answer_to = m.OpenTransactions
            for value in (b"one", b"two"):
                async with client.transaction("tx") as tx:
                    await tx.publish("made", value)
            assert sum(isinstance(seen, m.OpenTransactions) for seen in relay.seen) == 2
            assert await made(client) == [b"one", b"two"]


@pytest.mark.parametrize("group", [None, "readers"])
@on_both_loops
async def test_a_commit_that_is_cancelled_takes_effect_or_not_and_nothing_is_read_twice(
    tmp_path: Path, group: str | None
) -> None:
    """The answer is held back. When it is there, the commit has gone through."""
    topic = "visits" if group else "jobs"
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker) as (relay, client, direct):
            await filled(client, topic)
            async with client.consumer(topic, group, prefetch=100) as consumer:
                batch = await consumer.next_batch()
                async with anyio.create_task_group() as tasks:

                    async def work() -> None:
                        with anyio.CancelScope() as scope:
                            async with client.transaction("tx") as tx:
                                await tx.publish("made", b"made")
                                settle(tx, batch, group)
                                relay.holds_answer_to = m.EndTransaction
                                tasks.start_soon(cancel_later, scope)
                        assert scope.cancelled_caught

                    async def cancel_later(scope: anyio.CancelScope) -> None:
                        await until_made(direct, b"made")
                        scope.cancel()

                    tasks.start_soon(work)
                assert await state(direct, group) == 3
                relay.let_go()
                async with client.transaction("tx") as tx:
                    await tx.publish("made", b"next")
                async with client.producer(topic) as producer:
                    await producer.publish(b"3")
                assert (await anext(consumer)).value == b"3"
            assert await made(client) == [b"made", b"next"]


@pytest.mark.parametrize("group", [None, "readers"])
@on_both_loops
async def test_after_a_commit_in_doubt_nothing_that_was_committed_is_read_again(
    tmp_path: Path, group: str | None
) -> None:
    topic = "visits" if group else "jobs"
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker, request_timeout_s=1) as (relay, client, direct):
            await filled(client, topic)
            async with client.consumer(topic, group, prefetch=100) as consumer:
                batch = await consumer.next_batch()

                with pytest.raises(RequestTimeout):
                    await commit_in_doubt(client, relay, "holds_answer_to", b"made", batch, group)
                assert await state(direct, group) == 3, "it went through"
                relay.let_go()
                async with client.producer(topic) as producer:
                    await producer.publish(b"3")
                assert (await anext(consumer)).value == b"3"
            assert await made(client) == [b"made"]


@pytest.mark.parametrize("group", [None, "readers"])
@on_both_loops
async def test_after_a_commit_in_doubt_that_did_not_go_through_everything_comes_again(
    tmp_path: Path, group: str | None
) -> None:
    topic = "visits" if group else "jobs"
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker, request_timeout_s=1) as (relay, client, direct):
            await filled(client, topic)
            async with client.consumer(topic, group, prefetch=100) as consumer:
                batch = await consumer.next_batch()

                with pytest.raises(RequestTimeout):
                    await commit_in_doubt(client, relay, "stalls_at", b"lost", batch, group)
                assert await state(direct, group) == 0
                await relay.cut()  # What was on its way is lost.
                async with client.transaction("tx") as tx:
                    again = await consumer.next_batch()
                    assert again.values == READ
                    await tx.publish("made", b"made")
                    settle(tx, again, group)
                assert await state(direct, group) == 3
            assert await made(client) == [b"made"]


@on_both_loops
async def test_a_client_that_is_fenced_while_its_commit_is_in_doubt_is_told_so(tmp_path: Path) -> None:
    """Its commit went through. The broker keeps the last commit of a name only, and can't tell it any more."""
    with restartable(tmp_path, CONFIG) as broker:
        async with apart(broker) as (relay, client, direct):

            async def work() -> None:
                async with client.transaction("tx") as tx:
                    await tx.publish("made", b"first")
                    relay.holds_answer_to = m.EndTransaction
                    tasks.start_soon(take_over)

            async def take_over() -> None:
                await until_made(direct, b"first")
                async with direct.transaction("tx") as tx:
                    await tx.publish("made", b"second")
                await relay.cut()
                relay.let_go()

            async with anyio.create_task_group() as tasks:
                with pytest.raises(TransactionFenced):
                    await work()
            assert await made(direct) == [b"first", b"second"]
