"""Brokers that stop in order: others lead their topics before they are gone, and nothing is lost or waits."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from broker_world import SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused
from replicas_seen import ALL, in_sync
from replicated_topic import next_leader, publish_numbers, replicated_topic
from simulated_time import simulated

from linn.core.replicas.departure import CATCH_UP_S, DEPARTURE_S
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

SERVED_AGAIN_S = 1.0
"""Longest time without a confirmation when a leader stops."""
LEAVE_S = 2.0
"""Time in which the store may not answer that a session has ended."""


class Load:
    """Records that are published one by one until they are confirmed; refusals that may pass are not counted."""

    def __init__(self, client: RawClient, acks: int) -> None:
        self.confirmed: list[str] = []
        self.gap_s = 0.0
        """The longest time without a confirmation."""
        self._client = client
        self._acks = acks

    async def run(self) -> None:
        last_s = trio.current_time()
        while True:
            value = str(len(self.confirmed))
            try:
                await self._client.publish("t", [value], acks=self._acks)
            except Refused as refused:
                if refused.code not in ("partition.not_leader", "peer.unreachable", "broker.stopping"):
                    raise
                await trio.sleep(0.05)
            else:
                self.confirmed.append(value)
                self.gap_s, last_s = max(self.gap_s, trio.current_time() - last_s), trio.current_time()
                await trio.sleep(0.01)


async def loaded_while_stopping(broker: SimBroker, door: SimBroker, acks: int) -> Load:
    """Stop a broker while records are published through another one."""
    load = Load(await door.client(), acks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        await until(lambda: len(load.confirmed) > 20)
        await broker.stop()
        count = len(load.confirmed)
        await until(lambda: len(load.confirmed) > count + 20)
        nursery.cancel_scope.cancel()
    return load


@pytest.mark.parametrize("acks", [1, ALL])
@simulated
async def test_a_leader_stops_under_load_and_every_confirmed_record_is_there(env: SimEnv, acks: int) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        load = await loaded_while_stopping(leader, others[0], acks)
        assert load.gap_s < SERVED_AGAIN_S
        new_leader = await next_leader(others)
        found = await (await new_leader.client()).fetch("t")
        # A record that was refused may have been stored, and was published again.
        assert list(dict.fromkeys(found)) == [str(number) for number in range(len(set(found)))]
        assert set(load.confirmed) <= set(found)
        assert leader.number not in in_sync(new_leader)
        await leader.start()
        await until(lambda: len(in_sync(new_leader)) == 3)


@simulated
async def test_a_leader_that_stops_hands_on_what_it_confirmed_alone(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        confirmed: set[str] = set()

        async def publish(name: str) -> None:
            client = await leader.client()
            with suppress(Refused):
                while True:
                    value = f"{name} {len(confirmed)}"
                    await client.publish("t", [value], acks=1)
                    confirmed.add(value)

        async with trio.open_nursery() as nursery:
            for name in "abcdefgh":
                nursery.start_soon(publish, name)
            await until(lambda: len(confirmed) > 100)
            await leader.stop()
        second = await next_leader(others)
        assert confirmed <= set(await (await second.client()).fetch("t"))


@simulated
async def test_a_follower_stops_and_no_publish_waits_for_it(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        follower = others[0]
        load = await loaded_while_stopping(follower, leader, ALL)
        assert load.gap_s < SERVED_AGAIN_S
        assert follower.number not in in_sync(leader)


@simulated
async def test_a_queue_goes_on_at_the_next_leader_without_records_that_were_acked(env: SimEnv) -> None:
    async with replicated_topic(env, kind="queue") as (leader, others):
        door = others[0]
        client = await door.client()
        await publish_numbers(client, 10)
        subscription = (await client.call(m.Subscribe("t"))).subscription
        for _ in range(4):
            await client.settle(subscription, await client.pull(subscription, 1, wait_max_ms=500))
        await leader.stop()
        second = await next_leader(others)
        assert await (await second.client()).taken("t") == [str(number) for number in range(4, 10)]


@simulated
async def test_a_topic_with_one_replica_takes_publishes_until_its_broker_stops(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers()
        client = await brokers[0].client()
        await client.administer("topic.create", name="t", settings={"replicas": 1, "kind": "stream"})
        (leader,) = (await until_led(brokers, "t")).values()
        await (await leader.client()).publish("t", ["kept"], acks=ALL)
        await leader.stop()
        await leader.start()
        await until_led(brokers, "t")
        assert await (await leader.client()).fetch("t") == ["kept"]


@simulated
async def test_all_brokers_stop_at_a_time_and_come_back(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, others):
        client = await leader.client()
        await publish_numbers(client, 20)
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for broker in [leader, *others]:
                nursery.start_soon(broker.stop)
        assert trio.current_time() - began_s < CATCH_UP_S + DEPARTURE_S + LEAVE_S
        for broker in [leader, *others]:
            await broker.start()
        leader = await next_leader([leader, *others])
        await until(lambda: len(in_sync(leader)) == 3)
        assert await (await leader.client()).fetch("t") == [str(number) for number in range(20)]


@simulated
async def test_a_store_that_does_not_answer_keeps_no_broker_from_stopping(env: SimEnv) -> None:
    async with replicated_topic(env, kind="stream") as (leader, _):
        leader.world.store.stop()
        began_s = trio.current_time()
        await leader.stop()
        assert DEPARTURE_S <= trio.current_time() - began_s < DEPARTURE_S + LEAVE_S + 1.0
