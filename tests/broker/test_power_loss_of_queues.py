"""Power is lost while a queue is worked off: what is known of its records holds for those records, and no others."""

from __future__ import annotations

import pytest
from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected, values

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

RECORDS = 6
AT_MOST_ONCE = ALWAYS + '[topics.t]\ndelivery = "at-most-once"\n'
UNSYNCED = '[storage.fast]\nengine = "segmented-log"\nfsync = "os"\n[topics.t]\nstorage = "fast"\n'


async def _publish(client: RawClient, first: int) -> list[str]:
    """Publish one batch each, so that power can be lost between them."""
    texts = [str(number) for number in range(first, first + RECORDS)]
    for text in texts:
        await client.publish("t", [text])
    return texts


async def _taken(client: RawClient, count: int, acks: bool) -> list[str]:
    """Pull up to `count` records, one pull for each: an answered ack waits until earlier ones are durable; a pull alone
    may not.
    """
    worker = (await client.call(m.Subscribe("t"))).subscription
    found: list[str] = []
    while len(found) < count:
        event = await client.pull(worker, 1, wait_max_ms=1000)
        if not event.batches:
            break
        found += values(event.batches)
        if acks:
            await client.settle(worker, event, m.Verdict.ACK)
    return found


def hand_over_and_lose_power(seed: int) -> None:
    """Consume at most once: power is lost as soon as a record was handed over."""
    given: list[str] = []

    async def process(env: SimEnv) -> None:
        async with broker_on(env, AT_MOST_ONCE):
            client = await connected(env)
            await _publish(client, 0)
            env.disk.sync_delay_s_max = 0.05
            given.extend(await _taken(client, 1 + seed % RECORDS, acks=False))
            env.crash()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(process)
        async with broker_on(env.restart(), AT_MOST_ONCE) as broker:
            client = await connected(broker.env)  # type: ignore[arg-type]
            given.extend(await _taken(client, RECORDS, acks=False))
        assert given == [str(number) for number in range(RECORDS)], "each record is handed over once"

    run_simulation(seed, scenario)


def settle_and_lose_power(seed: int) -> None:
    """Lose power before any sync: records are lost, and their offsets are given to others."""

    async def process(env: SimEnv) -> None:
        async with broker_on(env, UNSYNCED):
            client = await connected(env)
            await _publish(client, 0)
            assert await _taken(client, RECORDS, acks=True)
            env.crash()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(process)
        async with broker_on(await after_power_loss(env, UNSYNCED), UNSYNCED) as broker:
            client = await connected(broker.env)  # type: ignore[arg-type]
            later = await _publish(client, RECORDS)
            found = await _taken(client, 2 * RECORDS, acks=True)
        assert found[-RECORDS:] == later, "what is published after a power loss is delivered"

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", range(12))
def test_a_record_that_was_handed_over_does_not_come_again(seed: int) -> None:
    hand_over_and_lose_power(seed)


@pytest.mark.parametrize("seed", range(12))
def test_records_published_after_a_power_loss_are_delivered(seed: int) -> None:
    settle_and_lose_power(seed)
