"""A broker is killed at each moment of a transaction over brokers: its coordinator, or the leader of a topic."""

from __future__ import annotations

import trio
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from simulated_time import simulated
from test_clients_at_leaders import client_of
from test_transactions_over_brokers import TOPICS, read, three
from transactions_over_brokers_run import check

from linn.client import Client
from linn.core.errors.tree import LinnError
from linn.testing.sim_env import SimEnv
from linn.verbs import TRANSACTIONS_TOPIC

MOMENTS_MS = [0, 4, 8, 12, 16, 20, 25, 30, 35, 40, 50, 60, 80, 100]
"""Times after the begin of a transaction, which takes about 60 ms, at which a broker is killed."""


async def process(client: Client, left_at_end: int) -> None:
    """Make something of orders, each once, until so many are left: each is written to all topics with its ack."""
    left = await unsettled(client)
    while left > left_at_end:
        try:
            async with client.consumer("orders", prefetch=1) as consumer:
                while left > left_at_end:
                    with trio.fail_after(60):
                        order = await anext(consumer)
                    async with client.transaction("billing", timeout_s=20) as tx:
                        for topic in TOPICS:
                            await tx.publish(topic, order.value)
                        tx.ack(order)
                    left -= 1
        except LinnError as error:
            check(error)
            left = await unsettled(client)  # An answer may have been lost.


async def unsettled(client: Client) -> int:
    """The number of orders that are not acked."""
    with trio.fail_after(60):
        while True:
            try:
                queue = (await client.admin.topic("orders"))["queue"]
            except LinnError:
                await trio.sleep(0.5)
            else:
                assert queue is not None
                return queue["unsettled"]


async def _killed_at_each_moment(env: SimEnv, victim: str) -> None:
    async with broker_world(env) as world:
        brokers = await three(world, *TOPICS, "orders")
        async with client_of(world, *brokers, request_timeout_s=60) as client:
            orders = [b"%d" % number for number in range(len(MOMENTS_MS) + 1)]
            async with client.producer("orders") as producer:
                await producer.publish_many(orders)
            await process(client, len(MOMENTS_MS))
            for left, moment_ms in enumerate(MOMENTS_MS):
                killed = (await until_led(brokers, victim))[victim]
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process, client, len(MOMENTS_MS) - left - 1)
                    await trio.sleep(moment_ms / 1000)
                    killed.env.kill()
                    await killed.ended()
                    await killed.start()
                await until_led(brokers, victim, *TOPICS, "orders")
            for topic in TOPICS:
                found = await read(client, topic, len(orders), "g")
                assert sorted(map(str, found)) == sorted(map(str, orders)), f"{topic} has {found}"
            await until(lambda: not any(_is_open(it) for it in brokers))


@simulated
async def test_each_order_is_made_into_something_once_if_the_coordinator_is_killed(env: SimEnv) -> None:
    await _killed_at_each_moment(env, TRANSACTIONS_TOPIC)


@simulated
async def test_each_order_is_made_into_something_once_if_the_leader_of_a_sink_is_killed(env: SimEnv) -> None:
    await _killed_at_each_moment(env, "b")


@simulated
async def test_each_order_is_made_into_something_once_if_the_leader_of_the_source_is_killed(env: SimEnv) -> None:
    await _killed_at_each_moment(env, "orders")


def _is_open(broker: SimBroker) -> bool:
    """Whether a broker that leads a topic has something open in it."""
    led = [topic for topic in broker.broker.topics.values() if topic.led_by is None]
    return any(partition.open_transactions() for topic in led for partition in topic.partitions.values())
