"""The verbs about who reads: groups that are shown, moved and forgotten, and what waits in queues."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, broker_on, connected, records, served, simulated

from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

STREAM = ALWAYS + '[topics.t]\nkind = "stream"\npartitions = 2\n'
QUEUE = '[topics.t]\nlease = "10s"\nmax_deliveries = 3\n'


async def _group_at(env: SimEnv, *offsets: int) -> RawClient:
    """A stream with five records in each partition, and the group g that has committed `offsets` and left."""
    client = await connected(env)
    for partition in range(2):
        await client.publish("t", list("abcde"), partition=partition)
    joined = await client.call(m.Subscribe("t", group="g", credit=0, start=m.START_EARLIEST))
    await trio.sleep(1)
    assert await client.commit(joined.subscription, "t", dict(enumerate(offsets))) == []
    await client.call(m.Unsubscribe(joined.subscription))
    return client


async def _places(client: RawClient) -> list[tuple[int | None, int]]:
    return [(place["offset"], place["lag"]) for place in (await client.administer("group.show", group="g"))["offsets"]]


async def _refusal(client: RawClient, verb: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as caught:
        await client.administer(verb, **arguments)
    return str(caught.value.code)


# --- groups ----------------------------------------------------------------------------------------------------------


@served(STREAM + '[topics.u]\nkind = "both"\n[topics.q]\n')
async def test_groups_are_listed_with_their_lag_by_topic_and_over_all(env: SimEnv) -> None:
    client = await _group_at(env, 1, 3)
    listed = await client.administer("group.list", topic="t")
    assert listed == [{"group": "g", "topics": ["t"], "members": 0, "epoch": 2, "assignor": "sticky", "lag": 6}]
    assert await client.administer("group.list") == listed
    assert await client.administer("group.list", topic="q") == []
    assert await _refusal(client, "group.list", topic="nowhere") == "topic.unknown"
    await client.call(m.Subscribe("u", group="g2", credit=0))
    assert [(group["topics"], group["members"]) for group in await client.administer("group.list")] == [
        (["t"], 0),
        (["u"], 1),
    ]


@served(STREAM)
async def test_a_member_is_shown_beside_its_partitions(env: SimEnv) -> None:
    client = await _group_at(env, 1, 3)
    joined = await client.call(m.Subscribe("t", group="g", credit=0))
    shown = (await client.administer("group.show", group="g"))["offsets"]
    assert len({place["member"] for place in shown}) == 1
    assert shown[0]["member"] is not None
    await client.call(m.Unsubscribe(joined.subscription))
    (first, _) = (await client.administer("group.show", group="g"))["offsets"]
    place = {"topic": "t", "partition": 0, "offset": 1, "text": "", "lag": 4, "start": 0, "end": 5, "member": None}
    assert first == place


@served(STREAM)
async def test_a_group_is_reset_to_ends_offsets_and_times(env: SimEnv) -> None:
    client = await _group_at(env, 1, 3)
    group = {"topic": "t", "group": "g"}
    before = (await client.administer("group.show", group="g"))["offsets"]
    tried = await client.administer("group.reset", **group, to="earliest", partitions=[0], validate_only=True)
    assert [row["offset"] for row in tried] == [0, before[1]["offset"]]
    assert (await client.administer("group.show", group="g"))["offsets"] == before
    shown = await client.administer("group.reset", **group, to="earliest")
    assert [place["offset"] for place in shown] == [0, 0]
    await client.administer("group.reset", **group, to="latest", partitions=[1])
    assert await _places(client) == [(0, 5), (5, 0)]
    await client.administer("group.reset", **group, offset=2)
    assert await _places(client) == [(2, 3), (2, 3)]
    await client.administer("group.reset", **group, offset=5, partitions=[0])
    await client.administer("group.reset", **group, offset=-5, partitions=[1])
    assert await _places(client) == [(5, 0), (0, 5)]
    later = records(["f"], timestamp_ms=env.clock.now_ms() + 60_000)
    await client.call(m.Publish("t", partition=0), [later])
    await client.administer("group.reset", **group, timestamp_ms=env.clock.now_ms() + 30_000)
    assert await _places(client) == [(5, 1), (5, 0)]


@simulated
async def test_a_group_continues_at_its_reset_also_after_power_loss(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, STREAM):
            client = await _group_at(env, 5, 5)
            await client.administer("group.reset", topic="t", group="g", offset=3)
            env.crash()

    await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, STREAM):
        client = await connected(env)
        assert await _places(client) == [(3, 2), (3, 2)]
        await client.call(m.Subscribe("t", group="g", credit=100))
        offsets = {}
        while len(offsets) < 2:
            event = await client.push()
            if isinstance(event.message, m.Deliver):
                offsets[event.message.partition] = event.batches[0].base_offset
        assert offsets == {0: 3, 1: 3}


@served(STREAM)
async def test_a_group_with_members_is_neither_moved_nor_forgotten(env: SimEnv) -> None:
    client = await _group_at(env, 1, 3)
    await client.call(m.Subscribe("t", group="g", credit=0))
    for verb, more in (("group.reset", {"to": "latest"}), ("group.delete", {})):
        assert await _refusal(client, verb, topic="t", group="g", **more) == "group.busy"
    assert await _places(client) == [(1, 4), (3, 2)]


@simulated
async def test_a_forgotten_group_stays_forgotten_and_begins_anew(env: SimEnv) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, STREAM):
            client = await _group_at(env, 1, 3)
            await client.administer("group.delete", topic="t", group="g")
            assert await client.administer("group.list") == []
            assert await _refusal(client, "group.show", group="g") == "group.unknown"
            env.crash()

    await env.run_until_death(process)
    env = env.restart()
    async with broker_on(env, STREAM):
        client = await connected(env)
        assert await client.administer("group.list") == []
        await client.call(m.Subscribe("t", group="g", credit=0))
        assert await _places(client) == [(None, 5), (None, 5)]
        (listed,) = await client.administer("group.list")
        assert listed["epoch"] == 1


@served(STREAM + "[topics.q]\n")
async def test_nonsensical_arguments_are_refused(env: SimEnv) -> None:
    client = await _group_at(env, 1, 3)
    group = {"topic": "t", "group": "g"}
    for arguments in (
        {},
        {"to": "middle"},
        {"offset": "1"},
        {"offset": True},
        {"offset": 1, "to": "latest"},
        {"to": "latest", "partitions": "all"},
        {"to": "latest", "partitions": [True]},
    ):
        assert await _refusal(client, "group.reset", **group, **arguments) == "config.invalid"
    assert await _refusal(client, "group.reset", **group, to="latest", partitions=[2]) == "topic.partition_unknown"
    assert await _refusal(client, "group.reset", topic="t", group="gg", to="latest") == "group.unknown"
    assert await _refusal(client, "group.delete", topic="q", group="g") == "delivery.wrong_kind"
    assert await _refusal(client, "group.delete", topic="t") == "config.invalid"
    assert await _refusal(client, "group.show", group="\udcff") == "config.invalid"
    assert await _places(client) == [(1, 4), (3, 2)]


# --- queues ----------------------------------------------------------------------------------------------------------


@served(QUEUE + '[topics.s]\nkind = "stream"\n')
async def test_a_queue_is_shown_by_state_partition_and_consumer(client: RawClient) -> None:
    await client.publish("t", list("abcde"))
    joined = await client.call(m.Subscribe("t", credit=3))
    event = await client.delivery()
    shown = await client.administer("subscription.show", topic="t")
    (part,), (consumer,) = shown["by_partition"], shown["by_consumer"]
    assert (shown["unsettled"], shown["ready"], shown["leased"], shown["consumers"]) == (5, 2, 3, 1)
    assert consumer["leased"] == 3
    await client.call(m.Credit(joined.subscription, 2))
    settled = [m.Settlement(0, event.message.delivery_id, 1, 2)]
    await client.call(m.Settle(joined.subscription, settled))
    (part,) = (await client.administer("subscription.show", topic="t"))["by_partition"]
    assert (part["settled_before"], part["settled"], part["end"], part["leased"]) == (0, [[1, 2]], 5, 2)
    await client.call(m.Unsubscribe(joined.subscription))
    (listed,) = await client.administer("subscription.list")
    assert listed == {
        "topic": "t",
        "subscription": "",
        "unsettled": 4,
        "ready": 4,
        "returned": 2,
        "leased": 0,
        "decided": 0,
        "delayed": 0,
        "dead": 0,
        "damaged": 0,
        "oldest_ready_s": listed["oldest_ready_s"],
        "missed": 0,
        "expired": 0,
        "consumers": 0,
    }
    assert await _refusal(client, "subscription.show", topic="s") == "delivery.wrong_kind"
    assert await _refusal(client, "subscription.show") == "config.invalid"
