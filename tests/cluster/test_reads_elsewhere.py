"""Fetches, offsets and bounds at brokers that do not lead the topic: the one that does answers."""

from __future__ import annotations

import pytest
import trio
from broker_world import BrokerWorld, SimBroker, broker_world, until_led
from cluster_world import until
from raw_client import RawClient, Refused, records, values
from simulated_time import simulated

from linn.cluster.reading import WAITS_MAX
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

LARGE = "x" * 40_000
"""A record that is sent from its file."""


async def apart(world: BrokerWorld, toml: str = "", **settings: object) -> tuple[SimBroker, SimBroker]:
    """The leader of a topic "t" among three brokers, and another one."""
    brokers = await world.brokers(toml=toml)
    if "[topics.t]" not in toml:
        await (await brokers[0].client()).administer("topic.create", name="t", settings={"kind": "both", **settings})
    (leader,) = (await until_led(brokers, "t")).values()
    return leader, next(it for it in brokers if it is not leader)


async def offset_of(client: RawClient, place: m.Place, timestamp_ms: int = 0, partition: int = 0) -> int:
    found: int = (await client.call(m.FindOffset("t", partition, timestamp_ms, place))).offset
    return found


async def bounds_of(client: RawClient, *names: str) -> dict[str, list[tuple[int, int]]]:
    described = await client.call(m.Describe(list(names)))
    return {it.name: [(part.start_offset, part.high_watermark) for part in it.partitions] for it in described.topics}


async def all_batches(client: RawClient, partition: int) -> list[bytes]:
    """The batches of a partition, in fetches of at most 90 kB."""
    found: list[bytes] = []
    offset = 0
    while (event := await client.ask(m.Fetch("t", partition, offset, bytes_max=90_000))).batches:
        assert sum(batch.size for batch in event.batches) <= 90_000
        found += [bytes(batch.message) for batch in event.batches]
        offset = event.message.next_offset
        assert (event.message.start_offset, event.message.high_watermark) == (0, 20)
    return found


def lanes(at: SimBroker) -> int:
    """The lanes that other brokers have open at a broker."""
    return sum(len(way._link._requests._lanes) for way in at.broker.gateway.links._ways.values() if way._link)


@simulated
async def test_a_partition_is_read_through_any_broker_as_at_its_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world, partitions=2)
        client, there = await other.client(), await leader.client()
        for number in range(20):
            await there.publish("t", [f"{number}", LARGE], partition=number % 2)
        for partition in (0, 1):
            batches = [await all_batches(each, partition) for each in (client, there)]
            assert batches[0] == batches[1]
        # A log may stop a read early.
        assert (await client.fetch("t", 1, 16))[:2] == ["17", LARGE]
        assert await client.fetch("t", 1, 18) == ["19", LARGE]
        for offset, uncommitted in ((3, False), (19, True), (20, False)):
            asked = m.Fetch("t", 0, offset, bytes_max=1, uncommitted=uncommitted)
            assert (await client.ask(asked)).message == (await there.ask(asked)).message


@simulated
async def test_a_fetch_waits_at_the_leader_for_as_many_bytes_as_it_asks_for(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world)
        client, there = await other.client(), await leader.client()
        for options, publishes in (({}, 1), ({"bytes_min": 50_000}, 2)):
            end = await offset_of(there, m.Place.LATEST)
            ticket = await client.send(m.Fetch("t", 0, end, wait_max_ms=30_000, **options))
            for _ in range(publishes):
                with trio.move_on_after(2) as scope:
                    await client.answer(ticket)
                assert scope.cancelled_caught
                await there.publish("t", [LARGE])
            with trio.fail_after(1):
                assert values((await client.answer(ticket)).batches) == [LARGE] * publishes
        end, began = await offset_of(there, m.Place.LATEST), trio.current_time()
        answer = await client.ask(m.Fetch("t", 0, end, wait_max_ms=5_000))
        assert not answer.batches
        assert answer.message.next_offset == end
        assert 5 <= trio.current_time() - began < 5.1


@simulated
async def test_other_fetches_of_a_connection_do_not_wait_for_one_that_waits(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world, partitions=2)
        client, there = await other.client(), await leader.client()
        waiting = [await client.send(m.Fetch("t", 0, 0, wait_max_ms=30_000)) for _ in range(5)]
        await there.publish("t", ["b"], partition=1)
        with trio.fail_after(1):
            assert await client.fetch("t", 1) == ["b"]
        await there.publish("t", ["a"], partition=0)
        with trio.fail_after(1):
            assert [values((await client.answer(ticket)).batches) for ticket in waiting] == [["a"]] * 5


@simulated
async def test_filters_and_unsettled_records_are_as_at_the_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world)
        client, there = await other.client(), await leader.client()
        for number in range(10):
            is_even = number % 2 == 0
            await there.call(m.Publish("t", partition=0), [records([f"{number}"], labels={"even": is_even})])
        assert await client.fetch("t", where="label.even = false") == ["1", "3", "5", "7", "9"]
        ticket = await client.send(m.Fetch("t", 0, 9, where="label.even = true", wait_max_ms=30_000))
        await there.call(m.Publish("t", partition=0), [records(["10"], labels={"even": False})])
        with trio.move_on_after(2) as scope:
            await client.answer(ticket)
        assert scope.cancelled_caught, "none of them is selected"
        await there.call(m.Publish("t", partition=0), [records(["11"], labels={"even": True})])
        assert values((await client.answer(ticket)).batches) == ["11"]
        subscription = (await there.call(m.Subscribe("t"))).subscription
        await there.settle(subscription, await there.pull(subscription, 4))
        assert await client.fetch("t", unsettled=True) == await there.fetch("t", unsettled=True)
        assert (await client.fetch("t", unsettled=True))[0] == "4"


@simulated
async def test_offsets_and_bounds_come_from_the_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world, partitions=2)
        client, there = await other.client(), await leader.client()
        for _ in range(3):
            await there.publish("t", ["a", "b"], partition=1)
        later_ms = 1 << 45
        await there.call(m.Publish("t", partition=1), [records(["c"], timestamp_ms=later_ms)])
        assert [await offset_of(client, place, partition=1) for place in (m.Place.EARLIEST, m.Place.LATEST)] == [0, 7]
        assert await offset_of(client, m.Place.TIME, later_ms, 1) == 6
        assert (await bounds_of(client, "t", "unknown"))["t"] == [(0, 0), (0, 7)]
        assert (await bounds_of(client))["t"] == [(0, 0), (0, 7)]
        await there.administer("topic.purge", name="t")
        assert await bounds_of(client, "t") == await bounds_of(there, "t")


@simulated
async def test_refusals_have_the_code_that_the_leader_gives(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world)
        client, there = await other.client(), await leader.client()
        await there.publish("t", ["a"])
        for asked in (
            m.Fetch("t", 7, 0),
            m.FindOffset("t", 7),
            m.Fetch("t", 0, 5),
            m.Fetch("t", 0, 0, where="key ="),
            m.Fetch("t", 0, 0, topic_id_high=1, topic_id_low=2),
            m.Fetch("t", 0, 0, formats=[77]),
            m.FindOffset("t", 0, 0, 9),
            m.Fetch("unknown", 0, 0),
        ):
            codes = [await each.code_of(await each.send(asked)) for each in (client, there)]
            assert codes[0] == codes[1] != "", asked


@simulated
async def test_a_fetch_whose_client_has_gone_ends_at_the_leader(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, other = await apart(world)
        client = await other.client()
        for _ in range(3):
            await client.send(m.Fetch("t", 0, 0, wait_max_ms=60_000))
        await until(lambda: lanes(other) == 3)
        await client.stream.aclose()
        await until(lambda: lanes(other) == 0, 5)


@simulated
async def test_fetches_that_wait_leave_lanes_and_room_for_other_requests(env: SimEnv) -> None:
    async with broker_world(env) as world:
        _, other = await apart(world)
        client = await other.client()
        waiting = [await client.send(m.Fetch("t", 0, 0, wait_max_ms=60_000)) for _ in range(WAITS_MAX + 20)]
        await until(lambda: lanes(other) >= WAITS_MAX)
        await trio.sleep(1)
        assert lanes(other) <= WAITS_MAX + 1
        with trio.fail_after(1):
            assert await offset_of(client, m.Place.LATEST) == 0
            await client.publish("t", ["a"])
        with trio.fail_after(2):
            assert [values((await client.answer(ticket)).batches) for ticket in waiting] == [["a"]] * len(waiting)


@simulated
async def test_requests_one_after_another_share_a_lane(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world)
        client = await other.client()
        for _ in range(20):
            await client.fetch("t")
            await offset_of(client, m.Place.LATEST)
        (way,) = [way for node, way in other.broker.gateway.links._ways.items() if node == leader.number]
        assert way._link._requests._last_lane <= 3


@simulated
async def test_a_waiting_fetch_is_refused_when_the_leader_dies_and_bounds_are_told_without_it(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world)
        client = await other.client()
        await client.publish("t", ["a"])
        ticket = await client.send(m.Fetch("t", 0, 1, wait_max_ms=60_000))
        await trio.sleep(1)
        leader.env.kill()
        assert await client.code_of(ticket) == "peer.unreachable"
        with trio.fail_after(3):
            assert await bounds_of(client, "t") == {"t": [(0, 0)]}
        with pytest.raises(Refused) as refusal:
            await client.fetch("t")
        assert refusal.value.code in ("peer.unreachable", "partition.not_leader")
        await leader.ended()
        await leader.start()
        await until_led([leader, other], "t")
        await until(lambda: other.broker.cluster.view.state.sessions.keys() == {1, 2, 3})
        assert await client.fetch("t") == ["a"]


@simulated
async def test_a_waiting_fetch_does_not_hold_up_a_leader_that_stops(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world)
        client = await other.client()
        ticket = await client.send(m.Fetch("t", 0, 0, wait_max_ms=60_000))
        await trio.sleep(1)
        with trio.fail_after(5):
            await leader.stop()
            assert await client.code_of(ticket) == "peer.unreachable"


@simulated
async def test_a_user_without_the_right_reads_through_no_broker(env: SimEnv) -> None:
    rights = '[roles.r]\n"topic:t" = ["see", "publish"]\n[users.anonymous]\nroles = ["r"]\n'
    toml = '[topics.t]\nkind = "stream"\n' + rights
    async with broker_world(env) as world:
        leader, other = await apart(world, toml)
        await (await leader.client()).publish("t", ["secret"])
        # The leader checks it again: the other broker may have other users in its file.
        for allowed in ("publish", "consume"):
            other.toml = toml.replace('"publish"', f'"{allowed}"')
            await other.stop()
            await other.start()
            await until(lambda: len(other.broker.cluster.view.state.sessions) == 3)
            client = await other.client()
            for asked in (m.Fetch("t", 0, 0), m.FindOffset("t", 0)):
                assert await client.code_of(await client.send(asked)) == "auth.forbidden"


@simulated
async def test_a_client_that_reads_nothing_takes_one_answer_of_the_leader_at_a_time(env: SimEnv) -> None:
    async with broker_world(env) as world:
        leader, other = await apart(world)
        client, there = await other.client(), await leader.client()
        for _ in range(100):
            await there.publish("t", [LARGE], partition=0)
        for _ in range(200):
            await client.send(m.Fetch("t", 0, 0, bytes_max=4 << 20))
        await trio.sleep(20)
        assert other.broker.gateway.memory.unsent.used_bytes < 10 << 20
