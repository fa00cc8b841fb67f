"""A broker with another secret than the cluster's does not start while others are alive."""

from __future__ import annotations

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world
from cluster_world import TIMEOUT_S, until
from simulated_time import simulated

from linn.core.cluster.node import SECRET_CHANGES_AFTER
from linn.core.errors.cluster import SecretDiffers
from linn.core.metadata.store import Stored
from linn.testing.sim_env import SimEnv

ANOTHER = "fedcba9876543210" * 2
WAIT_S = SECRET_CHANGES_AFTER * TIMEOUT_S


async def entry(broker: SimBroker) -> Stored:
    """The store's entry about the cluster."""
    assert broker.broker.cluster is not None
    return (await broker.broker.cluster.store.load()).entries["cluster"]


@simulated
async def test_a_broker_with_another_secret_does_not_start(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1)
        before = await entry(first)
        second = SimBroker(world, 2, "", "", 1)
        second.secret = ANOTHER
        with pytest.raises(SecretDiffers, match="node 1 is alive with another secret"):
            await second.start()
        assert await entry(first) == before
        assert 2 not in first.broker.cluster.view.state.nodes
        second.secret = first.secret
        await second.start()
        await until(lambda: len(first.broker.cluster.view.state.sessions) == 2)


@simulated
async def test_the_secret_is_changed_while_no_broker_runs(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(3)
        before = await entry(brokers[0])
        for broker in brokers:
            await broker.stop()
            broker.secret = ANOTHER
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for broker in brokers:
                nursery.start_soon(broker.start)
        assert WAIT_S <= trio.current_time() - began_s < WAIT_S + 2
        assert await entry(brokers[0]) != before
        client = await brokers[0].client()
        await client.administer("topic.create", name="t", settings={"kind": "queue", "replicas": 3})
        await until(lambda: all("t" in broker.broker.topics for broker in brokers))


@simulated
async def test_an_outage_of_the_store_does_not_let_a_wrong_secret_in(env: SimEnv) -> None:
    """All sessions are gone for a moment: those that run come back before the wait is over."""
    async with broker_world(env) as world:
        (first,) = await world.brokers(1)
        second = SimBroker(world, 2, "", "", 1)
        second.secret = ANOTHER
        world.store.cut(first.env.name)
        await until(lambda: not first.broker.cluster.is_registered)
        world.store.end_leases(first.env.name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(healed_soon, world, first)
            with pytest.raises(SecretDiffers):
                await second.start()


async def healed_soon(world: BrokerWorld, broker: SimBroker) -> None:
    await trio.sleep(TIMEOUT_S)
    world.store.heal(broker.env.name)
