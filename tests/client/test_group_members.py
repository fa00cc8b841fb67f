"""Members of a consumer group: partitions that move, names, and sessions."""

from __future__ import annotations

import anyio
import pytest
from both_loops import on_both_loops

import linn
from linn.client import Client
from linn.core.errors.tree import GroupFenced, MessageInvalid

Client = Client


async def made(client: Client, name: str) -> None:
    """A stream of two partitions with some records in each."""
    await client.admin.create_topic(name, kind="stream", partitions=2)
    async with client.producer(name) as producer:
        keys = [b"%d" % number for number in range(20)]
        await producer.publish_many(keys, keys=keys)


async def until_owned(consumer: linn.client.Consumer, count: int) -> None:
    while sum(map(len, consumer.partitions.values())) != count:
        await anyio.sleep(0)


@on_both_loops
async def test_a_partition_moves_when_the_application_has_done_with_its_records(
    client: Client, other: Client, name: str
) -> None:
    await made(client, name)
    async with client.consumer(name, name, prefetch=10) as one:
        held = {message.partition: message async for message in _first_of_each(one)}
        async with other.consumer(name, name) as two:
            while one.partitions == {name: [0, 1]}:
                await anyio.sleep(0)
            while not two.partitions:  # Another broker may tell the second member a little later.
                await anyio.sleep(0)
            assert two.partitions == {name: []}, "the application of the first may still work on the records"
            (moving,) = {0, 1} - set(one.partitions[name])
            held[moving].ack()
            while not two.partitions[name]:  # The rest of a batch may be of the other partition.
                with anyio.move_on_after(0.01):
                    await anext(one)
            found = await anext(two)
            assert (found.partition, found.offset) == (moving, held[moving].offset + 1)
            with pytest.raises(GroupFenced):
                await held[moving].ack()


async def _first_of_each(consumer: linn.client.Consumer):  # type: ignore[no-untyped-def]
    seen: set[int] = set()
    async for message in consumer:
        if message.partition not in seen:
            seen.add(message.partition)
            yield message
        if len(seen) == 2:
            return


@on_both_loops
async def test_an_idle_member_lets_go_at_once(client: Client, other: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=2)
    async with client.consumer(name, name) as one, other.consumer(name, name) as two:
        await until_owned(one, 1)
        await until_owned(two, 1)


@on_both_loops
async def test_a_name_belongs_to_one_consumer_of_a_group(client: Client, other: Client, name: str) -> None:
    await made(client, name)
    async with client.consumer(name, name, name="ann") as one:
        await anext(one)
        async with other.consumer(name, name, name="ann") as two:
            await until_owned(two, 2)
            shown = (await client.admin.group(name))["offsets"]
            assert [row["member"] for row in shown] == ["ann", "ann"]
            with pytest.raises(GroupFenced):
                async for _ in one:
                    pass


@on_both_loops
async def test_a_member_reads_two_topics_with_two_consumers_of_its_name(client: Client, name: str) -> None:
    names = [f"{name}.a", f"{name}.b"]
    for each in names:
        await made(client, each)
    async with (
        client.consumer(names[0], name, name="ann") as one,
        client.consumer(names[1], name, name="ann") as two,
    ):
        for consumer in (one, two):
            await (await anext(consumer)).ack()
            assert consumer.partitions == {consumer.topics[0]: [0, 1]}
        shown = await client.admin.group(name)
        assert (shown["topics"], [member["member"] for member in shown["members"]]) == (names, ["ann"])


@on_both_loops
async def test_one_consumer_reads_several_topics_as_one_member(client: Client, other: Client, name: str) -> None:
    names = [f"{name}.a", f"{name}.b"]
    for each in names:
        await made(client, each)
    async with client.consumer(names, name, name="ann") as one:
        found = [await anext(one) for _ in range(40)]
        assert {(message.topic, message.partition) for message in found} == {(n, p) for n in names for p in (0, 1)}
        await until_owned(one, 4)
        async with other.consumer(names, name, name="bob") as two:
            joined = anyio.create_task_group()
            async with joined:
                joined.start_soon(anext, one, None)
                await until_owned(two, 2)
                joined.cancel_scope.cancel()
            assert sorted(names) == sorted(one.partitions) == sorted(two.partitions)
            shares = [(n, p) for each in (one, two) for n, owned in each.partitions.items() for p in owned]
            assert sorted(shares) == [(n, p) for n in names for p in (0, 1)]


@pytest.mark.parametrize(("topics", "group"), [([], "g"), (["a", "a"], "g"), (["a", "b"], None), ([1], "g")])
@on_both_loops
async def test_topics_that_make_no_sense_are_refused(client: Client, topics: list[str], group: str | None) -> None:
    with pytest.raises(MessageInvalid):
        client.consumer(topics, group)


@on_both_loops
async def test_a_static_consumer_finds_its_partitions_again(client: Client, other: Client, name: str) -> None:
    await made(client, name)
    async with other.consumer(name, name, name="bob") as stays:
        async with client.consumer(name, name, name="ann", static=True) as one:
            await until_owned(stays, 1)
            await until_owned(one, 1)
            share = one.partitions
        async with client.consumer(name, name, name="ann", static=True) as one:
            await until_owned(one, 1)
            assert one.partitions == share
        assert len(stays.partitions[name]) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"static": True},
        {"static": True, "name": "ann", "session_timeout_s": 0},
        {"session_timeout_s": -1},
        {"session_timeout_s": 1e6},
        {"name": "\ud800"},
    ],
)
@on_both_loops
async def test_a_membership_that_makes_no_sense_is_refused(client: Client, options: dict[str, object]) -> None:
    with pytest.raises(MessageInvalid):
        client.consumer("t", "g", **options)  # type: ignore[arg-type]
