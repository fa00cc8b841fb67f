"""Several publishes of a connection at a time at the broker that leads their topic: order, numbers, room and ends."""

from __future__ import annotations

from random import Random

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, records
from simulated_time import simulated

import linn
from linn.cluster.window import LANE_REQUESTS_MAX
from linn.core.batch.batch import SCATTERED
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

DELAY_S = 0.05


async def apart(
    world: BrokerWorld, names: str = "t", **settings: object
) -> tuple[list[SimBroker], dict[str, SimBroker]]:
    """Three brokers, and the leader of each topic."""
    brokers = await world.brokers()
    client = await brokers[0].client()
    for name in names:
        await client.administer("topic.create", name=name, settings={"kind": "stream", **settings})
    return brokers, await until_led(brokers, *names)


def door(brokers: list[SimBroker], *leaders: SimBroker) -> SimBroker:
    """A broker that is none of these."""
    return next(it for it in brokers if it not in leaders)


def link_to(at: SimBroker, leader: SimBroker) -> object:
    return at.broker.gateway.links._ways[leader.number]._link


def numbered(client: RawClient, sequence: int, *, is_scattered: bool = False) -> tuple[m.Publish, list]:
    batch = records([f"{sequence}"])
    batch.number(client.welcome.producer_id, 0, sequence, SCATTERED if is_scattered else 0)
    return m.Publish("t", partition=-1 if is_scattered else 0), [batch]


@simulated
async def test_publishes_do_not_wait_for_one_another_s_answers_and_share_a_lane(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await apart(world)
        other = door(brokers, led["t"])
        client = await other.client()
        await client.publish("t", ["first"])
        world.env.world.slow(*[f"machine{it.number}" for it in (other, led["t"])], delay_s=(DELAY_S, DELAY_S))
        began = trio.current_time()
        tickets = [
            await client.send(m.Publish("t", partition=0), [records([f"{n}"])]) for n in range(LANE_REQUESTS_MAX)
        ]
        places = [(await client.answer(ticket)).message.placements[0].base_offset for ticket in tickets]
        assert trio.current_time() - began < 4 * DELAY_S
        assert places == list(range(1, LANE_REQUESTS_MAX + 1))
        assert link_to(other, led["t"])._requests._last_lane <= 2


@simulated
async def test_all_producers_of_a_client_share_a_lane_which_is_opened_anew_for_those_of_an_earlier_connection(
    env: SimEnv,
) -> None:
    async with broker_world(env) as world:
        brokers, led = await apart(world)
        other = door(brokers, led["t"])
        earlier, client = await other.client(), RawClient(await env.net.connect(other.address))
        await client.greet("raw", earlier.welcome.producer_id, earlier.welcome.producer_key)
        tickets = []
        for number in range(20):
            owner = client if number % 10 < 7 else earlier
            batch = records([f"{number}"])
            batch.number(owner.welcome.producer_id + number, 0, 0, 0)
            tickets.append(await client.send(m.Publish("t", partition=0), [batch]))
        assert [await client.code_of(ticket) for ticket in tickets] == [""] * 20
        assert await (await led["t"].client()).fetch("t") == [f"{number}" for number in range(20)]
        assert link_to(other, led["t"])._requests._last_lane <= 3


@simulated
async def test_publishes_to_topics_here_and_elsewhere_are_stored_in_the_order_in_which_they_came(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await apart(world, "abc")
        client = await brokers[0].client()
        for number, other in ((1, 2), (1, 3)):
            world.env.world.slow(f"machine{number}", f"machine{other}", delay_s=(0.01 * other, 0.05))
        times: dict[int, float] = {}
        tickets = []
        for number in range(60):
            name = "aabcbbaccabc"[number % 12]
            tickets.append((name, await client.send(m.Publish(name, partition=0), [records([f"{number}"])])))
        for _, ticket in tickets:
            await client.answer(ticket)
        for name in "abc":
            there = await led[name].client()
            offset_ms = led[name].env.clock.now_ms() - trio.current_time() * 1000
            event = await there.ask(m.Fetch(name, 0, 0))
            for batch in event.batches:
                for record in batch.records():
                    times[int(record.value)] = batch.append_time_ms - offset_ms
        assert sorted(times) == list(range(60))
        assert all(times[number] <= times[number + 1] + 2 for number in range(59)), times
        assert [await (await led[name].client()).fetch(name) for name in "abc"] == [
            [f"{number}" for number in range(60) if "aabcbbaccabc"[number % 12] == name] for name in "abc"
        ]


@pytest.mark.parametrize("is_scattered", [False, True])
@simulated
async def test_later_batches_of_a_producer_do_not_overtake_one_that_is_refused(env: SimEnv, is_scattered: bool) -> None:
    async with broker_world(env) as world:
        brokers, led = await apart(world)
        client = await door(brokers, led["t"]).client()
        tickets = []
        for sequence in range(10):
            message, (batch,) = numbered(client, sequence, is_scattered=is_scattered)
            if sequence == 3:
                batch.message[-1] ^= 1
            tickets.append(await client.send(message, [batch]))
        codes = [await client.code_of(ticket) for ticket in tickets]
        assert codes == ["", "", "", "batch.corrupt", *["producer.out_of_order"] * 6]
        for sequence in (*range(3, 10), 10):
            await client.call(*numbered(client, sequence, is_scattered=is_scattered))
        assert await (await led["t"].client()).fetch("t") == [f"{number}" for number in range(11)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_scattered", [False, True])
@simulated
async def test_batches_that_were_lost_with_the_link_are_sent_again_in_order_and_stored_once(
    env: SimEnv, is_scattered: bool, seed: int
) -> None:
    async with broker_world(env, seed) as world:
        brokers, led = await apart(world)
        other = door(brokers, led["t"])
        client = await other.client()
        await client.call(*numbered(client, 0, is_scattered=is_scattered))
        machines = [f"machine{it.number}" for it in (other, led["t"])]
        world.env.world.cut_one_way(*reversed(machines))
        tickets = [await client.send(*numbered(client, n, is_scattered=is_scattered)) for n in range(1, 6)]
        await trio.sleep(1)
        world.env.world.sever(*machines)
        codes = [await client.code_of(ticket) for ticket in tickets]
        # Some bytes of a severed connection arrive, so that the first answers may have come.
        assert codes == sorted(codes), "in order"
        assert {*codes} <= {"", "peer.unreachable"}, "numbers allow to send them again"
        late = await client.send(*numbered(client, 6, is_scattered=is_scattered))
        world.env.world.heal(*machines)
        code = await client.code_of(late)
        assert code in ("producer.out_of_order", "peer.unreachable") if is_scattered and codes[-1] else True
        for sequence in range(1, 8):
            await client.call(*numbered(client, sequence, is_scattered=is_scattered))
        assert await (await led["t"].client()).fetch("t") == [f"{number}" for number in range(8)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("victim", ["leader", "link", "door"])
@simulated
async def test_an_idempotent_producer_stores_each_record_once_and_in_order_whatever_fails(
    env: SimEnv, seed: int, victim: str
) -> None:
    async with broker_world(env, seed) as world:
        brokers, led = await apart(world)
        leader, other, rng, net = led["t"], door(brokers, led["t"]), Random(seed), world.env.world
        machines = [f"machine{it.number}" for it in (other, leader)]
        net.slow(*machines, delay_s=(0.01, 0.05))
        client_env = SimEnv(seed, name="laptop", world=net)
        async with (
            linn.connect(f"linn://{other.address}", env=client_env, backoff_max_s=0.5) as client,
            client.producer("t") as producer,
        ):

            async def fail() -> None:
                for _ in range(3):
                    await trio.sleep(rng.uniform(0, 0.5))
                    if victim == "link":
                        rng.choice([net.cut, net.cut_one_way, net.sever])(*rng.sample(machines, 2))
                        await trio.sleep(rng.uniform(0, 8))
                        net.heal(*machines)
                        continue
                    struck = leader if victim == "leader" else other
                    struck.env.kill()
                    await struck.ended()
                    await trio.sleep(rng.uniform(0, 8))
                    await struck.start()
                    await until(lambda: all(len(it.broker.cluster.view.state.sessions) == 3 for it in brokers))
                    await until_led(brokers, "t")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                for number in range(400):
                    producer.publish_nowait(f"{number}".encode())
                    await trio.sleep(0.005)
            await producer.flush()
        there, found = await leader.client(), list[str]()
        while more := await there.fetch("t", 0, len(found)):
            found += more
        assert found == [f"{number}" for number in range(400)]


@simulated
async def test_topics_without_room_do_not_hold_up_others_between_two_brokers(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers = await world.brokers(2)
        first = await brokers[0].client()
        names = [f"t{number}" for number in range(60)]
        for name in names:
            settings = {"kind": "queue", "bytes_max": 1 << 20, "message_bytes_max": 1 << 19}
            await first.administer("topic.create", name=name, settings=settings)
        led = await until_led(brokers, *names)
        leader = led["t0"]
        (other,) = [it for it in brokers if it is not leader]
        *full, empty = [name for name in names if led[name] is leader]
        assert len(full) > 20
        for name in full:
            client = await other.client()
            for _ in range(5):
                await client.send(m.Publish(name, partition=0), [records(["x" * 500_000])])
        await trio.sleep(5)
        held = leader.broker.gateway.memory.received.used_bytes
        assert 10 << 20 < held < 17 << 20, "they fill the window"
        client = await other.client()
        with trio.fail_after(1):
            for number in range(100):
                assert (await client.publish(empty, [f"{number}"])).base_offset == number


@simulated
async def test_a_connection_that_ends_leaves_nothing_behind(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await apart(world, bytes_max=2000, message_bytes_max=1000)
        leader, other = led["t"], door(brokers, led["t"])
        client = await other.client()
        for _ in range(200):
            await client.send(m.Publish("t", partition=0), [records(["x" * 900])])
        await until(lambda: leader.broker.gateway.memory.received.used_bytes > 0)
        await client.stream.aclose()
        for broker in (leader, other):
            await until(lambda broker=broker: broker.broker.gateway.memory.received.used_bytes == 0, 10)
        assert not link_to(other, leader)._requests._lanes
