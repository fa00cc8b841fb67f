"""Runs of dead letters through an exchange to three topics, while power is lost again and again."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from random import Random

import trio
from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected

from linn.core.batch.batch import RecordBatch
from linn.core.batch.record import Record
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TARGETS = {"a": 1, "b": 3, "c": 2}
"""The topics behind the exchange, with their partitions."""
BOUND = '[[topics.{0}.bindings]]\nexchange = "graves"\n'
TEXT = (
    ALWAYS
    + '[exchanges.graves]\ntype = "fanout"\n'
    + '[topics.t]\nlease = "10s"\nmax_deliveries = 2\ndead_letter_exchange = "graves"\n'
    + f'[topics.a]\nkind = "stream"\n{BOUND.format("a")}'
    + f'[topics.b]\nkind = "stream"\npartitions = 3\n{BOUND.format("b")}'
    + f'[topics.c]\nkind = "both"\npartitions = 2\n{BOUND.format("c")}'
)
RECORDS = 12
LIVES = 4


async def batches_in(client: RawClient, topic: str, partitions: int) -> list[RecordBatch]:
    """All batches of a topic."""
    found: list[RecordBatch] = []
    for partition in range(partitions):
        offset = 0
        while batches := (await client.ask(m.Fetch(topic, partition, offset, bytes_max=1 << 20))).batches:
            found += batches
            offset = batches[-1].end_offset
    return found


async def copies_in(client: RawClient, topic: str, partitions: int) -> list[Record]:
    """All records of a topic."""
    return [record for batch in await batches_in(client, topic, partitions) for record in batch.records()]


async def work(env: SimEnv, rng: Random) -> None:
    """Publish records, and reject or use up all, some while others are under way, until none is left."""
    async with broker_on(env, TEXT):
        client = await connected(env)
        start = (await client.administer("topic.show", name="t"))["partitions"][0]["end"]
        for number in range(start, RECORDS):
            await client.publish("t", [str(number)])
        worker = (await client.call(m.Subscribe("t", credit=5))).subscription
        while not await client.is_silent(3):
            event = await client.delivery()
            held = [offset for batch in event.batches for offset in range(batch.base_offset, batch.end_offset)]
            rng.shuffle(held)
            cut = rng.randint(0, len(held))
            for some, verdict in ((held[:cut], m.Verdict.REJECT), (held[cut:], rng.choice([1, 2]))):
                id = event.message.delivery_id  # type: ignore[attr-defined]
                entries = [m.Settlement(0, id, offset, offset + 1, verdict) for offset in some]
                if entries:
                    await client.call(m.Settle(worker, entries))
                await trio.sleep(rng.choice([0, 0.005, 0.02, 1]))
            await client.call(m.Credit(worker, 5))


def walk(seed: int) -> None:
    """Lose power a few times; in the end each topic has one copy of each record."""
    rng = Random(seed)

    async def scenario(env: SimEnv) -> None:
        for _ in range(LIVES):
            env.disk.sync_delay_s_max = rng.choice([0.0, 0.01])
            env.disk.crash_at = len(env.disk.operations) + rng.randint(5, 160)
            if await env.run_until_death(partial(work, rng=rng)):
                env = await after_power_loss(env, TEXT)
            env.disk.crash_at = None
        assert not await env.run_until_death(partial(work, rng=rng))
        async with broker_on(env, TEXT):
            client = await connected(env)
            shown = await client.administer("topic.show", name="t")
            assert shown["queue"]["unsettled"] == 0
            for topic, partitions in TARGETS.items():
                batches = await batches_in(client, topic, partitions)
                assert {batch.producer_epoch for batch in batches} == {0}, "the epoch never changes"
                found = [record for batch in batches for record in batch.records()]
                numbers = Counter(record.labels["linn.dead.offset"] for record in found)
                assert numbers.most_common(1)[0][1] == 1, f"no copy is there twice, and {topic} has {numbers}"
                assert set(numbers) == set(range(shown["partitions"][0]["end"])), "no copy is missing"
                for record in found:
                    ((topic_name, _, count, first_ms, last_ms),) = json.loads(str(record.labels["linn.dead.history"]))
                    assert (topic_name, count, first_ms) == ("t", 1, last_ms)

    run_simulation(seed, scenario)
