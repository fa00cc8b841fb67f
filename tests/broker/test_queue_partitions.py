"""A queue of many partitions: each is served in its turn, those that have nothing are not asked, none is forgotten."""

from __future__ import annotations

import pytest
from raw_client import RawClient, broker_on, connected, served, simulated, values

from linn.core.broker.broker import Broker
from linn.core.errors.tree import StorageError
from linn.core.queue.lease import Lease
from linn.core.queue.partition_queue import PartitionQueue
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

WIDE = 1_000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that were asked for a lease."""
    places: list[int] = []
    acquire = PartitionQueue.acquire

    def noted(self: PartitionQueue, consumer: int, records_max: int, *, skips_lost: bool) -> Lease | None:
        places.append(self.partition.id.index)
        return acquire(self, consumer, records_max, skips_lost=skips_lost)

    monkeypatch.setattr(PartitionQueue, "acquire", noted)
    return places


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> int:
    """A partition whose handovers can't be written, however often somebody asks."""
    acquire = PartitionQueue.acquire

    def refused(self: PartitionQueue, consumer: int, records_max: int, *, skips_lost: bool) -> Lease | None:
        if self.partition.id.index == 0:
            raise StorageError("the disk takes nothing")
        return acquire(self, consumer, records_max, skips_lost=skips_lost)

    monkeypatch.setattr(PartitionQueue, "acquire", refused)
    return 0


async def consumer(client: RawClient, credit: int = 1) -> int:
    subscription: int = (await client.call(m.Subscribe("t", credit=credit))).subscription
    return subscription


async def next_of(client: RawClient, subscription: int) -> tuple[int, str]:
    """The partition and the value of the next record, which is acked."""
    event = await client.delivery()
    assert await client.settle(subscription, event) == []
    await client.call(m.Credit(subscription, 1))
    (value,) = values(event.batches)
    assert isinstance(event.message, m.Deliver)
    return event.message.partition, value


@simulated
async def test_only_partitions_with_ready_records_are_asked(env: SimEnv, asked: list[int]) -> None:
    async with broker_on(env, f'[topics.t]\nstorage = "dram"\npartitions = {WIDE}\n'):
        client = await connected(env)
        subscriptions = [await consumer(client) for _ in range(3)]
        assert await client.is_silent(1)
        asked.clear()
        for place in (700, 3):
            await client.publish("t", ["a"], partition=place)
            assert (await client.delivery()).message.subscription in subscriptions
    assert set(asked) == {700, 3}


@served("[topics.t]\npartitions = 3\n")
async def test_partitions_are_served_in_turn_for_any_backlog_of_one(client: RawClient) -> None:
    for place, count in enumerate((20, 3, 3)):
        await client.publish("t", [str(place)] * count, partition=place)
    subscription = await consumer(client)
    served = [(await next_of(client, subscription))[0] for _ in range(9)]
    assert sorted(served[:3]) == sorted(served[3:6]) == sorted(served[6:]) == [0, 1, 2]


@served("")
async def test_a_waiting_consumer_is_served_from_added_partitions(
    broker: Broker, client: RawClient, other: RawClient
) -> None:
    await other.administer("topic.create", name="t", settings={})
    subscription = await consumer(client)
    await other.administer("topic.alter", name="t", settings={"partitions": 3})
    await other.publish("t", ["late"], partition=2)
    assert await next_of(client, subscription) == (2, "late")
    assert not broker.topics["t"].queue.listed, "what has nothing is not listed"  # type: ignore[union-attr]


@served('[topics.t]\npartitions = 3\nlease = "1s"\nredelivery_delay = "5s"\n')
async def test_records_returned_to_an_empty_partition_are_redelivered(client: RawClient, other: RawClient) -> None:
    await other.publish("t", ["a"], partition=1)
    subscription = await consumer(client)
    held = await client.delivery()
    waits = await consumer(other)
    again = await other.delivery(30)  # First its lease ends, then the delay.
    assert (again.message.partition, again.message.attempt) == (1, 2)
    assert [refusal.code for refusal in await client.settle(subscription, held)] == ["delivery.not_current"]
    assert await other.settle(waits, again) == []


@served('[topics.t]\nstorage = "dram"\npartitions = 2\n')
async def test_a_consumer_that_fails_at_one_partition_passes_the_wake_up_on(
    env: SimEnv, broker: Broker, broken: int
) -> None:
    clients = [await connected(env) for _ in range(3)]
    queue = broker.topics["t"].queue
    assert queue is not None
    queue.listed.clear()
    for client in clients:
        await consumer(client)
    publisher = await connected(env)
    for place in (broken, 1):  # Of the first only one that waits is woken, and is told what is wrong.
        await publisher.publish("t", ["a"], partition=place)
        assert await publisher.is_silent(1)
    pushed = [(await client.push()).message for client in clients]
    ended = [message.code for message in pushed if isinstance(message, m.Ended)]
    served = [message.partition for message in pushed if isinstance(message, m.Deliver)]
    assert (ended, served) == ([StorageError.code] * 2, [1])
