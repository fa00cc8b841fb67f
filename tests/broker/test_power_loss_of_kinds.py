"""A topic is of another kind for a while, and power is lost meanwhile.

What its queue and its groups knew before holds for the records of then, and for no others at the same offsets.
"""

from __future__ import annotations

import pytest
from raw_client import after_power_loss, broker_on, connected

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

TEXT = '[storage.fast]\nengine = "segmented-log"\nfsync = "%s"\n'
OLD, NEW = [f"old {number}" for number in range(6)], [f"new {number}" for number in range(6)]
GROUPS = {"stream": "", "queue": "g"}
"""The group of a subscription that the topic lacks while it is of this kind."""


async def change(env: SimEnv, fsync: str, kind: str, crash_at: int | None = None) -> range:
    """Settle all there is, and change the topic's kind; the operations on the disk that this takes."""
    async with broker_on(env, TEXT % fsync):
        client = await connected(env)
        await client.administer("topic.create", name="t", settings={"kind": "both", "storage": "fast"})
        env.disk.sync_delay_s_max = 0.001
        for value in OLD:
            await client.publish("t", [value])
        assert await client.taken("t", GROUPS[kind], len(OLD)) == OLD
        env.disk.crash_at, first = crash_at, len(env.disk.operations)
        await client.administer("topic.alter", name="t", settings={"kind": kind})
        if crash_at is not None:
            env.crash()
        return range(first, len(env.disk.operations))


def lose_power(seed: int, fsync: str, kind: str, crash_at: int) -> None:
    """Power is lost in the change or right behind it; then records are published, and the topic is both again."""

    async def process(env: SimEnv) -> None:
        await change(env, fsync, kind, crash_at)

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(process)
        async with broker_on(await after_power_loss(env, TEXT % fsync), TEXT % fsync) as broker:
            client = await connected(broker.env)  # type: ignore[arg-type]
            for value in NEW:
                await client.publish("t", [value])
            await client.administer("topic.alter", name="t", settings={"kind": "both"})
            assert (await client.taken("t", GROUPS[kind]))[-len(NEW) :] == NEW

    run_simulation(seed, scenario)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("fsync", ["os", "interval"])
@pytest.mark.parametrize("kind", GROUPS)
def test_records_published_after_a_change_of_kind_and_a_power_loss_are_delivered_when_the_kind_is_back(
    kind: str, fsync: str, seed: int
) -> None:
    operations = run_simulation(seed, lambda env: change(env, fsync, kind))
    for crash_at in range(operations[0], operations[-1] + 3, 2):
        lose_power(seed, fsync, kind, crash_at)
