"""Numbers of records count what can be read, not offsets: markers and aborted records have offsets as well."""

from __future__ import annotations

from random import Random

import pytest
from raw_client import RawClient, broker_on, connected, records, served, simulated, values
from seeds import tiered
from test_transactions import TOPICS, Owner

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import pick_batch
from linn.core.broker.broker import Broker
from linn.core.log.partition import Partition
from linn.testing.broker_view import wait_committed
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

WALK = """
[storage.segmented-log]
segment_bytes_max = "4KiB"
[topics.s]
kind = "stream"
[topics.dram]
kind = "stream"
storage = "dram"
[topics.q]
kind = "queue"
[topics.both]
kind = "both"
"""
STREAMS, QUEUES = ("s", "dram", "both"), ("q", "both")
NAMES = [*STREAMS, "q"]
PLAIN = "p" * 100


async def readable(partition: Partition) -> dict[int, str]:
    """The values of the records that a reader gets, by offset."""
    offset, found = partition.start_offset, dict[int, str]()
    while batches := await partition.read(offset, 1 << 20) if offset < partition.stable_offset else ():
        places = [batch.offset(index) for batch in batches for index in range(batch.count)]
        found |= dict(zip(places, values(batches), strict=True))
        offset = batches[-1].end_offset
    return found


async def lag_of(client: RawClient, group: str) -> int:
    lag: int = (await client.administer("group.show", group=group))["lag"]
    return lag


async def records_of(client: RawClient, topic: str) -> tuple[int, int]:
    """The number of records of a topic, as its metric and its description say it."""
    (metric,) = await client.administer("metrics.show", names=["linn_topic_records"])
    described = await client.administer("topic.show", name=topic)
    by_topic = {labels[0]: value for labels, value in metric["samples"]}
    return by_topic[topic], sum(partition["records"] for partition in described["partitions"])


@served(TOPICS)
async def test_a_group_that_has_committed_all_it_can_read_has_no_lag(broker: Broker, client: RawClient) -> None:
    owner = await Owner.open(client)
    await client.publish("s", ["plain"])
    reader = (await client.call(m.Subscribe("s", group="g"))).subscription
    for commit, read, left in ((True, 4, 3), (False, 5, 0), (True, 12, 3)):
        await owner.publish("s", ["a", "b", "c"])
        before = await lag_of(client, "g")
        await owner.end(commit=commit)
        assert await lag_of(client, "g") == before + left, "the records, and no marker"
        await client.commit(reader, "s", {0: read})
        assert await lag_of(client, "g") == 0
    assert await records_of(client, "s") == (7, 7)
    await wait_committed(broker, "s", "g")
    (samples,) = await client.administer("metrics.show", names=["linn_group_lag_records"])
    assert samples["samples"] == [[["s", "g"], 0]]
    (published,) = await client.administer("metrics.show", names=["linn_topic_published_records_total"])
    assert [value for labels, value in published["samples"] if labels == ["s"]] == [10], "aborted ones were stored"


class Walk:
    """Random steps of a broker's life: transactions, plain records and gaps, reading, trimming and retention."""

    def __init__(
        self, seed: int, broker: Broker, client: RawClient, owners: dict[int, Owner], visible: set[str]
    ) -> None:
        """`owners`: by their branches. `visible`: the values that may be read."""
        self.rng, self.visible = Random(seed), visible
        self.broker, self.client, self.owners = broker, client, owners

    async def step(self) -> None:
        rng, topic = self.rng, self.rng.choice(NAMES)
        partition, (branch, owner) = self.broker.topics[topic].partitions[0], rng.choice(list(self.owners.items()))
        await rng.choice(
            [
                lambda: owner.publish(topic, [f"{branch} {owner.number}"] * rng.randint(1, 4), branch),
                lambda: owner.publish(topic, [f"{branch} {owner.number}"] * rng.randint(1, 4), branch),
                lambda: self.end(owner, branch, commit=True),
                lambda: self.end(owner, branch, commit=False),
                lambda: self.client.publish(topic, [PLAIN] * rng.randint(1, 4)),
                lambda: self.append_gaps(partition),
                lambda: self.consume(rng.choice(QUEUES)),
                lambda: self.drop(partition),
            ]
        )()

    async def end(self, owner: Owner, branch: int, *, commit: bool) -> None:
        if commit:
            self.visible.add(f"{branch} {owner.number}")
        await owner.end(commit=commit, branches=(branch,))

    async def append_gaps(self, partition: Partition) -> None:
        """Append a batch with gaps: a log may hold one, although no producer sends it."""
        batch = records([PLAIN] * 5)
        batch.stamp(0, 0)
        batch = pick_batch(batch, sorted(self.rng.sample(range(5), self.rng.randint(1, 4))), range(5))
        partition.append(RecordBatch(bytearray(batch.message)))

    async def consume(self, queue: str) -> None:
        subscription = (await self.client.call(m.Subscribe(queue))).subscription
        event = await self.client.pull(subscription, self.rng.randint(1, 5))
        if event.batches:
            await self.client.settle(subscription, event)
        await self.client.call(m.Unsubscribe(subscription))

    async def drop(self, partition: Partition) -> None:
        topic = self.broker.topics[partition.id.topic]
        if topic.settings.kind != "queue" and self.rng.random() < 0.5:
            await partition.log.trim(before=self.rng.randint(partition.start_offset, partition.stable_offset))
        await topic.enforce_retention()

    async def check(self) -> None:
        """Compare every count with what a reader finds."""
        client, offsets = self.client, {name: await readable(self.broker.topics[name].partitions[0]) for name in NAMES}
        for name, found in offsets.items():
            assert self.visible >= set(found.values()), "an aborted record can be read"
            partition = self.broker.topics[name].partitions[0]
            assert await records_of(client, name) == (len(found), len(found))
            for first in range(partition.start_offset, partition.stable_offset + 1):
                assert partition.readable_count(first) == sum(offset >= first for offset in found), (name, first)
        for name in STREAMS:
            end = self.broker.topics[name].partitions[0].stable_offset
            await client.administer("group.reset", group="g", topic=name, offset=self.rng.randint(0, end))
        rows = (await client.administer("group.show", group="g"))["offsets"]
        for row in rows:
            assert row["lag"] == sum(offset >= row["offset"] for offset in offsets[row["topic"]])
        for name in QUEUES:
            (partition_queue,) = self.broker.topics[name].subscriptions[""].partition_queues
            left = sum(bool(partition_queue.subscription.unsettled(offset, offset + 1)) for offset in offsets[name])
            shown = await client.administer("subscription.show", topic=name)
            assert (shown["ready"], shown["unsettled"]) == (left, left), name


@pytest.mark.parametrize("seed", tiered(range(12), 1))
@simulated
async def test_all_counts_are_those_of_a_naive_reader_whatever_happened_before(env: SimEnv, seed: int) -> None:
    visible = {PLAIN}

    async def life(env: SimEnv, number: int) -> None:
        async with broker_on(env, WALK) as broker:
            client = await connected(env)
            branches = [(1 << 40) + 2 * number, (1 << 40) + 2 * number + 1]
            owners = {branch: await Owner.open(client, f"writer-{branch}", branch=branch) for branch in branches}
            for topic in STREAMS:
                reader = (await client.call(m.Subscribe(topic, group="g"))).subscription
                await client.call(m.Unsubscribe(reader))
            walk = Walk(100 * seed + number, broker, client, owners, visible)
            await walk.check()
            for _ in range(40):
                await walk.step()
                if walk.rng.random() < 0.3:
                    await walk.check()
            await walk.check()
            if walk.rng.random() < 0.5:
                env.kill()
                await client.fetch("s")

    for number in range(3):
        if await env.run_until_death(lambda env, number=number: life(env, number)):
            env = env.restart()


@simulated
async def test_aborted_records_stay_hidden_when_a_kill_takes_the_start_of_the_log_back(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, WALK) as broker:
            client = await connected(env)
            owner, topic = await Owner.open(client), broker.topics["s"]
            await owner.publish("s", ["never"])
            await owner.end(commit=False)
            await client.publish("s", [PLAIN] * 25)
            await topic.partitions[0].log.sync()
            await topic.partitions[0].log.trim(before=topic.partitions[0].stable_offset)
            await topic.enforce_retention()  # Writes the index of the segment, with the facts of the log.
            env.kill()
            await client.fetch("s")

    assert await env.run_until_death(process)
    async with broker_on(env.restart(), WALK) as broker:
        partition = broker.topics["s"].partitions[0]
        assert partition.start_offset == 0, "the case: the start was not durable"
        assert set((await readable(partition)).values()) == {PLAIN}
        assert partition.readable_count() == 25
