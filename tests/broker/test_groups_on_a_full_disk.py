"""Groups whose log has no room: nobody loses a record by it, what is refused has not happened, and little waits."""

from __future__ import annotations

import pytest
import trio
from raw_client import RawClient, Refused, broker_on, connected, served, simulated, values

from linn.core.broker.broker import Broker
from linn.core.groups.event import decode_group_events
from linn.core.log import state_log
from linn.core.log.state_log import StateLog
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

ROOM_BYTES = 1 << 30
STREAM = '[topics.t]\nkind = "stream"\npartitions = %d\n'
AT_MOST_ONCE = STREAM % 1 + 'delivery = "at-most-once"\n'
FULL = r"storage\.disk_full"


def fill_disk(env: SimEnv) -> None:
    env.disk.capacity_bytes = env.disk.used_bytes


def free_disk(env: SimEnv) -> None:
    env.disk.capacity_bytes = ROOM_BYTES


async def publish_some(client: RawClient, count: int, partitions: int = 1) -> list[str]:
    """Publish so many batches, in turn to the partitions; returns their values."""
    for number in range(count):
        await client.publish("t", [str(number)], partition=number % partitions)
    return [str(number) for number in range(count)]


async def joined(client: RawClient, start: int = m.START_EARLIEST) -> int:
    subscription: int = (await client.call(m.Subscribe("t", group="g", start=start))).subscription
    return subscription


async def pulled(client: RawClient, subscription: int, records_max: int = 1000) -> list[str]:
    return values((await client.pull(subscription, records_max, 500)).batches)


async def pulled_all(client: RawClient, subscription: int) -> list[str]:
    found: list[str] = []
    while some := await pulled(client, subscription, 1):
        found += some
    return found


async def offsets(client: RawClient) -> list[int | None]:
    return [row["offset"] for row in (await client.administer("group.show", group="g"))["offsets"]]


async def ack(client: RawClient, subscription: int, ends: dict[int, int]) -> None:
    assert await client.commit(subscription, "t", ends) == []


def state_of(broker: Broker) -> StateLog:
    positions = broker.topics["t"].positions
    assert positions is not None
    return positions


# --- at most once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("end", ["go on", "another member", "restart"])
@simulated
async def test_at_most_once_records_undelivered_on_a_full_disk_are_delivered_once(
    env: SimEnv, before: int, end: str
) -> None:
    async with broker_on(env, AT_MOST_ONCE):
        client = await connected(env)
        published = await publish_some(client, 6)
        member = await joined(client)
        got = await pulled(client, member, before) if before else []
        place = await offsets(client)
        fill_disk(env)
        for _ in range(3):
            with pytest.raises(Refused, match=FULL):
                await client.pull(member, 1)
            assert await offsets(client) == place == [before or None]
        free_disk(env)
        if end == "go on":
            got += await pulled_all(client, member)
        else:
            await client.call(m.Unsubscribe(member))  # Which is written, with all that waits.
        if end == "another member":
            got += await pulled_all(client, await joined(client))
    async with broker_on(env, AT_MOST_ONCE):
        client = await connected(env)
        assert got + await pulled_all(client, await joined(client)) == published


@served(AT_MOST_ONCE)
async def test_at_most_once_a_consumer_that_a_full_disk_ended_has_lost_nothing(env: SimEnv, client: RawClient) -> None:
    published = await publish_some(client, 6)
    member = await joined(client)
    fill_disk(env)
    await client.call(m.Credit(member, 3))
    while not isinstance((await client.push()).message, m.Ended):
        pass
    free_disk(env)
    assert await pulled_all(client, await joined(client)) == published


@served(STREAM % 2 + 'delivery = "at-most-once"\n')
async def test_at_most_once_a_new_owner_on_a_full_disk_gets_undelivered_records(
    env: SimEnv, one: RawClient, two: RawClient
) -> None:
    published = await publish_some(one, 12, partitions=2)
    first = await joined(one)
    fill_disk(env)
    for _ in range(4):
        with pytest.raises(Refused, match=FULL):
            await one.pull(first, 1)
    second = await joined(two)
    await one.call(m.Heartbeat(first, 2))
    for client, member in ((one, first), (two, second)):
        with pytest.raises(Refused, match=FULL):
            await client.pull(member, 1)
    free_disk(env)
    got = [await pulled_all(one, first), await pulled_all(two, second)]
    assert [len(some) for some in got] == [6, 6]
    assert sorted(got[0] + got[1]) == sorted(published)


# --- a group that is moved -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, 2])
@simulated
async def test_a_reset_that_is_refused_changes_nothing(env: SimEnv, before: int | None) -> None:
    expected = [before, None] if before is not None else []
    async with broker_on(env, STREAM % 2):
        client = await connected(env)
        await publish_some(client, 12, partitions=2)
        member = await joined(client)
        if before is not None:
            await ack(client, member, {0: before})
        await client.call(m.Unsubscribe(member))
        fill_disk(env)
        with pytest.raises(Refused, match=FULL):
            await client.administer("group.reset", topic="t", group="g", to="latest")
        assert await offsets(client) == expected
        free_disk(env)
        await client.call(m.Unsubscribe(await joined(client)))  # Which is written, with all that waits.
        assert await offsets(client) == expected
    async with broker_on(env, STREAM % 2):
        assert await offsets(await connected(env)) == expected


@simulated
async def test_a_reset_overrides_commits_that_waited_for_the_disk(env: SimEnv) -> None:
    async with broker_on(env, STREAM % 2):
        client = await connected(env)
        await publish_some(client, 12, partitions=2)
        member = await joined(client)
        fill_disk(env)
        with pytest.raises(Refused, match=FULL):
            await ack(client, member, {0: 3, 1: 3})
        await client.call(m.Unsubscribe(member))
        free_disk(env)
        await client.administer("group.reset", topic="t", group="g", to="latest", partitions=[0])
        assert await offsets(client) == [6, 3]
    async with broker_on(env, STREAM % 2):
        assert await offsets(await connected(env)) == [6, 3]


# --- what waits ------------------------------------------------------------------------------------------------------


@simulated
async def test_however_long_a_disk_is_full_little_waits_and_the_last_commits_count(
    env: SimEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "WAITING_BYTES_MAX", 2_000)
    text = STREAM % 8

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text) as broker:
            client = await connected(env)
            await publish_some(client, 40, partitions=8)
            member, state = await joined(client), state_of(broker)
            logged = [record async for record in state.replay()]
            fill_disk(env)
            for number in range(50):
                with pytest.raises(Refused, match=FULL):
                    await ack(client, member, dict.fromkeys(range(8), number % 5))
            free_disk(env)
            await ack(client, member, {0: 5})
            records = [record async for record in state.replay()][len(logged) :]
            assert sum(map(len, records)) < 2 * 2_000
            assert decode_group_events(records[0])[0], "it begins with all there is, in place of what waited"
            env.kill()

    assert await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, text):
        assert await offsets(await connected(env)) == [5] + 7 * [4]


@simulated
async def test_events_that_waited_for_the_disk_hold_over_changes_of_kind(env: SimEnv) -> None:
    async with broker_on(env, STREAM % 2):
        client = await connected(env)
        await publish_some(client, 12, partitions=2)
        member = await joined(client)
        await ack(client, member, {0: 1, 1: 1})
        fill_disk(env)
        for end in (2, 3):
            with pytest.raises(Refused, match=FULL):
                await ack(client, member, {1: end})
        free_disk(env)
        for kind in ("queue", "stream"):
            await client.administer("topic.alter", name="t", settings={"kind": kind})
        assert await offsets(client) == [1, 3]
        await client.call(m.Unsubscribe(await joined(client)))
    async with broker_on(env, STREAM % 2):
        assert await offsets(await connected(env)) == [1, 3]


@simulated
async def test_events_that_waited_for_the_disk_are_dropped_with_their_group(env: SimEnv) -> None:
    async with broker_on(env, STREAM % 2):
        client = await connected(env)
        await publish_some(client, 12, partitions=2)
        member = await joined(client)
        await ack(client, member, {0: 1})
        fill_disk(env)
        with pytest.raises(Refused, match=FULL):
            await ack(client, member, {0: 2, 1: 2})
        await client.call(m.Unsubscribe(member))
        await trio.sleep(1)
        with pytest.raises(Refused, match=FULL):
            await client.administer("group.delete", topic="t", group="g")
        assert await offsets(client) == [2, 2]
        free_disk(env)
        await client.administer("group.delete", topic="t", group="g")
        fill_disk(env)
        member = await joined(client)
        with pytest.raises(Refused, match=FULL):
            await ack(client, member, {1: 4})
        free_disk(env)
        for kind in ("queue", "stream"):
            await client.administer("topic.alter", name="t", settings={"kind": kind})
        assert await offsets(client) == [None, 4]
        await client.call(m.Unsubscribe(await joined(client)))
    async with broker_on(env, STREAM % 2):
        assert await offsets(await connected(env)) == [None, 4]
