"""A cluster of whole brokers is balanced when a node was added, under load."""

from __future__ import annotations

from collections import Counter

import trio
from broker_world import broker_world, until_led
from cluster_world import until
from replicas_seen import ALL, in_sync
from simulated_time import simulated
from test_departures import Load
from test_operated_brokers import made, operate, part_of, started

from linn.testing.sim_env import SimEnv

TOPICS = ["t", *(f"t{number}" for number in range(1, 8))]


@simulated
async def test_a_new_node_gets_its_share_of_topics_under_load(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await started(world, 3)
        for name in TOPICS:
            await made(brokers, name, replicas=2)
        load = Load(await brokers[0].client(), ALL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await until(lambda: len(load.confirmed) > 20)
            brokers += await world.brokers(1)
            dry = await operate(brokers[3], "balance", validate_only=True)
            assert len(dry["moves"]) == 4, "16 replicas on four nodes"
            assert await operate(brokers[0], "moves") == []
            found = await operate(brokers[3], "balance")
            assert (found["moves"], found["left"], found["moving"]) == (dry["moves"], 0, 0)
            again = await operate(brokers[0], "balance")
            assert not again["changed"], "what is under way counts where it goes"
            await until(lambda: not any(part_of(brokers[0], name).target for name in TOPICS))
            await until(lambda: all(len(in_sync(brokers[0], name)) == 2 for name in TOPICS))
            assert not (await operate(brokers[1], "balance"))["changed"]
            nursery.cancel_scope.cancel()
        assert load.gap_s < 1.0
        parts = [part_of(brokers[0], name) for name in TOPICS]
        assert set(Counter(node for part in parts for node in part.replicas).values()) == {4}
        assert set(Counter(part.replicas[0] for part in parts).values()) == {2}
        await until_led(brokers, *TOPICS)
