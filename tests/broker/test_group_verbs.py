"""The verbs about groups of several topics, and commits with a text."""

from __future__ import annotations

import pytest
from raw_client import ALWAYS, RawClient, Refused, broker_on, connected, served, simulated

from linn.core.groups.group import TEXT_BYTES_MAX
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TEXT = ALWAYS + "".join(f'[topics.{name}]\nkind = "stream"\npartitions = 2\n' for name in "tu")


async def _joined(env: SimEnv, name: str = "ann", **options: object) -> tuple[RawClient, dict[str, int]]:
    """A member of g that reads t and u, with five records in each partition; its subscriptions by topic."""
    client = await connected(env)
    subscriptions = {}
    for topic in "tu":
        subscribe = m.Subscribe(topic, group="g", member=name, **options)  # type: ignore[arg-type]
        subscriptions[topic] = (await client.call(subscribe)).subscription
        for partition in (0, 1):
            await client.publish(topic, ["v"] * 5, partition=partition)
    return client, subscriptions


async def _places(client: RawClient) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for row in (await client.administer("group.show", group="g"))["offsets"]:
        found.setdefault(row["topic"], []).append(row["offset"])
    return found


async def _refusal(client: RawClient, verb: str, **arguments: object) -> str:
    with pytest.raises(Refused) as refused:
        await client.administer(verb, **arguments)
    return refused.value.code


@simulated
async def test_a_group_is_reset_and_deleted_in_one_topic_or_in_all(env: SimEnv) -> None:
    async with broker_on(env, TEXT):
        client, members = await _joined(env)
        for topic, subscription in members.items():
            for partition in (0, 1):
                await client.call(m.Commit(subscription, partition, 2, 3, topic))
        for verb, more in (("group.reset", {"to": "latest"}), ("group.delete", {})):
            assert await _refusal(client, verb, group="g", **more) == "group.busy"
            assert await _refusal(client, verb, group="g", topic="u", **more) == "group.busy"
        await client.call(m.Unsubscribe(members["t"]))
        assert await _refusal(client, "group.reset", group="g", to="latest") == "group.busy"
        await client.administer("group.reset", group="g", topic="t", to="latest", partitions=[1])
        await client.call(m.Unsubscribe(members["u"]))
        assert await _places(client) == {"t": [3, 5], "u": [3, 3]}
        tried = await client.administer("group.reset", group="g", to="earliest", validate_only=True)
        assert [row["offset"] for row in tried] == [0, 0, 0, 0]
        assert await _places(client) == {"t": [3, 5], "u": [3, 3]}
        assert await _refusal(client, "group.reset", group="g", to="latest", partitions=[0]) == "config.invalid"
        await client.administer("group.reset", group="g", offset=4)
        assert await _places(client) == {"t": [4, 4], "u": [4, 4]}
        await client.administer("group.delete", group="g", topic="t")
        assert await _places(client) == {"u": [4, 4]}
        await client.administer("group.delete", group="g")
        assert await client.administer("group.list") == []
    async with broker_on(env, TEXT):
        assert await (await connected(env)).administer("group.list") == []


@served(TEXT)
async def test_members_are_shown_with_their_epochs(env: SimEnv) -> None:
    ann, subscriptions = await _joined(env, session_ms=60_000, is_static=True)
    await _joined(env, "bob")
    shown = (await ann.administer("group.show", group="g"))["members"]
    assert [(one["member"], one["is_static"], one["session_s"]) for one in shown] == [
        ("ann", True, 60.0),
        ("bob", False, 0.0),
    ]
    epoch = (await ann.administer("group.show", group="g"))["epoch"]
    assert shown[0]["epoch"] < epoch == shown[1]["epoch"], "ann has something to let go of"
    for subscription in subscriptions.values():
        await ann.call(m.Heartbeat(subscription, epoch))
    shown = (await ann.administer("group.show", group="g"))["members"]
    assert [(one["epoch"], one["partitions"], one["topics"]) for one in shown] == [(epoch, 2, ["t", "u"])] * 2


@simulated
async def test_a_text_is_kept_with_its_offset_until_the_next_commit(env: SimEnv) -> None:
    async with broker_on(env, TEXT):
        client, members = await _joined(env)
        await client.call(m.Commit(members["t"], 0, 2, 3, "three"))
        await client.call(m.Commit(members["t"], 1, 2, 4, "four"))
        await client.call(m.Settle(members["t"], [m.Settlement(1, 2, 4, 5)]))
        wrong = [
            (m.Commit(members["t"], 0, 2, 1, "ä" * (TEXT_BYTES_MAX // 2 + 1)), "limit.exceeded"),
            (m.Commit(members["t"], 0, 2, 6), "log.offset_out_of_range"),
            (m.Commit(members["t"], 0, 2, -1), "log.offset_out_of_range"),
            (m.Commit(members["t"], 2, 2, 1), "topic.partition_unknown"),
            (m.Commit(members["t"], 0, 9, 1), "group.fenced"),
        ]
        for commit, code in wrong:
            with pytest.raises(Refused) as refused:
                await client.call(commit)
            assert refused.value.code == code, commit
        reader = (await client.call(m.Subscribe("t"))).subscription
        with pytest.raises(Refused, match=r"delivery\.wrong_kind"):
            await client.call(m.Commit(reader, 0, 2, 1))
    async with broker_on(env, TEXT):
        rows = (await (await connected(env)).administer("group.show", group="g"))["offsets"]
        assert [(row["offset"], row["text"]) for row in rows if row["topic"] == "t"] == [(3, "three"), (5, "")]
