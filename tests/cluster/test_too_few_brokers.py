"""Topics that need more brokers than the cluster has."""

from __future__ import annotations

import pytest
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import Refused
from replicas_seen import in_sync
from simulated_time import simulated

from linn.testing.sim_env import SimEnv


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"replicas": 5}, r"topics\.t\.replicas: 5 is more than the brokers that the cluster knows, 3"),
        ({"replicas": 4, "min_in_sync": 1}, r"topics\.t\.replicas: 4 is more"),
    ],
)
@simulated
async def test_a_topic_with_more_replicas_than_brokers_is_refused(env: SimEnv, settings: object, told: str) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(3)
        client = await brokers[0].client()
        for validate_only in (True, False):
            with pytest.raises(Refused, match=told) as refused:
                await client.administer("topic.create", name="t", settings=settings, validate_only=validate_only)
            assert refused.value.code == "config.invalid"
        await client.administer("topic.create", name="t", settings={"replicas": 3})
        await until_led(brokers, "t")


@simulated
async def test_a_broker_that_has_come_just_now_counts(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1)
        world.store.slow_watches(first.env.name, (0.5, 0.6))
        await world.brokers(2)
        assert first.broker.cluster is not None
        assert len(first.broker.cluster.view.state.nodes) < 3
        client = await first.client()
        assert await client.administer("topic.create", name="t", settings={"replicas": 3}) == {"created": True}


@simulated
async def test_the_default_number_of_replicas_needs_as_many_brokers_as_have_to_be_in_sync(env: SimEnv) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1, replicas=3)
        client = await first.client()
        with pytest.raises(Refused, match="min_in_sync: 2 is more than the brokers that the cluster knows, 1"):
            await client.administer("topic.create", name="t")
        await world.brokers(1, replicas=3)
        await client.administer("topic.create", name="t")
        await until(lambda: in_sync(first) == (1, 2))
        await world.brokers(1, replicas=3)
        await until(lambda: in_sync(first) == (1, 2, 3))
        with pytest.raises(Refused, match="min_in_sync"):
            await client.administer("topic.alter", name="t", settings={"min_in_sync": 4})


@simulated
async def test_a_topic_of_a_file_is_made_before_its_brokers_come(env: SimEnv, caplog: pytest.LogCaptureFixture) -> None:
    async with broker_world(env) as world:
        (first,) = await world.brokers(1, '[topics.t]\nkind = "queue"\nreplicas = 3\n')
        assert isinstance(first, SimBroker)
        await until_led([first], "t")
        told = "topic t waits for brokers: replicas: 3 is more than the brokers that the cluster knows, 1"
        await until(lambda: told in caplog.messages)
        client = await first.client()
        await client.administer("topic.alter", name="t", settings={"message_bytes_max": 1000})
        await world.brokers(2)
        await until(lambda: in_sync(first) == (1, 2, 3))
