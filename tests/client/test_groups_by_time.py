"""A group that starts at a time, in a topic of any number of partitions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from both_loops import on_both_loops

from linn.client import Client
from linn.core.errors.tree import TopicUnknown

MEMBERS = 2


async def publish_hours(client: Client, topic: str, hours: int, per_hour: int) -> None:
    async with client.producer(topic) as producer:
        for hour in range(hours):
            keys = [b"%d" % number for number in range(per_hour)]
            await producer.publish_many([b"%d" % hour] * per_hour, keys=keys, timestamp_ms=hour * 3_600_000)


@on_both_loops
async def test_every_partition_is_read_from_the_time(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=4)
    await publish_hours(client, name, 6, 20)
    start = datetime.fromtimestamp(4 * 3_600, UTC)
    async with client.consumer(name, "g", start=start) as member:
        messages = [await anext(member) for _ in range(40)]
        assert {message.value for message in messages} == {b"4", b"5"}
        assert {message.partition for message in messages} == {0, 1, 2, 3}
        for message in messages:
            message.ack()
    async with client.consumer(name, "g", start=datetime.fromtimestamp(0, UTC)) as member:
        await publish_hours(client, name, 1, 1)
        assert (await anext(member)).offset > 0  # What was committed counts for more than the start.


@on_both_loops
async def test_a_member_that_gains_a_partition_starts_at_the_requested_time(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=2)
    await publish_hours(client, name, 3, 20)
    start = datetime.fromtimestamp(2 * 3_600, UTC)
    async with client.consumer(name, "g", start=start) as stays:
        async with client.consumer(name, "g", start=start):
            while len(stays.partitions.get(name, ())) != 1:
                await anext(stays)
        found = {(message.partition, message.value) for message in [await anext(stays) for _ in range(10)]}
        assert {value for _, value in found} == {b"2"}


@on_both_loops
async def test_partitions_that_came_later_are_read_from_their_start(client: Client, name: str) -> None:
    await client.admin.create_topic(name, kind="stream", partitions=1)
    async with client.consumer(name, "g", start=datetime.now(UTC)) as member:
        await client.admin.alter_topic(name, partitions=2)
        async with client.producer(name) as producer:
            await producer.publish_many([b""] * 20, keys=[b"%d" % number for number in range(20)])
        messages = [await anext(member) for _ in range(20)]
        assert {message.partition for message in messages} == {0, 1}


@on_both_loops
async def test_a_missing_topic_is_named(client: Client, name: str) -> None:
    with pytest.raises(TopicUnknown, match=name):
        async with client.consumer(name, "g", start=datetime.now(UTC)):
            raise AssertionError
