"""Transactions that several processes write and one commits: only what it names counts, and each commit once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import anyio
import anyio.to_thread
import pytest
from both_loops import on_both_loops
from relay import Restartable, restartable

import linn
from linn.client import Client, SharedTransactions, TransactionTicket
from linn.core.errors.tree import (
    LimitExceeded,
    LinnError,
    MessageInvalid,
    PartitionUnknown,
    SequenceTaken,
    TransactionError,
    TransactionFenced,
)

CONFIG = """
[storage.segmented-log]
fsync = "always"
[broker]
default_storage = "segmented-log"
[topics.made]
kind = "stream"
[topics.parts]
kind = "stream"
partitions = 3
[exchanges.news]
type = "topic"
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Restartable]:
    with restartable(tmp_path, CONFIG) as broker:
        yield broker


def url(broker: Restartable) -> str:
    return f"linn://{broker.address}"


async def restart(broker: Restartable) -> None:
    await anyio.to_thread.run_sync(broker.stop)
    await anyio.to_thread.run_sync(broker.start)


def transactions(client: Client, run: int = 1) -> SharedTransactions:
    return client.shared_transactions("job", run=run)


async def write(client: Client, ticket: TransactionTicket, *values: bytes) -> int:
    """Publish as one attempt of a task does; return its producer."""
    async with transactions(client).producer(ticket, "made") as producer:
        await producer.publish_many(values)
    return producer.id


async def made(client: Client) -> list[bytes | None]:
    end = await client.find_offset("made", 0, "latest")
    found, offset = [], 0
    while offset < end:
        fetched = await client.fetch("made", 0, offset)
        found += [value for batch in fetched.batches for value in batch.values]
        offset = fetched.next_offset
    return found


@on_both_loops
async def test_all_processes_of_a_run_write_one_transaction_and_only_what_is_named_counts(broker: Restartable) -> None:
    async with (
        linn.connect(url(broker)) as driver,
        linn.connect(url(broker)) as task,
        linn.connect(url(broker)) as other,
    ):
        ticket = await transactions(task).join()
        assert ticket == await transactions(other).join() == await transactions(driver).join()
        won, failed = await write(task, ticket, b"1", b"2"), await write(task, ticket, b"1")
        third = await write(other, ticket, b"3")
        assert len({won, failed, third}) == 3
        assert await made(driver) == []
        await transactions(driver).commit(ticket, [won, third], sequence=1)
        assert await made(driver) == [b"1", b"2", b"3"]
        assert (await transactions(driver).join()).number == ticket.number + 1


@on_both_loops
async def test_a_sequence_takes_effect_once_also_after_a_restart_and_in_another_run(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client:
        first = await transactions(client).join()
        await transactions(client).commit(first, [await write(client, first, b"1")], sequence=5, identity="one")
    await restart(broker)
    async with linn.connect(url(broker)) as client:
        for run in (1, 2):
            shared = transactions(client, run)
            again = await shared.join()
            await shared.commit(again, [await write(client, again, b"again")], sequence=5, identity="one")
        following = await transactions(client, 2).join()
        await transactions(client, 2).commit(following, [await write(client, following, b"2")], sequence=6)
        assert await made(client) == [b"1", b"2"]


@on_both_loops
async def test_another_commit_under_a_sequence_that_was_used_is_refused_and_leaves_nothing(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client:
        shared = transactions(client)
        for sequence in (5, 6):
            ticket = await shared.join()
            producer = await write(client, ticket, b"%d" % sequence)
            await shared.commit(ticket, [producer], sequence=sequence, identity=f"rows of {sequence}")
    await restart(broker)
    async with linn.connect(url(broker)) as client:
        shared = transactions(client, 2)
        for sequence, identity in ((6, "other rows"), (6, ""), (5, "rows of 5"), (1, "")):
            ticket = await shared.join()
            producer = await write(client, ticket, b"other")
            with pytest.raises(SequenceTaken, match="has committed sequence 6"):
                await shared.commit(ticket, [producer], sequence=sequence, identity=identity)
        ticket = await shared.join()
        with pytest.raises(LimitExceeded, match="identity of a commit is longer than 200 characters"):
            await shared.commit(ticket, [], sequence=7, identity="x" * 201)
        await shared.commit(ticket, [], sequence=7)  # Nothing was written, and the sequence counts all the same.
        ticket = await shared.join()
        with pytest.raises(SequenceTaken, match="has committed sequence 7"):
            await shared.commit(ticket, [], sequence=6, identity="rows of 6")
        assert await made(client) == [b"5", b"6"]


@on_both_loops
async def test_a_later_run_fences_the_one_before_and_aborts_what_it_left(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client:
        old = await transactions(client, 1).join()
        left = await write(client, old, b"left")
        new = await transactions(client, 2).join()
        with pytest.raises(TransactionFenced):
            await transactions(client, 1).join()
        with pytest.raises(TransactionFenced):
            await transactions(client, 1).commit(old, [left], sequence=1)
        with pytest.raises(LinnError):
            await write(client, old, b"late")
        await transactions(client, 2).commit(new, [await write(client, new, b"new")], sequence=1)
        assert await made(client) == [b"new"]


@on_both_loops
async def test_what_was_written_before_a_restart_of_the_broker_counts(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client:
        ticket = await transactions(client).join()
        before = await write(client, ticket, b"before")
        await write(client, ticket, b"does not count")
    await restart(broker)
    async with linn.connect(url(broker)) as client:
        assert await transactions(client).join() == ticket, "the run goes on"
        after = await write(client, ticket, b"after")
    await restart(broker)
    async with linn.connect(url(broker)) as client:
        await transactions(client).commit(ticket, [before, after], sequence=1)
        assert sorted(await made(client)) == [b"after", b"before"]


@on_both_loops
async def test_a_commit_is_not_undone_by_an_abort_that_comes_later(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client:
        ticket = await transactions(client).join()
        await transactions(client).commit(ticket, [await write(client, ticket, b"1")], sequence=1)
        with pytest.raises(TransactionError):
            await transactions(client).abort(ticket)
        ticket = await transactions(client).join()
        await write(client, ticket, b"2")
        await transactions(client).abort(ticket)
        await transactions(client).abort(ticket)
        assert await made(client) == [b"1"]


@on_both_loops
async def test_many_attempts_one_after_the_other_need_no_new_name(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client:
        for number in range(6):
            ticket = await transactions(client).join()
            producers = [await write(client, ticket, b"%d" % number) for _ in range(200)]
            await transactions(client).commit(ticket, producers[-1:], sequence=number + 1)
        assert await made(client) == [b"%d" % number for number in range(6)]


@on_both_loops
async def test_messages_go_to_the_partition_that_is_named(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client, client.producer("parts") as producer:
        receipt = await producer.publish_many([b"1", b"2"], keys=[b"a", b"b"], partition=2)
        assert [*receipt.partitions] == [2]
        with pytest.raises(PartitionUnknown):
            await producer.publish_many([b"1"], partition=3)
        with pytest.raises(MessageInvalid):
            await producer.publish_many([b"1"], partition=-1)
        async with client.producer(exchange="news") as exchange:
            with pytest.raises(MessageInvalid):
                await exchange.publish_many([b"1"], partition=0)


@on_both_loops
async def test_a_run_is_a_number_of_64_bits(broker: Restartable) -> None:
    async with linn.connect(url(broker)) as client:
        for run in (0, -1, 1 << 64, "1"):
            with pytest.raises(MessageInvalid, match="run"):
                client.shared_transactions("job", run=cast(int, run))
