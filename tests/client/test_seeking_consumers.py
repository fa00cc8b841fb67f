"""Consumers of streams that go elsewhere, pause, and commit places of their choice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

import anyio
import pytest
from both_loops import on_both_loops
from simulated_time import simulated

import linn
from linn.api import partition_of
from linn.client import Client
from linn.client.consume.start_position import Start
from linn.core.errors.tree import (
    ConnectionLost,
    GroupFenced,
    LimitExceeded,
    LinnError,
    MessageInvalid,
    OffsetOutOfRange,
    PartitionUnknown,
    SubscriptionWrongKind,
)
from linn.testing.plugin_broker import URL, plugin_broker
from linn.testing.sim_env import SimEnv

GROUPS = pytest.mark.parametrize("group", [None, "g"])
COUNT = 20


async def made(client: Client, name: str, partitions: int = 2) -> None:
    """A stream with values "P.N" in each partition P."""
    await client.admin.create_topic(name, kind="stream", partitions=partitions)
    await more(client, name, range(COUNT), partitions)


async def more(client: Client, name: str, numbers: range, partitions: int = 2) -> None:
    keys = {partition: key for key, partition in placed(partitions)}
    async with client.producer(name) as producer:
        for partition, key in keys.items():
            values = [b"%d.%d" % (partition, number) for number in numbers]
            await producer.publish_many(values, keys=[key] * len(values))


def placed(partitions: int) -> list[tuple[bytes, int]]:
    return [(key, partition_of(key, partitions)) for key in (b"%d" % number for number in range(64))]


async def read(consumer: linn.client.Consumer, count: int) -> list[str]:
    return [(await anext(consumer)).text for _ in range(count)]


async def rest(consumer: linn.client.Consumer, wait_s: float = 0.3) -> list[str]:
    """Read until nothing more comes."""
    found: list[str] = []
    while True:
        with anyio.move_on_after(wait_s) as waiting:
            found.append((await anext(consumer)).text)
        if waiting.cancelled_caught:
            return found


def of(partition: int, first: int, end: int = COUNT) -> list[str]:
    return [f"{partition}.{number}" for number in range(first, end)]


@GROUPS
@on_both_loops
async def test_a_seek_in_the_middle_of_a_batch_goes_on_exactly_there(
    client: Client, name: str, group: str | None
) -> None:
    await made(client, name, partitions=1)
    async with client.consumer(name, group) as consumer:
        assert await read(consumer, 3) == of(0, 0, 3)
        places: list[tuple[Start, int]] = [(15, 15), ("earliest", 0), (7, 7), ("latest", COUNT)]
        for to, offset in [*places, (datetime.now(UTC), COUNT), (datetime.fromtimestamp(0, UTC), 0)]:
            assert await consumer.seek(0, to) == offset
            assert await rest(consumer) == of(0, offset), to
        assert await consumer.seek(0, "latest") == COUNT
        await more(client, name, range(COUNT, COUNT + 1), partitions=1)
        assert await read(consumer, 1) == of(0, COUNT, COUNT + 1)


@GROUPS
@on_both_loops
async def test_a_paused_partition_goes_on_with_the_first_record_that_was_not_handed_out(
    client: Client, name: str, group: str | None
) -> None:
    await made(client, name)
    async with client.consumer(name, group) as consumer:
        seen = await read(consumer, 3)
        first = int(seen[0][0])
        await consumer.pause(first)
        assert consumer.paused == {name: [first]}
        seen += await rest(consumer)
        assert sorted(seen) == sorted(of(first, 0, 3) + of(1 - first, 0))
        await more(client, name, range(COUNT, COUNT + 2))
        assert await rest(consumer) == of(1 - first, COUNT, COUNT + 2)
        await consumer.resume(first, 1 - first)
        assert consumer.paused == {}
        assert await rest(consumer) == of(first, 3, COUNT + 2)


@GROUPS
@on_both_loops
async def test_a_paused_partition_that_was_moved_goes_on_at_its_new_place(
    client: Client, name: str, group: str | None
) -> None:
    await made(client, name, partitions=1)
    async with client.consumer(name, group) as consumer:
        await read(consumer, 3)
        await consumer.pause(0)
        assert await consumer.seek(0, 12) == 12
        assert await rest(consumer) == []
        await consumer.resume(0)
        assert await rest(consumer) == of(0, 12)


@GROUPS
@on_both_loops
async def test_a_pause_outlasts_a_reconnection(broker: str, client: Client, name: str, group: str | None) -> None:
    async with linn.connect(broker, name=f"{name}-reader") as other:
        await made(client, name)
        async with other.consumer(name, group) as consumer:
            first = int((await read(consumer, 3))[0][0])
            await consumer.pause(first)
            (theirs,) = [one for one in await client.admin.connections() if one["client"] == f"{name}-reader"]
            await client.admin.close_connection(theirs["number"])
            # What had arrived may have been read before the connection was lost, and a group reads it again.
            assert list(dict.fromkeys(await rest(consumer))) == of(1 - first, 0)
            assert consumer.paused == {name: [first]}
            await consumer.resume(first)
            assert await rest(consumer) == of(first, 0 if group else 3), "nothing was committed"


@on_both_loops
async def test_a_commit_counts_whatever_was_acked_before_it(client: Client, name: str) -> None:
    await made(client, name, partitions=1)
    async with client.consumer(name, name) as consumer:
        for offset in (7, 15, 0):
            (await anext(consumer)).ack()
            await consumer.commit(0, offset)
            assert [row["offset"] for row in (await client.admin.group(name))["offsets"]] == [offset]
        with pytest.raises(OffsetOutOfRange):
            await consumer.commit(0, COUNT + 1)
        await consumer.commit(0, 18, text="a checkpoint")
        with pytest.raises(LimitExceeded):
            await consumer.commit(0, 3, text="ä" * 2_049)
    (row,) = (await client.admin.group(name))["offsets"]
    assert (row["offset"], row["text"]) == (18, "a checkpoint")
    async with client.consumer(name, name) as consumer:
        assert await rest(consumer) == of(0, 18)


@on_both_loops
async def test_one_of_several_topics_is_named(client: Client, name: str) -> None:
    topics = [f"{name}.a", f"{name}.b"]
    for topic in topics:
        await made(client, topic, partitions=1)
    async with client.consumer(topics, name) as consumer:
        assert len(await rest(consumer)) == 2 * COUNT
        with pytest.raises(MessageInvalid):
            await consumer.seek(0, "earliest")
        await consumer.pause(0, topic=topics[0])
        await consumer.seek(0, 0, topic=topics[0])
        await consumer.seek(0, 5, topic=topics[1])
        assert await rest(consumer) == of(0, 5)
        await consumer.commit(0, 9, topic=topics[1])
        offsets = (await client.admin.group(name))["offsets"]
        assert {row["topic"]: row["offset"] for row in offsets} == {topics[0]: None, topics[1]: 9}


@on_both_loops
async def test_what_makes_no_sense_is_refused_and_changes_nothing(client: Client, name: str) -> None:
    await made(client, name)
    await client.admin.create_topic(f"{name}.queue")
    async with client.consumer(f"{name}.queue") as queue:
        for call in (queue.pause(0), queue.seek(0, 0), queue.commit(0, 0)):
            with pytest.raises(SubscriptionWrongKind):
                await call
    async with client.consumer(name) as reader:
        with pytest.raises(SubscriptionWrongKind):
            await reader.commit(0, 0)
        with pytest.raises(PartitionUnknown):
            await reader.pause(2)
        wrong: list[tuple[Callable[[], object], type[LinnError]]] = [
            (lambda: reader.seek(0, COUNT + 1), OffsetOutOfRange),
            (lambda: reader.seek(0, -1), MessageInvalid),
            (lambda: reader.seek("0", 0), MessageInvalid),  # type: ignore[arg-type]
            (lambda: reader.pause(-1), MessageInvalid),
            (lambda: reader.pause(0, topic="other"), MessageInvalid),
        ]
        for ask, error in wrong:
            with pytest.raises(error):
                await ask()  # type: ignore[misc]
        assert len(await rest(reader)) == 2 * COUNT
    with pytest.raises(ConnectionLost):
        await reader.pause(0)
    async with client.consumer(name, "g", name="ann"), client.consumer(name, "g", name="bob") as bob:
        with pytest.raises(GroupFenced):
            await bob.pause(0, 1)


def test_a_blocking_consumer_seeks_pauses_and_commits(client: linn.sync.Client, name: str) -> None:
    client.admin.create_topic(name, kind="stream")
    with client.producer(name) as producer:
        producer.publish_many([value.encode() for value in of(0, 0)])
    with client.consumer(name, name) as consumer:

        def rest() -> list[str]:
            return [message.text for message in iter(lambda: consumer.get(timeout_s=0.3), None)]

        assert [next(consumer).text for _ in range(3)] == of(0, 0, 3)
        consumer.pause(0)
        assert (rest(), consumer.paused) == ([], {name: [0]})
        consumer.resume(0)
        assert next(consumer).text == "0.3"
        assert consumer.seek(0, 12) == 12
        assert rest() == of(0, 12)
        consumer.commit(0, 4, text="four")
    assert [(row["offset"], row["text"]) for row in client.admin.group(name)["offsets"]] == [(4, "four")]


@pytest.mark.parametrize("seed", range(12))
@simulated
async def test_a_walk_of_seeks_and_pauses_leaves_no_record_out(env: SimEnv, seed: int) -> None:
    """Whatever a consumer does, each partition's next record is the one behind the last, or the one it went to."""
    choose = Random(seed)
    group = "g" if seed % 2 else None
    async with plugin_broker(env, '[topics.t]\nkind = "stream"\npartitions = 2\n'):
        async with linn.connect(URL, env=env) as client:
            await more(client, "t", range(COUNT))
            async with client.consumer("t", group, prefetch=choose.choice([4, 16, 4096])) as consumer:
                expected, paused = [0, 0], {0: False, 1: False}
                if group is not None:
                    while not consumer.partitions.get("t"):
                        await env.clock.sleep(0.01)
                for _ in range(200):
                    partition = choose.randrange(2)
                    match choose.choice(["read"] * 6 + ["seek", "pause", "resume"]):
                        case "read":
                            with anyio.move_on_after(0.2):
                                message = await anext(consumer)
                                assert not paused[message.partition]
                                assert message.offset == expected[message.partition]
                                expected[message.partition] += 1
                        case "seek":
                            expected[partition] = await consumer.seek(partition, choose.randrange(COUNT))
                        case "pause":
                            await consumer.pause(partition)
                            paused[partition] = True
                        case "resume":
                            await consumer.resume(partition)
                            paused[partition] = False
                await consumer.resume(0, 1)
                while expected != [COUNT, COUNT]:
                    message = await anext(consumer)
                    assert message.offset == expected[message.partition]
                    expected[message.partition] += 1
