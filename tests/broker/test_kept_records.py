"""A queue with `keep`: settled records stay for a time, for named subscriptions, and nothing else goes."""

from __future__ import annotations

from random import Random

import pytest
import trio
from raw_client import (
    ALWAYS,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    records,
    served,
    simulated,
    values,
)
from seeds import tiered

from linn.core.broker.broker import RETENTION_INTERVAL_S, Broker
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

KEEP_S = 60
SMALL = 'segment_bytes_max = "4KiB"\nindex_interval_bytes = 512\n'
TOPIC = f'[topics.t]\nlease = "1h"\nkeep = "{KEEP_S}s"\n'
ON_DISK = f"[storage.segmented-log]\n{SMALL}{TOPIC}"
IN_MEMORY = TOPIC + 'storage = "dram"\n'
SURE = ALWAYS + SMALL + TOPIC
ON_BOTH = pytest.mark.parametrize("text", [ON_DISK, IN_MEMORY], ids=["disk", "memory"])
EXTRA = 10**6
"""The number of the first of some records that may be lost."""
IN_A_SEGMENT = 7
"""Records of about 500 bytes that fill one, at most."""


def text_of(number: int) -> str:
    return f"{number:<500}"


async def publish(client: RawClient, numbers: range) -> None:
    for number in numbers:
        await client.publish("t", [text_of(number)])


async def taken(client: RawClient, shared: str = "", count: int = 1_000, **place: int) -> list[int]:
    """The numbers of so many records, or of all where there are fewer, acked by a consumer that leaves then."""
    subscription = (await client.call(m.Subscribe("t", shared=shared, **place))).subscription
    found: list[int] = []
    while len(found) < count and (event := await client.pull(subscription, 1, wait_max_ms=500)).batches:
        found += map(int, values(event.batches))
        assert await client.settle(subscription, event) == []
    await client.call(m.Unsubscribe(subscription))
    return found


async def kept(client: RawClient, broker: Broker) -> list[int]:
    """The numbers of all records that can be read."""
    start, end = broker.topics["t"].partitions[0].log.bounds()
    found: list[int] = []
    while start < end:
        more = [int(value) for value in await client.fetch("t", offset=start)]
        found, start = found + more, start + len(more)
    return found


def unsettled(broker: Broker) -> int:
    queue = broker.topics["t"].queue
    assert queue is not None
    return queue.unsettled_count()


@ON_BOTH
@simulated
async def test_settled_records_are_delivered_again_to_a_new_subscription(env: SimEnv, text: str) -> None:
    async with broker_on(env, text) as broker:
        client = await connected(env)
        for number in range(20):
            await client.call(m.Publish("t"), [records([text_of(number)], timestamp_ms=number)])
        assert await taken(client) == [*range(20)]
        await trio.sleep(RETENTION_INTERVAL_S + 1)
        assert await kept(client, broker) == [*range(20)]
        assert await taken(client) == [], "the queue itself has settled them"
        assert await taken(client, "again") == [*range(20)]
        made = {"topic": "t", "subscription": "since", "timestamp_ms": 10}
        assert await client.administer("subscription.create", **made) == {"created": True}
        assert await taken(client, "since") == [*range(10, 20)]
        await publish(client, range(20, 22))
        for shared in ("", "again", "since"):
            assert await taken(client, shared) == [20, 21], "new records go to each of them"


@ON_BOTH
@simulated
async def test_only_settled_records_go_when_their_time_is_over(env: SimEnv, text: str) -> None:
    async with broker_on(env, text) as broker:
        client = await connected(env)
        await publish(client, range(30))
        assert await taken(client, "slow", 2) == [0, 1]
        assert await taken(client, count=20) == [*range(20)]
        await trio.sleep(KEEP_S / 2)
        assert (await kept(client, broker))[:1] == [0]
        await trio.sleep(KEEP_S)
        client = await connected(env)
        left = await kept(client, broker)
        assert left == [*range(left[0], 30)]
        assert 20 - IN_A_SEGMENT <= left[0] <= 20, "whole segments go, and none with a record that is needed"
        assert unsettled(broker) == 10
        slow = await client.administer("subscription.show", topic="t", subscription="slow")
        assert (slow["missed"], slow["unsettled"]) == (left[0] - 2, 30 - left[0]), "it holds back nothing"
        await trio.sleep(10 * KEEP_S)
        client = await connected(env)
        assert await taken(client) == [*range(20, 30)], "no time takes what is not settled"
        await trio.sleep(2 * RETENTION_INTERVAL_S)
        assert await kept(client, broker) == []


@ON_BOTH
@simulated
async def test_a_record_that_a_worker_holds_is_kept_with_all_behind_it(env: SimEnv, text: str) -> None:
    async with broker_on(env, text) as broker:
        client = await connected(env)
        await publish(client, range(20))
        worker = (await client.call(m.Subscribe("t"))).subscription
        held = await client.pull(worker, 1)
        assert await taken(client) == [*range(1, 20)]
        for _ in range(30):  # A connection that sends nothing does not last so long.
            await trio.sleep(10)
            await client.call(m.Describe(["t"]))
        assert await kept(client, broker) == [*range(20)]
        assert await client.settle(worker, held) == []
        await trio.sleep(2 * RETENTION_INTERVAL_S)
        assert await kept(client, broker) == []


@ON_BOTH
@simulated
async def test_retention_bytes_drops_settled_records_alone(env: SimEnv, text: str) -> None:
    text = text.replace(f'"{KEEP_S}s"', '"1d"') + 'retention_bytes = "6KiB"\n'
    async with broker_on(env, text) as broker:
        client = await connected(env)
        await publish(client, range(40))
        await trio.sleep(2 * RETENTION_INTERVAL_S)
        assert await kept(client, broker) == [*range(40)]
        await taken(client, count=20)
        await trio.sleep(2 * RETENTION_INTERVAL_S)
        (first, *_) = await kept(client, broker)
        assert 20 - IN_A_SEGMENT <= first <= 20
        assert await taken(client) == [*range(20, 40)]
        await trio.sleep(2 * RETENTION_INTERVAL_S)
        log = broker.topics["t"].partitions[0].log
        assert 0 < log.size_bytes() <= 6 << 10


@pytest.mark.parametrize("limit", ['bytes_max = "4KiB"', "records_max = 6"])
@simulated
async def test_limits_count_what_is_not_settled(env: SimEnv, limit: str) -> None:
    text = TOPIC + f'{limit}\nmessage_bytes_max = "1KiB"\noverflow = "reject"\n'
    async with broker_on(env, text) as broker:
        client = await connected(env)
        for number in range(30):
            await publish(client, range(number, number + 1))
            assert await taken(client, count=1) == [number]
        assert await kept(client, broker) == [*range(30)]
        with pytest.raises(Refused) as refused:
            await publish(client, range(30, 60))
        assert refused.value.code == "topic.full"


@served(TOPIC.replace("keep", "# keep"))
async def test_a_queue_without_it_has_no_subscriptions_and_one_with_it_may_not_lose_them(
    broker: Broker, client: RawClient
) -> None:
    async def altered(keep: str) -> str:
        try:
            await client.administer("topic.alter", name="t", settings={"keep": keep})
        except Refused as refused:
            return refused.code
        return ""

    assert await client.code_of(await client.send(m.Subscribe("t", shared="s"))) == "delivery.wrong_kind"
    await publish(client, range(5))
    await taken(client)
    assert await altered("1h") == ""
    await publish(client, range(5, 10))
    await taken(client)
    assert await taken(client, "s") == [*range(5, 10)], "from now on"
    assert await altered("off") == "config.not_live"
    await client.administer("subscription.delete", topic="t", subscription="s", force=True)
    assert await altered("off") == ""
    await trio.sleep(1)
    assert await kept(client, broker) == [], "nothing keeps them any more"


@served(TOPIC)
async def test_a_window_of_ids_and_a_keep_both_count(client: RawClient, broker: Broker) -> None:
    await client.administer("topic.alter", name="t", settings={"dedup": "10m"})
    await client.publish("t", [text_of(number) for number in range(3)])  # In one batch: each has the same ids.
    await taken(client)
    for _ in range(12):
        await trio.sleep(10)
        await client.call(m.Describe(["t"]))
    assert await kept(client, broker) == [0, 1, 2], "ids are known for ten minutes"
    await client.administer("topic.alter", name="t", settings={"dedup": "off"})
    await trio.sleep(2 * RETENTION_INTERVAL_S)
    assert await kept(client, broker) == []


class Life:
    """A queue with `keep` whose broker loses power now and then; records are numbered."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.count = 0
        self.appended_ms: dict[int, int] = {}
        """The time at which each confirmed publish began, by record."""
        self.settled: set[int] = set()
        """Records whose ack was confirmed."""
        self.tried: set[int] = set()
        """Records that were acked, whatever became of it."""
        self.held: list[Event] = []

    async def live(self, env: SimEnv) -> None:
        async with broker_on(env, SURE):
            client = await connected(env)
            self.held = []
            worker = (await client.call(m.Subscribe("t"))).subscription
            for _ in range(40):
                deed = self.rng.randrange(6)
                if deed == 0:
                    began_ms = env.clock.now_ms()
                    numbers = range(self.count, self.count + self.rng.randint(1, 8))
                    self.count = numbers.stop
                    await client.publish("t", [text_of(number) for number in numbers])
                    self.appended_ms |= dict.fromkeys(numbers, began_ms)
                elif deed == 1 and (event := await client.pull(worker, self.rng.randint(1, 20))).batches:
                    self.held.append(event)
                elif deed in (2, 3) and self.held:
                    event = self.held.pop(self.rng.choice([0, 0, -1]))
                    numbers_of = {*map(int, values(event.batches))}
                    self.tried |= numbers_of
                    if not await client.settle(worker, event):
                        self.settled |= numbers_of
                else:
                    await trio.sleep(self.rng.choice([0, 3, 25]))
                    await client.call(m.Describe(["t"]))
            if self.rng.random() < 0.7:
                env.disk.crash_at = len(env.disk.operations) + self.rng.randrange(30)
                await publish(client, range(EXTRA, EXTRA + 40))
                env.crash()

    async def check(self, env: SimEnv, broker: Broker) -> None:
        client = await connected(env)
        young_ms = env.clock.now_ms() - 1000 * KEEP_S
        there = set(await kept(client, broker))
        young = {number for number, ms in self.appended_ms.items() if ms >= young_ms}
        assert young <= there, "nothing goes before its time"
        assert self.appended_ms.keys() - self.tried <= there, "nothing goes that is not settled"


def keep_and_lose_power(seed: int) -> None:
    """Let a queue live over three starts of its broker, and see that it has lost nothing."""
    life = Life(seed)

    async def scenario(env: SimEnv) -> None:
        for _ in range(3):
            died = await env.run_until_death(life.live)
            env = (await after_power_loss(env, SURE)) if died else env
            async with broker_on(env, SURE) as broker:
                await life.check(env, broker)
        async with broker_on(env, SURE):
            delivered = [number for number in await taken(await connected(env)) if number < EXTRA]
        assert life.appended_ms.keys() - life.tried <= set(delivered), "what is not settled is delivered"
        assert not life.settled & set(delivered), "what is settled does not come again"

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", tiered(range(16), 4))
def test_whatever_happens_nothing_is_lost_and_nothing_goes_early(seed: int) -> None:
    keep_and_lose_power(seed)
