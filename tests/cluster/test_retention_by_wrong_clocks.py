"""Retention by age at a leader whose clock is wrong, as the clocks of other brokers tell."""

from __future__ import annotations

import pytest
import trio
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from replicas_seen import ALL, agree, in_sync, marks
from simulated_time import simulated

from linn.core.broker.broker import RETENTION_INTERVAL_S
from linn.core.cluster.peer_clocks import AHEAD_S
from linn.testing.sim_env import SimEnv

HOUR_MS = 3_600_000


def starts(brokers: list[SimBroker]) -> set[int]:
    """First offsets of the topic's records, at all replicas."""
    return {marks(it, "t")[0][0] for it in brokers}


@simulated
async def test_a_clock_that_is_ahead_of_all_others_drops_nothing(env: SimEnv, caplog: pytest.LogCaptureFixture) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        settings = {"replicas": 3, "kind": "stream", "retention": "1h"}
        await client.administer("topic.create", name="t", settings=settings)
        (leader,) = (await until_led(brokers, "t")).values()
        await until(lambda: len(in_sync(leader)) == 3)
        client = await leader.client()
        for number in range(5):
            await client.publish("t", [str(number)], acks=ALL)
        await until(lambda: agree(brokers, "t"))
        leader.env.clock.jump(2 * HOUR_MS)
        await trio.sleep(5 * RETENTION_INTERVAL_S)
        assert starts(brokers) == {0}
        assert "the wall clock is 7200 s ahead of all other brokers': no record is dropped for its age" in caplog.text
        others = [it for it in brokers if it is not leader]
        others[0].env.clock.jump(2 * HOUR_MS)  # Now it is the third one that is behind.
        await until(lambda: starts(brokers) == {5})


@pytest.mark.parametrize(("ahead_s", "start"), [(AHEAD_S - 5, 5), (AHEAD_S + 5, 0)])
@simulated
async def test_ten_minutes_are_too_many(env: SimEnv, ahead_s: float, start: int) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        client = await brokers[0].client()
        settings = {"replicas": 2, "kind": "stream", "retention": "9m"}
        await client.administer("topic.create", name="t", settings=settings)
        (leader,) = (await until_led(brokers, "t")).values()
        client = await leader.client()
        for number in range(5):
            await client.publish("t", [str(number)], acks=ALL)
        await until(lambda: agree(brokers, "t"))
        leader.env.clock.jump(int(ahead_s * 1000))
        await trio.sleep(5 * RETENTION_INTERVAL_S)
        assert starts(brokers) == {start}
