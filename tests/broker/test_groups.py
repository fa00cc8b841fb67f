"""Consumer groups over the wire: who reads what, where they go on, and who may say so."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from raw_client import ALWAYS, RawClient, Refused, after_power_loss, broker_on, connected, served, simulated, values

from linn.core.broker.broker import Broker
from linn.core.groups.coordinator import RELEASE_S
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

SESSION_MS = 4_000
TEXT = '[topics.t]\nkind = "stream"\npartitions = 4\n'


class Member:
    """One member, each on a connection of its own."""

    def __init__(self, client: RawClient, **who: Any) -> None:
        self.client = client
        self.who = who
        self.share: list[int] = []
        self.epoch = 0
        self.seen: list[tuple[int, str]] = []

    async def join(self, credit: int = 1000, start: int = m.START_EARLIEST) -> Member:
        answer = await self.client.call(m.Subscribe("t", group="g", credit=credit, start=start, **self.who))
        assert answer.kind == m.ConsumerKind.GROUP
        self.subscription = answer.subscription
        return self

    async def settle_down(self) -> Member:
        """Take in what was pushed until nothing more comes. Within a session it must be called again."""
        if self.who:
            await self.client.tell(m.Heartbeat(self.subscription, self.epoch))
        while not await self.client.is_silent(1):
            event = await self.client.push()
            if isinstance(event.message, m.Assigned):
                await self.let_go(event.message)
            else:
                self.seen += [(event.message.partition, value) for value in values(event.batches)]
        return self

    async def let_go(self, assigned: m.Assigned) -> None:
        self.share, self.epoch = assigned.partitions, assigned.epoch
        if assigned.revoked:
            await self.client.tell(m.Heartbeat(self.subscription, self.epoch))

    async def commit(self, partition: int, offset: int, epoch: int | None = None) -> str:
        entry = m.Settlement(partition, self.epoch if epoch is None else epoch, 0, offset)
        refused = (await self.client.call(m.Settle(self.subscription, [entry]))).refused
        return refused[0].code if refused else ""


async def settle(*members: Member) -> None:
    """Let the group settle: what moves is let go of by one member, and told to the next."""
    for _ in range(3):
        for member in members:
            await member.settle_down()


async def _member(env: SimEnv, **options: int) -> Member:
    return await (await Member(await connected(env)).join(**options)).settle_down()


async def _fill(env: SimEnv, count: int = 12) -> None:
    client = await connected(env)
    for number in range(count):
        await client.publish("t", [str(number)], partition=number % 4)


@served(TEXT)
async def test_each_partition_has_one_reader_under_joins_and_leaves(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env)
    assert one.share == [0, 1, 2, 3]
    assert sorted(one.seen) == sorted((number % 4, str(number)) for number in range(12))
    two = await _member(env)
    three = await _member(env)
    await settle(one, two, three)
    assert sorted(one.share + two.share + three.share) == [0, 1, 2, 3]
    await two.client.call(m.Unsubscribe(two.subscription))
    await three.client.stream.aclose()
    await trio.sleep(1)
    await one.settle_down()
    assert one.share == [0, 1, 2, 3]
    shown = await one.client.administer("group.list", topic="t")
    assert [(group["group"], group["members"]) for group in shown] == [("g", 1)]


@served(TEXT)
async def test_a_new_owner_of_a_partition_continues_at_the_last_commit(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env)
    for partition in range(4):
        assert await one.commit(partition, 2) == ""
    two = await _member(env)
    await settle(one, two)
    assert len(two.share) == 2
    assert sorted(two.seen) == [(partition, str(partition + 8)) for partition in two.share]


@served(TEXT)
async def test_only_the_owner_of_a_partition_commits_in_it(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env)
    two = await _member(env)
    await settle(one, two)
    for stranger, owner in ((one, two), (two, one)):
        for partition in owner.share:
            assert await stranger.commit(partition, 1) == "group.fenced"
            assert await owner.commit(partition, 1) == ""
    assert await one.commit(9, 1) == "topic.partition_unknown"
    assert await one.commit(one.share[0], 4) == "log.offset_out_of_range"
    assert await one.commit(one.share[0], -1) == "log.offset_out_of_range"
    entry = m.Settlement(9, 0, 0, 1, m.Verdict.NACK)
    refused = (await one.client.call(m.Settle(one.subscription, [entry]))).refused
    assert [refusal.code for refusal in refused] == ["group.fenced"]
    shown = (await one.client.administer("group.show", group="g"))["offsets"]
    assert [row["offset"] for row in shown] == [1, 1, 1, 1]


@served(TEXT)
async def test_a_commit_of_what_was_read_before_the_partition_was_lost_is_fenced(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env)
    two = await _member(env)
    await settle(one, two)
    assert 3 in two.share
    await two.client.call(m.Unsubscribe(two.subscription))
    await settle(one)
    assert (one.share, one.epoch) == ([0, 1, 2, 3], 3)
    assert await one.commit(3, 1, epoch=1) == "group.fenced"
    assert await one.commit(3, 1, epoch=2) == "group.fenced"
    assert await one.commit(3, 1, epoch=4) == "group.fenced"
    assert await one.commit(0, 1, epoch=1) == "", "it was never another's"
    assert await one.commit(3, 1, epoch=3) == ""


@served(TEXT)
async def test_a_partition_is_read_by_its_owner_until_that_one_lets_go(env: SimEnv) -> None:
    one, two = await _member(env), await _member(env)
    moves = await one.client.push()
    assert (moves.message.partitions, moves.message.revoked) == ([0, 1], [2, 3])
    await _fill(env, 4)
    assert await one.commit(2, 1, epoch=1) == "", "it has not let go"
    await two.settle_down()
    assert (two.share, two.seen) == ([], [])
    await one.let_go(moves.message)
    await settle(one, two)
    assert (one.share, two.share) == ([0, 1], [2, 3])
    assert (one.seen, two.seen) == ([(0, "0"), (1, "1")], [(3, "3")])
    assert await one.commit(2, 1) == "group.fenced"


@served(TEXT)
async def test_a_member_that_does_not_let_go_loses_the_partition_in_the_end(env: SimEnv) -> None:
    one, two = await _member(env), await _member(env)
    await trio.sleep(RELEASE_S - 5)
    assert (await two.settle_down()).share == []
    await trio.sleep(5)
    assert (await two.settle_down()).share == [2, 3]
    one.epoch = 2
    assert [await one.commit(partition, 0) for partition in range(4)] == ["", "", "group.fenced", "group.fenced"]


# --- sessions --------------------------------------------------------------------------------------------------------


def in_session(env_client: RawClient, name: str, *, is_static: bool = False) -> Member:
    return Member(env_client, member=name, session_ms=SESSION_MS, is_static=is_static)


@served(TEXT)
async def test_a_member_that_reconnects_in_time_continues_with_its_partitions(env: SimEnv) -> None:
    await _fill(env)
    one = await in_session(await connected(env), "ann").join()
    await one.settle_down()
    await one.commit(0, 2)
    await one.client.stream.aclose()
    two = await in_session(await connected(env), "bob").join()
    await two.settle_down()
    assert two.share == [], "the partitions of ann are kept"
    again = await in_session(await connected(env), "ann").join()
    await again.settle_down()
    await settle(again, two)
    assert (again.share, two.share) == ([0, 1], [2, 3])
    assert [value for partition, value in again.seen if partition == 0] == ["8"]


@served(TEXT)
async def test_the_partitions_of_a_member_that_is_away_for_a_session_go_to_others(env: SimEnv) -> None:
    one, two = Member(await connected(env)), await _member(env)
    one = await in_session(await connected(env), "ann").join()
    await settle(one, two)
    assert sorted(one.share + two.share) == [0, 1, 2, 3]
    await one.client.stream.aclose()
    await trio.sleep(SESSION_MS / 1000)
    assert (await two.settle_down()).share == [0, 1, 2, 3]


@served(TEXT)
async def test_a_session_ends_without_heartbeats_though_the_connection_lasts(env: SimEnv) -> None:
    one = await in_session(await connected(env), "ann").join()
    await one.settle_down()
    for _ in range(5):
        await trio.sleep(SESSION_MS / 2000)
        await one.client.call(m.Heartbeat(one.subscription, 0))
    await trio.sleep(SESSION_MS / 1000)
    ended = await one.client.push()
    assert ended.message == m.Ended(one.subscription, "group.session_expired", ended.message.text)
    with pytest.raises(Refused, match=r"delivery\.subscription_unknown"):
        await one.client.call(m.Heartbeat(one.subscription, 0))


@served(TEXT)
async def test_a_name_that_is_taken_is_taken_over(env: SimEnv) -> None:
    one = await in_session(await connected(env), "ann").join()
    await one.settle_down()
    other = await in_session(await connected(env), "ann").join()
    ended = await one.client.push()
    assert isinstance(ended.message, m.Ended)
    assert ended.message.code == "group.fenced"
    assert (await other.settle_down()).share == [0, 1, 2, 3]
    (group,) = await other.client.administer("group.list", topic="t")
    assert (group["members"], group["epoch"]) == (1, 1)


@pytest.mark.parametrize("is_static", [False, True])
@served(TEXT)
async def test_a_static_member_keeps_its_partitions_when_it_leaves(env: SimEnv, is_static: bool) -> None:
    one = await in_session(await connected(env), "ann", is_static=is_static).join()
    two = await _member(env)
    await settle(one, two)
    await one.client.call(m.Unsubscribe(one.subscription))
    await two.settle_down()
    assert two.share == ([2, 3] if is_static else [0, 1, 2, 3])
    again = await in_session(await connected(env), "ann", is_static=is_static).join()
    await settle(again, two)
    assert sorted(again.share + two.share) == [0, 1, 2, 3]
    assert not is_static or again.share == [0, 1]


@served('[topics.t]\nkind = "stream"\npartitions = 400\n')
async def test_a_hundred_members_are_balanced_right_after_the_sessions_of_those_that_died(
    env: SimEnv, broker: Broker
) -> None:
    members = [await in_session(await connected(env), f"m{number}").join() for number in range(100)]
    membership = broker.groups.groups["g"].membership
    moved: list[int] = []

    async def live(member: Member) -> None:
        while True:
            await member.client.tell(m.Heartbeat(member.subscription, member.epoch))
            with trio.move_on_after(SESSION_MS / 4000):
                while True:
                    assigned = (await member.client.push(SESSION_MS)).message
                    assert isinstance(assigned, m.Assigned)
                    moved.extend(assigned.revoked)
                    await member.let_go(assigned)

    async with trio.open_nursery() as nursery:
        for member in members[50:]:
            nursery.start_soon(live, member)
        with trio.CancelScope() as dying:
            async with trio.open_nursery() as crashing:
                for member in members[:50]:
                    crashing.start_soon(live, member)
                await trio.sleep(2 * SESSION_MS / 1000)
                assert membership.is_settled
                assert {len(member.share) for member in members} == {4}
                moved.clear()
                dying.cancel()
        await trio.sleep(SESSION_MS / 1000 + 0.2)
        assert membership.is_settled
        assert [len(member.share) for member in members[50:]] == 50 * [8]
        assert moved == [], "what the others owned before stays with them"
        nursery.cancel_scope.cancel()


@served(TEXT)
async def test_heartbeats_are_for_members_of_groups(client: RawClient) -> None:
    reader = (await client.call(m.Subscribe("t"))).subscription
    with pytest.raises(Refused, match=r"delivery\.wrong_kind"):
        await client.call(m.Heartbeat(reader, 0))


@served(TEXT + '[topics.u]\nkind = "stream"\npartitions = 2\n')
async def test_one_group_reads_two_topics_with_members_that_subscribe_to_one_or_both(
    client: RawClient, other: RawClient
) -> None:
    both = [(await client.call(m.Subscribe(topic, group="g", member="ann"))).subscription for topic in "tu"]
    only = (await other.call(m.Subscribe("u", group="g", member="bob"))).subscription
    shares: dict[tuple[str, int], list[int]] = {}
    for _ in range(3):
        for name, one in (("ann", client), ("bob", other)):
            while not await one.is_silent(1):
                assigned = (await one.push()).message
                assert isinstance(assigned, m.Assigned)
                shares[name, assigned.subscription] = assigned.partitions
                if assigned.revoked:
                    await one.tell(m.Heartbeat(assigned.subscription, assigned.epoch))
    assert shares == {("ann", both[0]): [0, 1, 2, 3], ("ann", both[1]): [0], ("bob", only): [1]}
    assert await client.commit(both[1], "u", {0: 0}) == []
    (shown,) = await client.administer("group.list")
    assert (shown["topics"], shown["members"]) == (["t", "u"], 2)
    described = (await client.administer("group.show", group="g"))["members"]
    assert [(each["member"], each["topics"], each["partitions"]) for each in described] == [
        ("ann", ["t", "u"], 5),
        ("bob", ["u"], 1),
    ]
    await client.administer("topic.delete", name="t")
    assert [each["topics"] for each in await client.administer("group.list")] == [["u"]]


@served(TEXT)
async def test_a_nack_reads_again_from_the_first_of_the_records(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env)
    one.seen.clear()
    entry = m.Settlement(2, one.epoch, 1, 3, m.Verdict.NACK)
    assert (await one.client.call(m.Settle(one.subscription, [entry]))).refused == []
    await one.settle_down()
    assert one.seen == [(2, "6"), (2, "10")]


@served(TEXT)
async def test_the_last_one_of_several_nacks_passes_no_record_over(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env)
    one.seen.clear()
    entries = [m.Settlement(2, one.epoch, first, first + 1, m.Verdict.NACK) for first in (1, 0, 2)]
    assert (await one.client.call(m.Settle(one.subscription, entries))).refused == []
    await one.settle_down()
    assert one.seen == [(2, "2"), (2, "6"), (2, "10")]


@served(TEXT)
async def test_a_group_without_commits_begins_at_its_members_start(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env, start=m.START_LATEST)
    assert one.seen == []
    await _fill(env, 4)
    await one.settle_down()
    assert sorted(one.seen) == [(partition, str(partition)) for partition in range(4)]


@served(TEXT)
async def test_a_topic_that_grows_gives_its_new_partitions_to_the_group(env: SimEnv) -> None:
    one = await _member(env)
    two = await _member(env)
    await one.settle_down()
    await one.client.administer("topic.alter", name="t", settings={"partitions": 6})
    await settle(one, two)
    assert sorted(one.share + two.share) == list(range(6))
    await (await connected(env)).publish("t", ["new"], partition=5)
    await settle(one, two)
    assert one.seen + two.seen == [(5, "new")]


@simulated
async def test_a_group_at_most_once_gives_no_record_twice(env: SimEnv) -> None:
    text = ALWAYS + TEXT + 'delivery = "at-most-once"\n'
    async with broker_on(env, text):
        await _fill(env)
        one = await _member(env, credit=5)
    async with broker_on(env, text):
        two = await _member(env)
    assert len(one.seen) == 5
    assert sorted(one.seen + two.seen) == sorted((number % 4, str(number)) for number in range(12))


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
@simulated
async def test_commits_survive(env: SimEnv, end: str) -> None:
    async def process(env: SimEnv) -> None:
        async with broker_on(env, ALWAYS + TEXT):
            await _fill(env)
            one = await _member(env)
            for partition in range(4):
                await one.commit(partition, partition % 3)
            if end == "kill":
                env.kill()
            elif end == "crash":
                env.crash()

    await env.run_until_death(process)
    env = env.restart() if env.is_dead else env
    async with broker_on(env, ALWAYS + TEXT):
        client = await connected(env)
        shown = (await client.administer("group.show", group="g"))["offsets"]
        assert [row["offset"] for row in shown] == [0, 1, 2, 0]
        two = await _member(env)
        expected = [(n % 4, str(n)) for n in range(12) if n // 4 >= (n % 4) % 3]
        assert sorted(two.seen) == sorted(expected)


def test_commits_of_records_lost_with_power_skip_no_new_ones() -> None:
    text = '[topics.t]\nkind = "stream"\n'
    lost: list[int] = []

    async def process(env: SimEnv) -> None:
        async with broker_on(env, text) as broker:
            client = await connected(env)
            for number in range(20):
                await client.publish("t", [f"old{number}"])
            one = await _member(env)
            await one.commit(0, 20)
            positions = broker.topics["t"].positions
            assert positions is not None
            await positions.partition.log.sync()
            env.crash()

    async def scenario(env: SimEnv) -> None:
        assert await env.run_until_death(process)
        env = await after_power_loss(env, text)
        async with broker_on(env, text) as broker:
            kept = broker.topics["t"].partitions[0].high_watermark
            lost.append(20 - kept)
            client = await connected(env)
            # Before anybody of the group is there, so that the offsets are taken again.
            for number in range(30):
                await client.publish("t", [f"new{number}"])
        async with broker_on(env, text):
            two = await _member(env)
            assert [value for _, value in two.seen] == [f"new{number}" for number in range(30)]

    for seed in range(8):
        run_simulation(seed, scenario)
    assert max(lost) > 0, "no seed lost a record: this test shows nothing"


@served(TEXT + "[topics.q]\n")
async def test_groups_belong_to_streams_and_have_a_name(client: RawClient) -> None:
    with pytest.raises(Refused, match=r"delivery\.wrong_kind"):
        await client.call(m.Subscribe("q", group="g"))
    with pytest.raises(Refused, match=r"limit\.exceeded"):
        await client.call(m.Subscribe("t", group="x" * 10_000))
    assert await client.administer("group.list", topic="t") == []


@served(TEXT)
async def test_a_member_hears_only_of_shares_that_change(env: SimEnv) -> None:
    members = [await _member(env) for _ in range(6)]
    await settle(*members)
    for _ in range(3):
        late = await _member(env)
        assert late.share == [], "who has nothing is told so once"
        await late.client.stream.aclose()
    assert [await member.client.is_silent(1) for member in members] == [True] * 6
    shares = [member.share for member in members]
    assert await members[0].commit(shares[0][0], 0) == "", "it is of the new generation all the same"


@served(TEXT)
async def test_members_that_leave_together_are_two_generations_however_many_they_are(env: SimEnv) -> None:
    stays, leaves = await _member(env), await connected(env)
    for _ in range(10):
        await leaves.call(m.Subscribe("t", group="g"))
    await stays.settle_down()
    (before,) = await stays.client.administer("group.list", topic="t")
    assert before["members"] == 11
    await leaves.stream.aclose()
    await stays.settle_down()
    (after,) = await stays.client.administer("group.list", topic="t")
    assert (after["members"], after["epoch"]) == (1, before["epoch"] + 2)
    assert stays.share == [0, 1, 2, 3]


@served(TEXT)
async def test_a_member_that_leaves_alone_has_left_when_it_is_answered(env: SimEnv) -> None:
    stays, client = await _member(env), await connected(env)
    joined = (await stays.client.call(m.Subscribe("t", group="g"))).subscription
    await stays.client.call(m.Heartbeat(stays.subscription, 2))
    await stays.client.call(m.Unsubscribe(joined))
    heard = [event.message for event in stays.client.pushed]
    (group,) = await client.administer("group.list", topic="t")
    assert heard[-1] == m.Assigned(stays.subscription, group["epoch"], [0, 1, 2, 3])


@served(TEXT)
async def test_a_described_group_has_no_departed_members(client: RawClient) -> None:
    joined = (await client.call(m.Subscribe("t", group="g"))).subscription
    reset = m.Administer("group.reset", json.dumps({"topic": "t", "group": "g", "to": "latest"}))
    await client.tell(m.Unsubscribe(joined))
    assert await client.code_of(await client.send(reset)) == ""
    joined = (await client.call(m.Subscribe("t", group="g"))).subscription
    await client.tell(m.Unsubscribe(joined))
    delete = m.Administer("group.delete", json.dumps({"topic": "t", "group": "g"}))
    assert await client.code_of(await client.send(delete)) == ""
    assert await client.administer("group.list", topic="t") == []


def test_a_generation_that_a_member_has_seen_is_never_reused() -> None:
    heard: list[int] = []

    async def process(env: SimEnv) -> None:
        env.disk.sync_delay_s_max = 0.05
        async with broker_on(env, ALWAYS + '[topics.t]\nkind = "stream"\n'):
            client = await connected(env)
            await client.call(m.Subscribe("t", group="g", credit=1))
            heard.append((await client.push()).message.epoch)  # type: ignore[attr-defined]
            env.crash()
            await trio.sleep_forever()

    async def scenario(env: SimEnv) -> None:
        for _ in range(3):
            assert await env.run_until_death(process)
            env = env.restart()
        assert heard == sorted(set(heard))

    for seed in range(10):
        heard.clear()
        run_simulation(seed, scenario)


@simulated
async def test_at_most_once_a_late_ack_does_not_bring_back_what_was_delivered_since(env: SimEnv) -> None:
    text = ALWAYS + '[topics.t]\nkind = "stream"\ndelivery = "at-most-once"\n'
    async with broker_on(env, text):
        client = await connected(env)
        for value in "ab":
            await client.publish("t", [value])
        subscription = (await client.call(m.Subscribe("t", group="g", credit=1))).subscription
        await client.push()
        first = await client.delivery()
        await client.call(m.Credit(subscription, 1))
        assert values((await client.delivery()).batches) == ["b"]
        assert await client.settle(subscription, first) == []
        await client.call(m.Unsubscribe(subscription))
        await client.publish("t", ["c"])
        await client.call(m.Subscribe("t", group="g", credit=1))
        await client.push()
        assert values((await client.delivery()).batches) == ["c"]


@pytest.mark.parametrize("seed", range(20))
@served(ALWAYS + TEXT)
async def test_a_partition_lost_and_regained_unnoticed_is_started_once(
    env: SimEnv, publisher: RawClient, second: RawClient, seed: int
) -> None:
    first = Member(await connected(env))
    for partition in range(4):
        await publisher.publish("t", [f"{partition}"], partition=partition)
    joining = m.Subscribe("t", group="g", credit=1000, start=m.START_EARLIEST)
    await first.client.send(joining)
    first.subscription = 1
    await second.send(joining)
    await trio.sleep(env.rng.uniform(0, 0.01))
    await second.stream.aclose()
    await first.settle_down()
    assert sorted(first.seen) == [(partition, f"{partition}") for partition in range(4)]


# --- where a group begins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", [False, True])
def test_a_reader_from_the_end_gets_everything_published_after_it_subscribed(starts: bool) -> None:
    async def scenario(env: SimEnv) -> None:
        env.disk.sync_delay_s_max = 0.05
        async with broker_on(env, ALWAYS + '[topics.t]\nkind = "stream"\n'):
            one, publisher = Member(await connected(env)), await connected(env)
            await publisher.publish("t", ["before"])
            where = {"starts": [m.START_LATEST]} if starts else {"start": m.START_LATEST}
            await one.client.call(m.Subscribe("t", group="g", credit=1000, **where))  # type: ignore[arg-type]
            await publisher.publish("t", ["after"])
            assert (await one.settle_down()).seen == [(0, "after")]

    for seed in range(8):
        run_simulation(seed, scenario)


@pytest.mark.parametrize("start", [m.START_LATEST, 3])
def test_a_partition_that_came_later_is_read_from_its_start(start: int) -> None:
    async def scenario(env: SimEnv) -> None:
        env.disk.sync_delay_s_max = 0.05
        async with broker_on(env, ALWAYS + '[topics.t]\nkind = "stream"\n'):
            publisher = await connected(env)
            await publisher.publish("t", ["x", "y", "z"])
            one = await _member(env, start=start)
            await publisher.administer("topic.alter", name="t", settings={"partitions": 2})
            for value in "abc":
                await publisher.publish("t", [value], partition=1)
            assert (await one.settle_down()).seen == [(1, value) for value in "abc"]

    for seed in range(8):
        run_simulation(seed, scenario)


@served(TEXT)
async def test_while_nothing_is_committed_each_member_begins_where_it_asks(env: SimEnv) -> None:
    await _fill(env)
    one = await _member(env)
    assert len(one.seen) == 12
    await one.client.call(m.Unsubscribe(one.subscription))
    two = await _member(env, start=m.START_LATEST)
    assert two.seen == []
    await two.client.call(m.Unsubscribe(two.subscription))
    assert len((await _member(env)).seen) == 12
