"""However leases end, a consumer holds what it has credit for: no less while there is something, and never more."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import trio
from raw_client import RawClient, broker_on, connected, records

from linn.core.queue.consumer import QueueConsumer
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = '[topics.t]\nlease = "2s"\npartitions = 2\n'
RECORDS = 400
CREDIT = 7
VERDICTS = (m.Verdict.ACK, m.Verdict.ACK, m.Verdict.NACK, m.Verdict.REJECT, m.Verdict.EXTEND)


class Worker:
    """A consumer that settles parts of what it has, or nothing, and knows what it holds."""

    def __init__(self, client: RawClient, subscription: int, random: Random) -> None:
        self.client = client
        self.subscription = subscription
        self.held: Counter[tuple[int, int]] = Counter()
        """Records by (partition, delivery id)."""
        self._random = random

    async def step(self) -> None:
        """Take what is pushed, and perhaps settle a part of it."""
        client, random = self.client, self._random
        try:
            event = await client.delivery(wait_s=60)
        except trio.TooSlowError:
            raise AssertionError("a consumer that holds less than its credit is given more") from None
        for lost in client.lost:
            self.held.pop((lost.partition, lost.delivery_id), None)
        client.lost.clear()
        deliver = event.message
        assert isinstance(deliver, m.Deliver)
        first, end = event.batches[0].base_offset, event.batches[-1].end_offset
        key = deliver.partition, deliver.delivery_id
        self.held[key] += end - first
        assert self.held.total() <= CREDIT, (
            "a consumer knows of each lease that is over, and holds no more than its credit"
        )
        middle = random.randint(first, end)
        for begin, stop in ((first, middle), (middle, end)):
            if begin < stop and random.random() < 0.7:
                await self._settle(*key, begin, stop)
        await trio.sleep(random.choice([0, 0, 0.1, 1.0, 2.5]))

    async def _settle(self, partition: int, delivery_id: int, first: int, end: int) -> None:
        verdict = self._random.choice(VERDICTS)
        entry = m.Settlement(partition, delivery_id, first, end, verdict, 1_000 if verdict == m.Verdict.EXTEND else 0)
        answer = await self.client.call(m.Settle(self.subscription, [entry]))
        if not answer.refused and verdict != m.Verdict.EXTEND:
            self.held[partition, delivery_id] -= end - first


async def hold(seed: int, env: SimEnv) -> None:
    """Share a queue of two partitions between two workers, and check the number of held records all the time."""
    random = Random(seed)
    async with broker_on(env, TEXT) as broker:
        publisher = await connected(env)
        for partition in (0, 1):
            values = [str(number) for number in range(RECORDS)]
            await publisher.call(m.Publish("t", partition=partition), [records(values)])
        workers = []
        for _ in range(2):
            client = await connected(env)
            subscription = (await client.call(m.Subscribe("t", credit=CREDIT))).subscription
            workers.append(Worker(client, subscription, random))
        queue = broker.topics["t"].queue
        assert queue is not None
        for _ in range(60):
            for worker in workers:
                await worker.step()
            for consumer in queue.consumers.values():
                leased = sum(each.subscription.leased_by(consumer.id) for each in queue.partition_queues)
                assert consumer.held == leased - behind(consumer), "the broker counts what is held"


def hold_and_count(seed: int) -> None:
    """One run."""
    run_simulation(seed, lambda env: hold(seed, env))


@pytest.mark.parametrize("seed", range(12))
def test_credit_covers_held_and_expected_records(seed: int) -> None:
    hold_and_count(seed)


@pytest.mark.soak(seeds=2_000, chunk=100)
def test_many_more_workers_hold_records_up_to_their_credit(seeds: range) -> None:
    for seed in seeds:
        hold_and_count(seed)


def behind(consumer: QueueConsumer) -> int:
    """Records of a lease that are not handed over yet."""
    lease = consumer._lease
    return lease.count_within(consumer._lease_at, lease.end) if lease is not None else 0
