"""A record that is not settled for long does not keep what was settled behind it."""

from __future__ import annotations

from random import Random

import pytest
import trio
from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected, served, simulated, values
from seeds import tiered
from test_idempotent_producers import numbered
from test_transactions import Owner

from linn.core.broker.broker import Broker
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

SMALL = 'segment_bytes_max = "16KiB"\nindex_interval_bytes = 512\n'
TOPIC = '[topics.t]\nlease = "1h"\n'
TEXT = f"[storage.segmented-log]\n{SMALL}{TOPIC}"
SURE = ALWAYS + SMALL + TOPIC
RECORDS = 200


def text_of(number: int) -> str:
    return f"{number:<500}"


async def stuck_at_first(client: RawClient, count: int = RECORDS) -> tuple[int, Event]:
    """Publish records, and settle all but the first, which a worker holds."""
    for number in range(count):
        await client.publish("t", [text_of(number)])
    worker = (await client.call(m.Subscribe("t"))).subscription
    held = await client.pull(worker, 1)
    while (event := await client.pull(worker, 10)).batches:
        assert await client.settle(worker, event) == []
    return worker, held


async def housekeeping(broker: Broker) -> None:
    for _ in range(2):
        await broker.topics["t"].enforce_retention()
        await trio.sleep(2)


@served(TEXT)
async def test_one_record_that_is_held_keeps_no_others(broker: Broker, client: RawClient) -> None:
    partition = broker.topics["t"].partitions[0]
    worker, held = await stuck_at_first(client)
    before = partition.log.size_bytes()
    await housekeeping(broker)
    assert before > RECORDS * 500
    assert partition.log.size_bytes() < before / 5
    assert partition.log.bounds() == (0, RECORDS)
    assert (await client.administer("topic.show", name="t"))["queue"]["unsettled"] == 1
    left = [int(value) for value in await client.fetch("t", offset=0, bytes_max=1 << 20)]
    assert left == sorted(left)
    assert len(left) < RECORDS / 4
    assert await client.settle(worker, held) == []
    await trio.sleep(1)
    assert partition.start_offset == RECORDS


@served(TEXT)
async def test_records_that_come_back_are_delivered_from_a_thinned_log(broker: Broker, client: RawClient) -> None:
    for number in range(RECORDS):
        await client.publish("t", [text_of(number)])
    worker = (await client.call(m.Subscribe("t"))).subscription
    kept = []
    for number in range(RECORDS):
        event = await client.pull(worker, 1)
        if number % 30 == 3:
            kept.append(event)
        else:
            await client.settle(worker, event)
    await housekeeping(broker)
    assert broker.topics["t"].partitions[0].log.size_bytes() < RECORDS * 500 / 3
    for event in kept:
        await client.settle(worker, event, m.Verdict.NACK)
    assert [int(value) for value in await client.taken("t")] == list(range(3, RECORDS, 30))


@simulated
async def test_a_thinned_log_is_the_same_after_a_restart(env: SimEnv) -> None:
    async with broker_on(env, TEXT) as broker:
        client = await connected(env)
        await stuck_at_first(client)
        await housekeeping(broker)
        size = broker.topics["t"].partitions[0].log.size_bytes()
        records = broker.topics["t"].partitions[0].readable_count()
        assert records < RECORDS / 4
    async with broker_on(env, TEXT) as broker:
        client, log = await connected(env), broker.topics["t"].partitions[0].log
        assert (log.size_bytes(), log.bounds()) == (size, (0, RECORDS))
        assert broker.topics["t"].partitions[0].readable_count() == records
        await housekeeping(broker)
        assert log.size_bytes() == size, "there is nothing more to drop"
        await client.publish("t", ["next"])
        assert [value.strip() for value in await client.taken("t")] == ["0", "next"]


@simulated
async def test_a_producer_whose_records_are_gone_goes_on_where_it_was(env: SimEnv) -> None:
    last = m.Publish("t", partition=0)
    async with broker_on(env, TEXT) as broker:
        client = await connected(env)
        for number in range(40):
            await client.call(last, [numbered(number, [text_of(number)])])
        await stuck_at_first(client)
        await housekeeping(broker)
        assert len(await client.fetch("t", offset=0, bytes_max=1 << 20)) < RECORDS / 4
    async with broker_on(env, TEXT):
        client = await connected(env)
        again = (await client.call(last, [numbered(39, [text_of(39)])])).placements[0]
        assert again.base_offset == 39, "it is known, and not stored again"
        await client.call(last, [numbered(40, ["next"])])


@served(TEXT)
async def test_records_of_transactions_stay(broker: Broker, client: RawClient) -> None:
    owner = await Owner.open(client)
    worker, held = await stuck_at_first(client, 3)
    for number in range(40):
        await owner.publish("t", [text_of(number)])
        await owner.end(commit=number % 2 == 0)
    while (event := await client.pull(worker, 10)).batches:
        await client.settle(worker, event)
    await housekeeping(broker)
    await client.settle(worker, held, m.Verdict.NACK)
    assert [int(value) for value in await client.taken("t")] == [0]


@served(TEXT.replace('lease = "1h"', 'delivery = "at-most-once"'))
async def test_records_that_are_settled_before_they_are_read_stay_until_they_are(
    broker: Broker, client: RawClient
) -> None:
    for number in range(RECORDS):
        await client.publish("t", [text_of(number)])
    reader = (await client.call(m.Subscribe("t"))).subscription
    found: list[str] = []
    for _ in range(RECORDS):
        found += values((await client.pull(reader, 1)).batches)
        if len(found) % 10 == 0:
            await broker.topics["t"].enforce_retention()
    assert [int(value) for value in found] == list(range(RECORDS))


# --- power loss -------------------------------------------------------------------------------------------------------


def thin_and_lose_power(seed: int) -> None:
    """Every unsettled record is delivered after each loss of power, from a log that is thinned all the time."""
    rng = Random(seed)
    published: list[str] = []
    asked: set[str] = set()
    acked: set[str] = set()

    async def work(env: SimEnv) -> None:
        env.disk.crash_at = len(env.disk.operations) + rng.randrange(50, 1500)
        async with broker_on(env, SURE) as broker, trio.open_nursery() as nursery:
            client = await connected(env)
            worker = (await client.call(m.Subscribe("t"))).subscription

            async def thin() -> None:
                while True:
                    await broker.topics["t"].enforce_retention()
                    await trio.sleep(rng.random())

            nursery.start_soon(thin)
            for _ in range(150):
                value = f"{len(published)}-{rng.random()}".ljust(300)
                await client.publish("t", [value])
                published.append(value)
                event = await client.pull(worker, 1)
                if event.batches and rng.random() < 0.95:
                    asked.update(values(event.batches))
                    assert await client.settle(worker, event) == []
                    acked.update(values(event.batches))
            nursery.cancel_scope.cancel()

    async def scenario(env: SimEnv) -> None:
        for _ in range(3):
            if not await env.run_until_death(work):
                env.crash()
            env = await after_power_loss(env, SURE)
        async with broker_on(env, SURE):
            client = await connected(env)
            left = await client.taken("t", count=10_000)
            assert len(left) == len(set(left))
            assert not acked & set(left), "no settled record comes back"
            assert not set(published) - set(left) - asked, "no unsettled record is lost"

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", tiered(range(12), 1))
def test_power_losses_of_a_thinned_queue_lose_nothing(seed: int) -> None:
    thin_and_lose_power(seed)


@pytest.mark.parametrize("order", ["fifo", "priority", "key"])
@served(TEXT)
async def test_a_subscription_of_a_thinned_queue_delivers_what_is_left_and_comes_to_its_end(
    broker: Broker, client: RawClient, order: str
) -> None:
    worker, held = await stuck_at_first(client)
    await housekeeping(broker)
    await client.administer("topic.alter", name="t", settings={"keep": "1h", "order": order})
    left = [int(value) for value in await client.fetch("t", offset=0, bytes_max=1 << 20)]
    assert len(left) < RECORDS / 4
    subscription = (await client.call(m.Subscribe("t", shared="again"))).subscription
    found: list[int] = []
    while (event := await client.pull(subscription, 10, wait_max_ms=500)).batches:
        found += map(int, values(event.batches))
        assert await client.settle(subscription, event) == []
    assert found == left
    shown = await client.administer("subscription.show", topic="t", subscription="again")
    assert (shown["unsettled"], shown["leased"]) == (0, 0), "a gap is no record"
    assert await client.settle(worker, held) == []
