"""Topics that are made: quickly however wide they are, and whole or not there when the broker dies in between."""

from __future__ import annotations

import trio
from raw_client import ALWAYS, RawClient, after_power_loss, broker_on, connected, served, values

from linn.core.broker.broker import Broker
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

WIDE = {"kind": "both", "partitions": 200}
NARROW = {"kind": "both", "partitions": 4}


@served(ALWAYS)
async def test_a_wide_topic_is_made_with_a_handful_of_syncs_and_keeps_no_file_open(
    env: SimEnv, client: RawClient
) -> None:
    before = len(env.disk.operations)
    await client.administer("topic.create", name="w", settings=WIDE)
    await trio.sleep(25)  # Housekeeping finds nothing to do.
    made = [operation for operation, _ in env.disk.operations[before:]]
    assert sum(operation.startswith("sync") and operation.endswith("begin") for operation in made) < 30
    assert len(made) < 3 * 200 + 60, "a folder for each log, and no files"
    for partition in (0, 7, 199):
        await client.publish("w", ["x"], partition=partition)
    worker = (await client.call(m.Subscribe("w", credit=10))).subscription
    for _ in range(3):
        event = await client.delivery()
        assert values(event.batches) == ["x"]
        assert await client.settle(worker, event) == []


@served('[topics.s]\nkind = "stream"\n')
async def test_a_log_that_rests_is_written_and_read_again(env: SimEnv, broker: Broker, client: RawClient) -> None:
    await client.publish("s", ["a"])
    log = broker.topics["s"].partitions[0].log
    for _ in range(3):
        await log.enforce_retention(env.clock.now_ms(), age_ms=None, bytes_max=None, before=None)
    assert log._active.is_shut  # type: ignore[attr-defined]
    assert log.durable() == 1
    await client.publish("s", ["b"])
    assert await client.fetch("s") == ["a", "b"]


def make_and_lose_power(crash_at: int) -> bool:
    """Lose power at one change of the disk while a topic is made; False where it was made to its end before."""
    answered: list[bool] = []

    async def process(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS):
            client = await connected(env)
            env.disk.crash_at = len(env.disk.operations) + crash_at
            await client.administer("topic.create", name="w", settings=NARROW)
            answered.append(True)
            await client.publish("w", ["x"], partition=3)

    async def scenario(env: SimEnv) -> bool:
        died = await env.run_until_death(process)
        env.disk.crash_at = None
        env = await after_power_loss(env, ALWAYS) if died else env
        async with broker_on(env, ALWAYS):
            client = await connected(env)
            names = [topic["name"] for topic in await client.administer("topic.list")]
            assert names == ["w"] or not answered, "what was answered is there"
            if not names:
                assert await client.administer("topic.create", name="w", settings=NARROW) == {"created": True}
            assert len((await client.administer("topic.show", name="w"))["partitions"]) == 4
            for partition in range(4):
                await client.publish("w", ["new"], partition=partition)
        return died

    return bool(run_simulation(crash_at, scenario))


def test_creating_a_topic_is_atomic_under_power_loss() -> None:
    crash_at = 0
    while make_and_lose_power(crash_at):
        crash_at += 1
    assert crash_at > 20
