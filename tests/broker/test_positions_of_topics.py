"""Positions of groups at a broker alone: each topic has a log of them, from the first group that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from raw_client import (
    ALWAYS,
    RawClient,
    Refused,
    after_power_loss,
    broker_on,
    connected,
    served,
    simulated,
)
from test_transactions import A, Owner

from linn.core.broker.broker import Broker
from linn.core.errors.tree import LogCorrupt
from linn.core.groups.event import EpochStarted, OffsetCommitted
from linn.core.groups.topic_positions import TopicPositions, groups_log
from linn.core.log.state_log import StateLog
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

TOML = '[topics.t]\nkind = "stream"\npartitions = 2\n[topics.u]\nkind = "stream"\n'
FOLDER = "data/segmented-log"
ROOM_BYTES = 1 << 30
FULL = r"storage\.disk_full"


async def offsets(client: RawClient, group: str = "g") -> dict[tuple[str, int], int | None]:
    """The positions of a group, by topic and partition."""
    rows = (await client.administer("group.show", group=group))["offsets"]
    return {(row["topic"], row["partition"]): row["offset"] for row in rows}


async def groups(client: RawClient) -> dict[str, int]:
    """The epochs of all groups."""
    return {row["group"]: row["epoch"] for row in await client.administer("group.list")}


async def commit(client: RawClient, topic: str, end: int, group: str = "g") -> None:
    """Commit an offset in a topic's first partition, as a member that leaves again."""
    subscription = (await client.call(m.Subscribe(topic, group=group))).subscription
    epoch = (await groups(client))[group]
    settled = await client.call(m.Settle(subscription, [m.Settlement(0, epoch, 0, end)]))
    assert not settled.refused
    await client.call(m.Unsubscribe(subscription))


async def log_as_worker(broker: Broker, topic: str, positions: Mapping[str, Sequence[OffsetCommitted]]) -> None:
    """Log positions of groups as the leader of a replicated topic does, which had other ends of the topic's logs."""
    state = StateLog(await broker.topics[topic].make_log(groups_log(topic)), broker.env.clock)
    for group, committed in positions.items():
        TopicPositions(topic, state).append(group, [EpochStarted(7), *committed])
    await state.make_durable()
    await state.partition.close()


# --- starts ----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_topic_has_a_log_of_groups_once_a_group_reads_it(env: SimEnv) -> None:
    for _ in range(2):
        async with broker_on(env, TOML):
            client = await connected(env)
            await client.call(m.Subscribe("t"))
            assert env.disk.list_dir(FOLDER) == ["t", "u"]
    async with broker_on(env, TOML):
        await commit(await connected(env), "t", 0)
        assert env.disk.list_dir(FOLDER) == ["__g.t", "t", "u"]


@simulated
async def test_positions_and_epochs_of_a_group_of_several_topics_survive(env: SimEnv) -> None:
    async with broker_on(env, TOML):
        client = await connected(env)
        for topic in ("t", "u"):
            await client.publish(topic, ["a", "b", "c"], partition=0)
        await commit(client, "t", 1)
        for end in (1, 2, 3):
            await commit(client, "u", end)
        before = await groups(client)
    async with broker_on(env, TOML):
        client = await connected(env)
        assert await offsets(client) == {("t", 0): 1, ("t", 1): None, ("u", 0): 3}
        assert await groups(client) == before
        await commit(client, "t", 2)
        assert (await groups(client))["g"] > before["g"]


@simulated
async def test_a_broker_alone_goes_on_at_the_positions_of_its_workers(env: SimEnv) -> None:
    async with broker_on(env, TOML) as broker:
        client = await connected(env)
        for partition in (0, 1):
            await client.publish("t", ["a", "b", "c"], partition=partition)
        await client.publish("u", ["a", "b"])
        await log_as_worker(broker, "t", {"g": [OffsetCommitted("t", 0, 2)], "h": [OffsetCommitted("t", 1, 9)]})
        await log_as_worker(broker, "u", {"g": [OffsetCommitted("u", 0, 2)]})
    for _ in range(2):
        async with broker_on(env, TOML) as broker:
            client = await connected(env)
            assert await offsets(client, "g") == {("t", 0): 2, ("t", 1): None, ("u", 0): 2}
            assert await offsets(client, "h") == {("t", 0): None, ("t", 1): 3}, "not beyond the end"
            assert broker.groups.groups["g"].epoch >= 7


@simulated
async def test_a_full_disk_does_not_keep_a_broker_from_starting_but_a_topic_with_lost_records_from_storing(
    env: SimEnv,
) -> None:
    async with broker_on(env, TOML) as broker:
        client = await connected(env)
        for topic in ("t", "u"):
            await client.publish(topic, ["a"], partition=0)
        await log_as_worker(broker, "t", {"g": [OffsetCommitted("t", 0, 3)]})
    env.disk.capacity_bytes = env.disk.used_bytes
    async with broker_on(env, TOML) as broker:
        client = await connected(env)
        assert (await offsets(client))["t", 0] == 1
        positions = broker.topics["t"].positions
        assert positions is not None
        await env.clock.sleep(5)
        assert positions.waiting == 1
        partition, clipped = broker.topics["t"].partitions[0], broker.topics["t"]._clipped
        assert len(clipped.holders) == 1
        env.disk.capacity_bytes = ROOM_BYTES
        with pytest.raises(Refused, match=FULL):
            await client.publish("t", ["x"], partition=0)
        assert partition.high_watermark == 1
        await client.publish("u", ["b"])
        await env.clock.sleep(1)
        await client.publish("t", ["b", "c"], partition=0)
    async with broker_on(env, TOML):
        assert await (await connected(env)).taken("t", "g") == ["b", "c"]


@simulated
async def test_positions_of_an_earlier_version_are_not_passed_over(env: SimEnv) -> None:
    async with broker_on(env, TOML):
        env.disk.make_dir(f"{FOLDER}/__groups/0")
        env.disk.make_dir(f"{FOLDER}/__groups/1")
    async with broker_on(env, TOML):
        env.disk.open(f"{FOLDER}/__groups/1/00000000000000000000.log", create=True)
    with pytest.raises(LogCorrupt, match=f"{FOLDER}/__groups has the positions of groups in the format of an earlier"):
        async with broker_on(env, TOML):
            pytest.fail("it has lost the positions")


def test_positions_are_on_stable_storage_when_a_log_was_idle() -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, TOML):
            client = await connected(env)
            await client.publish("u", ["a", "b"])
            await commit(client, "u", 2)
            await env.clock.sleep(60)
            env.crash()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(process)
        env = await after_power_loss(env, TOML)
        async with broker_on(env, TOML):
            assert await offsets(await connected(env)) == {("u", 0): 2}

    for seed in range(8):
        run_simulation(seed, scenario)


# --- a full disk while it runs ---------------------------------------------------------------------------------------


@served(TOML)
async def test_a_topic_that_no_group_has_read_is_not_joined_on_a_full_disk(env: SimEnv, client: RawClient) -> None:
    await client.publish("u", ["a", "b"])
    env.disk.capacity_bytes = env.disk.used_bytes
    with pytest.raises(Refused, match=FULL):
        await client.call(m.Subscribe("u", group="g"))
    assert await groups(client) == {}
    env.disk.capacity_bytes = ROOM_BYTES
    assert await client.taken("u", "g") == ["a", "b"]


# --- deletion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["go on", "restart", "power"])
def test_a_topic_made_again_has_no_positions_of_the_one_before(end: str) -> None:
    text = ALWAYS + '[topics.t]\nkind = "stream"\n'

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text):
            client = await connected(env)
            await client.administer("topic.create", name="v", settings={"kind": "stream"})
            for topic in ("t", "v"):
                await client.publish(topic, ["a", "b", "c"])
                await commit(client, topic, 3)
            await client.administer("topic.delete", name="v")
            assert "__g.v" not in env.disk.list_dir(FOLDER)
            if end == "go on":
                await made_again(client)
            elif end == "power":
                env.crash()

    async def made_again(client: RawClient) -> None:
        await client.administer("topic.create", name="v", settings={"kind": "stream"})
        await client.publish("v", ["x", "y"])
        assert await offsets(client) == {("t", 0): 3}
        assert await client.taken("v", "g") == ["x", "y"]

    async def scenario(env: SimEnv) -> None:
        died = await env.run_until_death(process)
        assert died == (end == "power")
        if end != "go on":
            env = await after_power_loss(env, text) if died else env
            async with broker_on(env, text):
                await made_again(await connected(env))

    run_simulation(0, scenario)


def test_an_interrupted_deletion_is_finished_with_the_positions() -> None:
    text = ALWAYS + '[topics.t]\nkind = "stream"\n'
    finished: list[bool] = []

    async def scenario(env: SimEnv, at: int) -> None:
        async def process(env: SimEnv) -> None:
            async with broker_on(env, text):
                client = await connected(env)
                await client.administer("topic.create", name="v", settings={"kind": "stream"})
                await client.publish("v", ["a"])
                await commit(client, "v", 1)
                env.disk.crash_at = len(env.disk.operations) + at
                await client.administer("topic.delete", name="v")
                env.crash()

        assert await env.run_until_death(process)
        env = await after_power_loss(env, text)
        async with broker_on(env, text):
            client = await connected(env)
            is_there = "v" in [row["name"] for row in await client.administer("topic.list")]
            assert ("__g.v" in env.disk.list_dir(FOLDER)) == is_there
            assert (await groups(client) != {}) == is_there
            finished.append(not is_there)

    at = 0
    while sum(finished) < 20:
        run_simulation(0, lambda env, at=at: scenario(env, at))  # type: ignore[misc]
        at += 1
    assert not finished[0]


@served(ALWAYS + TOML)
async def test_a_group_is_gone_with_its_only_topic_and_a_deletion_confirms_commits(
    env: SimEnv, client: RawClient, other: RawClient
) -> None:
    env.disk.sync_delay_s_max = 0.5
    await client.administer("topic.create", name="v", settings={"kind": "stream"})
    await client.publish("v", ["a"])
    subscription = (await client.call(m.Subscribe("v", group="only"))).subscription
    sent = await client.send(m.Settle(subscription, [m.Settlement(0, 1, 0, 1)]))
    await other.administer("topic.delete", name="v")
    assert not (await client.answer(sent)).message.refused  # type: ignore[union-attr]
    assert await groups(client) == {}


# --- transactions ----------------------------------------------------------------------------------------------------

TWO = """
[storage.safe]
engine = "segmented-log"
fsync = "always"
[topics.t]
kind = "stream"
[topics.out]
kind = "stream"
storage = "safe"
"""
SAFE = '[broker]\ndata_dir = "data"\ndrain_timeout = "2s"\ntransaction_storage = "safe"\n'


async def commit_with_offset(env: SimEnv, at: int | None) -> int:
    """Commit a transaction, and lose power at an operation on the disk; returns the number of operations."""

    async def process(env: SimEnv) -> None:
        async with broker_on(env, TWO, SAFE):
            client = await connected(env)
            await client.publish("t", ["a", "b", "c"])
            await env.clock.sleep(60)  # Until the topic's own records are on stable storage.
            owner = await Owner.open(client)
            subscription = (await client.call(m.Subscribe("t", group="g"))).subscription
            event = await client.pull(subscription, 2)
            assert isinstance(event.message, m.Deliver)
            await owner.settle(subscription, event.message, event.batches)
            await owner.publish("out", ["of a and b"])
            first = len(env.disk.operations)
            env.disk.crash_at = None if at is None else first + at
            await owner.end(commit=True)
            await env.clock.sleep(1)
            operations.append(len(env.disk.operations) - first)
            env.crash()

    operations: list[int] = []
    assert await env.run_until_death(process)
    env = await after_power_loss(env, TWO)
    for _ in range(2):
        async with broker_on(env, TWO, SAFE):
            client = await connected(env)
            is_committed = await client.fetch("out") == ["of a and b"]
            position = (await offsets(client)).get(("t", 0)) if await groups(client) else None
            assert position == (2 if is_committed else None)
    decided.append(is_committed)
    return operations[0] if operations else 0


decided: list[bool] = []


def test_offsets_of_a_transaction_are_as_durable_as_its_decision() -> None:
    """Though the topic's storage does not sync what it confirms, and a power loss may take its log of positions."""
    decided.clear()
    count = run_simulation(0, lambda env: commit_with_offset(env, None))
    for seed in range(4):
        for at in range(seed, count, 4):
            run_simulation(seed, lambda env, at=at: commit_with_offset(env, at))  # type: ignore[misc]
    assert {False, True} == set(decided)


def test_offsets_of_a_transaction_are_not_for_a_topic_that_was_made_again() -> None:
    """A full disk keeps the offsets from being applied, until the deletion of their topic makes room."""
    delayed: list[int] = []

    async def scenario(env: SimEnv, room_bytes: int) -> None:
        async with broker_on(env, TWO, SAFE) as broker:
            client, other = await connected(env), await connected(env)
            await client.administer("topic.create", name="v", settings={"kind": "stream"})
            await client.publish("v", ["a" * 10_000, "b"])
            owner = await Owner.open(client)
            subscription = (await client.call(m.Subscribe("v", group="g"))).subscription
            event = await client.pull(subscription, 1)
            assert isinstance(event.message, m.Deliver)
            await owner.settle(subscription, event.message, event.batches)
            await owner.publish("out", ["of a"])
            env.disk.capacity_bytes = env.disk.used_bytes + room_bytes
            end = m.EndTransaction(owner.id, owner.epoch, owner.number, True, [A], producer_key=owner.key)
            sent = await client.send(end)
            await env.clock.sleep(0.1)
            if not client.is_answered(sent) and not broker.transactions._endings:
                return  # There was no room for the decision.
            applied = broker.groups.groups["g"].position("v", 0) is not None
            delayed.append(not applied)
            await other.administer("topic.delete", name="v")
            env.disk.capacity_bytes = ROOM_BYTES
            await other.administer("topic.create", name="v", settings={"kind": "stream"})
            assert await client.code_of(sent) == ""
            assert await groups(other) == {}

    for room_bytes in range(0, 1200, 40):
        run_simulation(0, lambda env, room_bytes=room_bytes: scenario(env, room_bytes))  # type: ignore[misc]
    assert any(delayed)
