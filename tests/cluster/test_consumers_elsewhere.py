"""Consumers at brokers that do not lead the topic: all that a consumer does goes on to the one that does."""

from __future__ import annotations

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, values
from simulated_time import simulated

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m


async def apart(world: BrokerWorld, toml: str = "", **settings: object) -> tuple[SimBroker, list[SimBroker]]:
    """The broker that leads a new topic "t", and the others."""
    brokers = await world.brokers(toml=toml)
    await (await brokers[0].client()).administer("topic.create", name="t", settings=settings)
    (leader,) = (await until_led(brokers, "t")).values()
    return leader, [it for it in brokers if it is not leader]


async def subscribed(client: RawClient, topic: str = "t", **options: object) -> m.Subscribed:
    answer = await client.call(m.Subscribe(topic, **options))  # type: ignore[arg-type]
    assert isinstance(answer, m.Subscribed)
    return answer


@simulated
async def test_two_doors_compete_for_the_records_of_a_queue(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, others = await apart(world, kind="queue", lease="1s", max_attempts=3, dead_letter_topic="dead")
        one, two = [await other.client() for other in others]
        publisher = await others[0].client()
        for client in (one, two):
            made = await subscribed(client, credit=2)
            assert (made.subscription, made.kind, made.lease_ms) == (1, m.ConsumerKind.SHARED, 1000)
        for number in range(6):
            await publisher.publish("t", [f"{number}"])
        found = []
        for _ in range(3):
            for client in (one, two):
                event = await client.delivery()
                assert event.message.attempt == 1
                assert await client.settle(1, event) == []
                found += values(event.batches)
        assert sorted(found) == [f"{number}" for number in range(6)]
        assert await one.is_silent(3)
        assert await two.is_silent(3)
