"""Three brokers of a cluster, beside a topic with a replica at each: where most tests of replication begin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient
from replicas_seen import ALL, agree, in_sync

from linn.testing.sim_env import SimEnv


async def made(brokers: Sequence[SimBroker], name: str = "t", **settings: object) -> SimBroker:
    """Make a topic with three replicas; returns its leader, when all replicas are in sync."""
    client = await brokers[0].client()
    await client.administer("topic.create", name=name, settings={"replicas": 3, **settings})
    leader = await next_leader(brokers, name)
    await until(lambda: len(in_sync(leader, name)) == 3)
    return leader


@asynccontextmanager
async def replicated_topic(
    env: SimEnv, *, toml: str = "", **settings: object
) -> AsyncIterator[tuple[SimBroker, list[SimBroker]]]:
    """Run three brokers with the topic "t": its leader, and its followers. `toml`: tables of the brokers."""
    async with broker_world(env) as world:
        brokers = await world.brokers(toml=toml)
        leader = await made(brokers, **settings)
        yield leader, [it for it in brokers if it is not leader]


async def next_leader(brokers: Sequence[SimBroker], name: str = "t") -> SimBroker:
    """Wait until one of these brokers leads the topic, and all of them know it; returns the leader."""
    (leader,) = (await until_led(list(brokers), name)).values()
    return leader


async def until_alike(broker: SimBroker, all_brokers: list[SimBroker]) -> None:
    """Wait until a broker knows that the three replicas are in sync, and all brokers have the same logs."""
    await until(lambda: len(in_sync(broker)) == 3 and agree(all_brokers, "t"))


async def publish_numbers(client: RawClient, count: int, partitions: int = 1) -> list[str]:
    """Publish so many records, in turn to the partitions, each confirmed by all replicas; returns their values."""
    for number in range(count):
        await client.publish("t", [str(number)], acks=ALL, partition=number % partitions)
    return [str(number) for number in range(count)]
