"""Publishes to an exchange whose topics several brokers lead: each stores its share; the publish has one outcome."""

from __future__ import annotations

from random import Random

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, places, records
from simulated_time import simulated

import linn
from linn.core.batch.batch import SCATTERED
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.ports.principal import Principal
from linn.core.publish.request import PublishRequest
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

NEWS = "news"


async def spread(
    world: BrokerWorld,
    type_: str = "fanout",
    *,
    replicas: int = 1,
    toml: str = "",
    **settings: object,
) -> tuple[list[SimBroker], dict[str, SimBroker]]:
    """Three brokers, each leading one of the topics "a", "b" and "c", which an exchange "news" is bound to, by key."""
    brokers = await world.brokers(toml=toml, replicas=replicas)
    client = await brokers[0].client()
    for name in "abc":
        await client.administer("topic.create", name=name, settings={"kind": "stream", **settings})
    led = await until_led(brokers, *"abc")
    assert len(set(led.values())) == 3
    await client.administer("exchange.create", name=NEWS, settings={"type": type_})
    for name in "abc":
        key = {"key": f"{name}.#"} if type_ == "topic" else {}
        await client.administer("exchange.bind", exchange=NEWS, topic=name, **key)
    await until(lambda: all(it.broker.topics[name].live_bindings for it in brokers for name in "abc"))
    return brokers, led


async def content(led: dict[str, SimBroker]) -> dict[str, list[str]]:
    """All values of each topic."""
    found: dict[str, list[str]] = {}
    for name, leader in led.items():
        there, values = await leader.client(), found.setdefault(name, [])
        while more := await there.fetch(name, 0, len(values)):
            values += more
    return found


async def to_news(
    client: RawClient, *values: str, sequence: int | None = None, routing_key: str = "", **how: object
) -> m.Published:
    batch = records(values, routing_key=routing_key)
    if sequence is not None:
        batch.number(client.welcome.producer_id, 0, sequence, SCATTERED)
    answer = await client.call(m.Publish(NEWS, to_exchange=True, **how), [batch])
    assert isinstance(answer, m.Published)
    return answer


@simulated
async def test_each_broker_stores_its_share_whichever_is_asked(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world)
        for number, broker in enumerate(brokers):
            answer = await to_news(await broker.client(), f"{number}", f"{number}+")
            assert places(answer) == [(-1, -1, 6)]
        every = [f"{number}{suffix}" for number in range(3) for suffix in ("", "+")]
        assert await content(led) == dict.fromkeys("abc", every)


@simulated
async def test_records_go_to_their_topics_and_those_without_one_are_named(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world, "topic")
        keys = ["a.x", "none", "b.x", "c.x", "none", "a.y"]
        for broker in brokers:
            routed = [records([key], routing_key=key) for key in keys]
            client = await broker.client()
            answer = await client.call(m.Publish(NEWS, to_exchange=True, mandatory=True), routed)
            assert [placement.copies for placement in answer.placements] == [1, 0, 1, 1, 0, 1]
            assert [placement.returned for placement in answer.placements] == [[], [0, 1], [], [], [0, 1], []]
        assert await content(led) == {"a": ["a.x", "a.y"] * 3, "b": ["b.x"] * 3, "c": ["c.x"] * 3}


@simulated
async def test_a_batch_of_one_topic_has_its_offset_wherever_it_is_stored(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world, "topic")
        for number, broker in enumerate(brokers):
            client = await broker.client()
            answer = await client.call(m.Publish(NEWS, to_exchange=True), [records(["x"], routing_key="b.x")])
            (placement,) = answer.placements
            assert (placement.partition, placement.base_offset, placement.leader_epoch) == (0, number, 1)
            assert placement.topic_id_low == led["b"].broker.topics["b"].id_halves[1]


@simulated
async def test_a_batch_of_which_one_topic_has_a_part_has_no_offset(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, _ = await spread(world, "topic")
        for broker in brokers:
            batch = build_from_records([Record(value=b"x", routing_key=key) for key in ("b.x", "none")], base_id=1)
            answer = await (await broker.client()).call(m.Publish(NEWS, to_exchange=True), [batch])
            assert places(answer) == [(-1, -1, 1)]


@simulated
async def test_records_that_are_too_large_for_one_of_the_topics_are_stored_by_no_broker(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world)
        await (await brokers[0].client()).administer("topic.alter", name="b", settings={"message_bytes_max": 100})
        await until(lambda: all(it.broker.topics["b"].settings.message_bytes_max == 100 for it in brokers))
        for broker in brokers:
            (placement,) = (await to_news(await broker.client(), "x", "y" * 200, "z")).placements
            assert placement.copies == 6
            assert [(each.code, each.records) for each in placement.refused] == [("message.too_large", [1, 2])]
        assert await content(led) == {name: ["x", "z"] * 3 for name in "abc"}


@simulated
async def test_a_numbered_publish_that_one_broker_refused_is_completed_when_it_comes_again(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world)
        client = await led["a"].client()
        await to_news(client, "0", sequence=0)
        led["b"].env.kill()
        for sequence in (1, 2):
            with pytest.raises(Refused) as refusal:
                await to_news(client, f"{sequence}", sequence=sequence)
            assert refusal.value.code == ("peer.unreachable" if sequence == 1 else "producer.out_of_order")
        await led["b"].ended()
        await led["b"].start()
        await until_led(brokers, *"abc")
        for sequence in (1, 2, 1, 2, 3):
            await to_news(client, f"{sequence}", sequence=sequence)
        assert await content(led) == {name: ["0", "1", "2", "3"] for name in "abc"}


@simulated
async def test_a_publish_without_numbers_that_is_stored_in_part_says_so(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, led = await spread(world)
        client = await led["a"].client()
        await to_news(client, "0")
        led["b"].env.kill()
        for value in ("lost with the link", "not passed on"):
            with pytest.raises(Refused) as refusal:
                await to_news(client, value)
            assert refusal.value.code == "peer.unknown"
        assert "in part" in refusal.value.text
        assert led["a"].broker.topics["a"].partitions[0].high_watermark == 3


@simulated
async def test_nothing_is_stored_while_one_of_the_topics_has_no_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, led = await spread(world)
        gone = led.pop("b")
        gone.env.kill()
        await until(lambda: not led["a"].broker.topics["b"].led_by().leader)
        for broker in led.values():
            with pytest.raises(Refused) as refusal:
                await to_news(await broker.client(), "x")
            assert refusal.value.code == "partition.not_leader"
        assert await content(led) == {"a": [], "c": []}


@simulated
async def test_publishes_to_the_same_brokers_do_not_wait_for_one_another_s_answers(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, led = await spread(world)
        client = await led["a"].client()
        await to_news(client, "first")
        for number in (1, 2, 3):
            world.env.world.slow(f"machine{number}", f"machine{number % 3 + 1}", delay_s=(0.05, 0.05))
        began_s = trio.current_time()
        tickets = [await client.send(m.Publish(NEWS, to_exchange=True), [records([f"{n}"])]) for n in range(50)]
        assert [await client.code_of(ticket) for ticket in tickets] == [""] * 50
        assert trio.current_time() - began_s < 0.3
        every = ["first", *[f"{number}" for number in range(50)]]
        assert await content(led) == dict.fromkeys("abc", every)


@simulated
async def test_rights_on_the_exchange_suffice_and_are_checked_by_each_leader(env: SimEnv) -> None:
    rights = '[roles.r]\n"exchange:news" = ["see", "publish"]\n'
    user = '[users.anonymous]\nroles = ["administrator"]\n'
    async with broker_world(env) as world:
        brokers, led = await spread(world, toml=rights + user)
        for broker in brokers:
            broker.toml = rights + '[users.anonymous]\nroles = ["r"]\n'
        asked, *others = brokers
        await asked.stop()
        await asked.start()
        await until(lambda: all(len(it.broker.cluster.view.state.sessions) == 3 for it in brokers))
        await until_led(brokers, *"abc")
        client = await asked.client()
        assert places(await to_news(client, "x")) == [(-1, -1, 3)]
        assert await content({name: it for name, it in led.items() if it in others}) == {
            name: ["x"] for name, it in led.items() if it in others
        }


@simulated
async def test_a_client_does_not_say_which_topics_an_exchange_has_chosen(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world)
        with pytest.raises(Refused) as refusal:
            await to_news(await brokers[0].client(), "x", topics=["a"])
        assert refusal.value.code == "protocol.malformed"
        assert await content(led) == {"a": [], "b": [], "c": []}


@simulated
async def test_a_protocol_that_publishes_one_request_at_a_time_reaches_all_topics(env: SimEnv) -> None:
    async with broker_world(env) as world:
        brokers, led = await spread(world)
        session = brokers[0].broker.gateway.session(Principal("10.0.0.9:1"))
        (result,) = await session.publish(PublishRequest(NEWS, [records(["x"])], to_exchange=True))
        assert (result.partition, result.copies) == (-1, 3)
        (result,) = await session.publish(PublishRequest("b", [records(["y"])], partition=0))
        assert (result.partition, result.base_offset, result.copies) == (0, 1, 1)
        assert await content(led) == {"a": ["x"], "b": ["x", "y"], "c": ["x"]}


@pytest.mark.parametrize("seed", range(6))
@simulated
async def test_every_topic_has_each_record_once_and_in_order_while_brokers_die(env: SimEnv, seed: int) -> None:
    async with broker_world(env, seed) as world:
        brokers, _ = await spread(world, replicas=3)
        rng = Random(seed)
        client_env = SimEnv(seed, name="laptop", world=world.env.world)
        addresses = brokers[0].address
        async with (
            linn.connect(f"linn://{addresses}", env=client_env, backoff_max_s=0.5) as client,
            client.producer(exchange=NEWS) as producer,
        ):

            async def fail() -> None:
                for _ in range(3):
                    await trio.sleep(rng.uniform(0, 0.5))
                    struck = rng.choice(brokers)
                    struck.env.kill()
                    await struck.ended()
                    await trio.sleep(rng.uniform(0, 8))
                    await struck.start()
                    await until(lambda: all(len(it.broker.cluster.view.state.sessions) == 3 for it in brokers))
                    await until_led(brokers, *"abc")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                for number in range(300):
                    producer.publish_nowait(f"{number}".encode())
                    await trio.sleep(0.005)
            await producer.flush()
        every = [f"{number}" for number in range(300)]
        assert await content(await until_led(brokers, *"abc")) == dict.fromkeys("abc", every)
