"""Seek over the wire: a stream's reader or a group's member goes on elsewhere in a partition, or pauses."""

from __future__ import annotations

import pytest
from raw_client import RawClient, Refused, connected, served, values

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = '[topics.t]\nkind = "stream"\npartitions = 2\n[topics.q]\n'


async def _filled(env: SimEnv, count: int = 5) -> RawClient:
    client = await connected(env)
    for number in range(count):
        for partition in (0, 1):
            await client.publish("t", [f"{partition}.{number}"], partition=partition)
    return client


async def _pushed(client: RawClient, wait_s: float = 2.0) -> list[str]:
    """The values of all deliveries until nothing more comes."""
    found: list[str] = []
    while not await client.is_silent(wait_s):
        event = await client.push()
        if isinstance(event.message, m.Deliver):
            found += values(event.batches)
    return sorted(found)


@pytest.mark.parametrize("group", ["", "g"])
@served(TEXT)
async def test_a_seek_goes_on_at_the_offset_and_the_other_partitions_are_left_alone(env: SimEnv, group: str) -> None:
    client = await _filled(env)
    subscription = (await client.call(m.Subscribe("t", group=group, credit=1000))).subscription
    assert len(await _pushed(client)) == 10
    for offset, expected in ((3, ["0.3", "0.4"]), (0, [f"0.{n}" for n in range(5)]), (5, [])):
        await client.call(m.Seek(subscription, 0, offset))
        assert await _pushed(client) == expected
    await client.publish("t", ["0.5"], partition=0)
    await client.publish("t", ["1.5"], partition=1)
    assert await _pushed(client) == ["0.5", "1.5"]


@pytest.mark.parametrize("group", ["", "g"])
@served(TEXT)
async def test_a_paused_partition_delivers_nothing_until_it_is_resumed_where_it_was_or_elsewhere(
    env: SimEnv, group: str
) -> None:
    client = await _filled(env, 1)
    subscription = (await client.call(m.Subscribe("t", group=group, credit=1000))).subscription
    assert await _pushed(client) == ["0.0", "1.0"]
    await client.call(m.Seek(subscription, 0, is_paused=True))
    for number in (1, 2, 3):
        await client.publish("t", [f"0.{number}"], partition=0)
    await client.publish("t", ["1.1"], partition=1)
    assert await _pushed(client) == ["1.1"]
    await client.call(m.Seek(subscription, 0))
    assert await _pushed(client) == ["0.1", "0.2", "0.3"]
    await client.call(m.Seek(subscription, 0, is_paused=True))
    await client.call(m.Seek(subscription, 0, 2, is_paused=True))
    assert await _pushed(client) == []
    await client.call(m.Seek(subscription, 0))
    assert await _pushed(client) == ["0.2", "0.3"]


@served(TEXT)
async def test_a_nack_in_a_paused_partition_moves_it_and_it_stays_paused(env: SimEnv) -> None:
    client = await _filled(env)
    subscription = (await client.call(m.Subscribe("t", group="g", credit=1000))).subscription
    await _pushed(client)
    await client.call(m.Seek(subscription, 1, is_paused=True))
    nack = m.Settlement(1, 1, 3, 4, m.Verdict.NACK)
    assert (await client.call(m.Settle(subscription, [nack]))).refused == []
    assert await _pushed(client) == []
    await client.call(m.Seek(subscription, 1))
    assert await _pushed(client) == ["1.3", "1.4"]


@served(TEXT)
async def test_what_comes_behind_the_answer_to_a_seek_is_from_the_new_place(env: SimEnv) -> None:
    client = await _filled(env, 50)
    subscription = (await client.call(m.Subscribe("t", group="g", credit=40))).subscription
    for offset, left in ((40, 50), (7, 0), (21, 0)):
        # Of partition 1 some is left at first; then there is no credit for anything while the seek is answered.
        assert len(await _pushed(client)) == (40 if left else 0)
        await client.call(m.Seek(subscription, 0, offset))
        await client.tell(m.Credit(subscription, 50 - offset + left))
        read = [int(value[2:]) for value in await _pushed(client) if value.startswith("0.")]
        assert sorted(read) == list(range(offset, 50))


@served(TEXT)
async def test_a_seek_that_makes_no_sense_is_refused_and_changes_nothing(env: SimEnv) -> None:
    client, other = await _filled(env), await connected(env)
    reader = (await client.call(m.Subscribe("t", partitions=[0]))).subscription
    member = (await other.call(m.Subscribe("t", group="g", credit=100))).subscription
    queue = (await client.call(m.Subscribe("q"))).subscription
    wrong = [
        (client, m.Seek(reader, 1, 0), "topic.partition_unknown"),
        (client, m.Seek(reader, 0, 6), "log.offset_out_of_range"),
        (client, m.Seek(reader, 0, -2), "log.offset_out_of_range"),
        (client, m.Seek(queue, 0, 0), "delivery.wrong_kind"),
        (client, m.Seek(99, 0, 0), "delivery.subscription_unknown"),
        (other, m.Seek(member, 2, 0), "group.fenced"),
    ]
    for who, seek, code in wrong:
        with pytest.raises(Refused) as refused:
            await who.call(seek)
        assert refused.value.code == code, seek
    assert len(await _pushed(other)) == 10
    assert len(values((await client.pull(reader)).batches)) == 5
    await other.call(m.Seek(member, 0, is_paused=True))
    await other.call(m.Unsubscribe(member))
    again = (await other.call(m.Subscribe("t", group="g", credit=100))).subscription
    assert len(await _pushed(other)) == 10, "nothing was committed, and a pause ends with its member"
    await other.call(m.Unsubscribe(again))
