"""In a cluster the positions of groups are replicated with their topic, and fail over with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
import trio
from led_groups import LedGroups, not_leader
from led_topic import DATA, GROUPS, LedTopic
from trio.testing import wait_all_tasks_blocked

from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import GroupUnknown
from linn.core.groups.event import OffsetCommitted, decode_group_events
from linn.core.groups.member import GroupMember
from linn.core.log.mark import Mark
from linn.core.log.state_log import StateLog
from linn.core.loop.waiting import WaitDeadline
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

SEEDS = 120


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that these tests do is worth a line of the log, but for lost records."""
    yield
    texts = [record.getMessage() for record in caplog.get_records("call")]
    assert [text for text in texts if "is lost" not in text] == []


async def events_of(topic: LedTopic) -> list[tuple[str, object]]:
    """The (group, event) pairs of a topic's log."""
    found = list[tuple[str, object]]()
    topic.commit(GROUPS)
    async for record in StateLog(topic.partitions[GROUPS], topic.env.clock).replay():
        found += [(name, event) for name, events in decode_group_events(record)[1] for event in events]
    return found


def epoch_of(member: GroupMember) -> int:
    return member.group.epoch


def is_passed(awaits: object) -> bool:
    assert isinstance(awaits, list | tuple)
    return all(mark.offset >= end for mark, end in awaits)


async def test_a_member_learns_its_share_when_the_epoch_is_committed(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic = await broker.new_topic("t")
    broker.join()
    assert topic.partitions[GROUPS].durable.offset == topic.end(GROUPS) > 0
    assert not broker.told
    topic.commit(GROUPS)
    assert broker.told == [("ann", "t", 1)]


async def test_a_commit_is_answered_when_it_is_committed_in_the_log_of_its_topic(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic, other = await broker.new_topic("t"), await broker.new_topic("u")
    member = broker.join()
    broker.join("u")
    awaits = member.commit(0, epoch_of(member), 5)
    assert not is_passed(awaits)
    other.commit(GROUPS)
    assert not is_passed(awaits)
    topic.commit(GROUPS)
    assert is_passed(awaits)
    assert [event for _, event in await events_of(other) if isinstance(event, OffsetCommitted)] == []


async def test_the_next_leader_goes_on_at_the_positions_in_a_later_epoch(nursery: trio.Nursery) -> None:
    old, new = LedGroups(nursery), LedGroups(nursery)
    topic = await old.new_topic("t")
    member = old.join()
    member.commit(0, epoch_of(member), 5)
    topic.commit(GROUPS)
    member.commit(0, epoch_of(member), 6)
    taken = await new.taken_over("t", old)
    assert new.position() == 5
    taken.commits_at_once = True
    new.join(member="bob")
    assert new.told == [("bob", "t", old.told[-1][2] + 1)]


async def test_positions_beyond_the_records_go_back_and_stay_there(nursery: trio.Nursery) -> None:
    old, new, last = LedGroups(nursery), LedGroups(nursery), LedGroups(nursery)
    topic = await old.new_topic("t")
    member = old.join()
    member.commit(0, epoch_of(member), 9)
    topic.commit(GROUPS)
    shorter = await topic.copied(2, {DATA: 4})
    old.lose("t")
    shorter.lead(2)
    with trio.move_on_after(0.1):
        await new.adopt("t", shorter)
    assert new.position() is None, "it is not taken over before the way back is committed"
    shorter.commit(GROUPS)
    await last.adopt("t", shorter)
    shorter.publish(6)
    shorter.commit()
    assert last.position() == 4
    again = LedGroups(nursery)
    await again.taken_over("t", last)
    assert again.position() == 4


async def test_a_position_beyond_the_records_goes_back_at_once(nursery: trio.Nursery) -> None:
    old, new = LedGroups(nursery), LedGroups(nursery)
    topic = await old.new_topic("t")
    topic.commits_at_once = True
    member = old.join()
    member.commit(0, epoch_of(member), 9)
    shorter = await topic.copied(2, {DATA: 4})
    old.lose("t")
    shorter.lead(2)
    shorter.commits_at_once = True
    await new.adopt("t", shorter)
    assert new.position() == 4


async def test_a_topic_that_is_released_before_its_logs_know_is_written_no_more(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic = await broker.new_topic("t")
    broker.join()
    state, end = broker.groups._topics.logs["t"].state, topic.end(GROUPS)
    broker.groups.release("t", not_leader())
    with pytest.raises(NotLeader):
        await state.compact(lambda: [b"snapshot"], force=True)
    assert topic.end(GROUPS) == end


async def test_a_lost_log_of_another_topic_keeps_no_commit_up(nursery: trio.Nursery) -> None:
    old, new = LedGroups(nursery), LedGroups(nursery)
    topic, mine = await old.new_topic("t"), await new.new_topic("u")
    topic.commits_at_once = mine.commits_at_once = True
    for name in ("x", "y", "z"):
        old.join("t", name)
    member = new.join("u")
    taken = await new.taken_over("t", old)
    assert member.group.has_events, "the log of u gets the epoch of t"
    taken.lose_logs()
    assert is_passed(member.commit(0, epoch_of(member), 3))


async def test_a_position_that_no_member_has_made_is_in_snapshots(nursery: trio.Nursery) -> None:
    old, new = LedGroups(nursery), LedGroups(nursery)
    topic, other = await old.new_topic("t"), await old.new_topic("u")
    topic.commits_at_once = other.commits_at_once = True
    old.join("u")
    await old.groups.reset("g", [OffsetCommitted("t", 0, 2)])
    log = old.groups._topics.logs["t"]
    await log.state.compact(lambda: log.snapshot(old.groups.groups), force=True)
    await new.taken_over("t", old)
    assert new.position() == 2


async def test_a_deleted_group_that_begins_anew_is_gone_with_its_last_topic(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic, other = await broker.new_topic("t"), await broker.new_topic("u")
    topic.commits_at_once = other.commits_at_once = True
    broker.join("t").close()
    await wait_all_tasks_blocked()
    await broker.groups.forget("g")
    broker.join("u")
    broker.lose("u")
    assert not broker.groups.groups


async def test_members_of_a_lost_topic_end_and_nothing_of_it_is_left(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic, other = await broker.new_topic("t"), await broker.new_topic("u")
    topic.commits_at_once = other.commits_at_once = True
    member, stays = broker.join(), broker.join("u")
    only = broker.join(group="only")
    for each, offset in ((member, 5), (stays, 3), (only, 1)):
        each.commit(0, epoch_of(each), offset)
    end, is_ended = topic.end(GROUPS), list[bool]()
    member.on_ended = lambda: is_ended.append(True)
    broker.lose("t", leader=7)
    with pytest.raises(NotLeader) as raised:
        await member.next(1, 1, WaitDeadline(0))
    assert raised.value.leader == 7
    with pytest.raises(NotLeader):
        member.commit(0, 1, 6)
    assert (is_ended, broker.position(), broker.position("u")) == ([True], None, 3)
    assert list(broker.groups.groups) == ["g"]
    stays.commit(0, epoch_of(stays), 4)
    member.close()
    only.close()
    await wait_all_tasks_blocked()
    assert topic.end(GROUPS) == end, "a former leader writes nothing"


async def test_a_group_whose_topic_is_lost_but_not_released_yet_answers_nothing(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic, other = await broker.new_topic("t"), await broker.new_topic("u")
    other.commits_at_once = True
    member, stays = broker.join(), broker.join("u")
    topic.lose_logs()
    with pytest.raises(NotLeader):
        member.commit(0, epoch_of(member), 5)
    assert is_passed(stays.commit(0, epoch_of(stays), 3)), "another topic of the group goes on"
    broker.join(member="bob")
    assert [topic for _, topic, _ in broker.told] == ["u"]
    broker.lose("t")
    assert list(broker.groups.groups) == ["g"]


async def test_epochs_never_go_back_over_a_failover(nursery: trio.Nursery) -> None:
    """Epochs that another topic of the group has begun count too, and so do those of a group without positions."""
    old, new = LedGroups(nursery), LedGroups(nursery)
    topic, other = await old.new_topic("t"), await old.new_topic("u")
    topic.commits_at_once = other.commits_at_once = True
    old.join()
    for name in ("x", "y"):
        old.join("u", name).close()
        await wait_all_tasks_blocked()
    old.join("t", "ann").close()
    await wait_all_tasks_blocked()
    told = max(epoch for _, at, epoch in old.told if at == "t")
    log = old.groups._topics.logs["t"]
    await log.state.compact(lambda: log.snapshot(old.groups.groups), force=True)
    assert topic.partitions[GROUPS].start_offset > 0
    taken = await new.taken_over("t", old)
    taken.commits_at_once = True
    new.join(member="bob")
    assert new.told[0][2] > told >= 5


async def test_a_topic_comes_to_a_group_that_is_here_already(nursery: trio.Nursery) -> None:
    old, new = LedGroups(nursery), LedGroups(nursery)
    topic, mine = await old.new_topic("t"), await new.new_topic("u")
    topic.commits_at_once = mine.commits_at_once = True
    for name in ("x", "y", "z"):
        old.join("t", name)
    member = new.join("u")
    member.commit(0, epoch_of(member), 3)
    taken = await new.taken_over("t", old)
    taken.commits_at_once = True
    member.commit(0, epoch_of(member), 4)
    assert new.position("u") == 4, "its member stays"
    new.join("t", "bob")
    assert max(epoch for _, _, epoch in new.told) > max(epoch for _, _, epoch in old.told)


async def test_a_snapshot_has_the_positions_of_its_topic_alone(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic, other = await broker.new_topic("t"), await broker.new_topic("u")
    topic.commits_at_once = other.commits_at_once = True
    for name, at in (("t", 5), ("u", 6)):
        member = broker.join(name)
        member.commit(0, epoch_of(member), at)
    broker.join("u", group="elsewhere")
    log = broker.groups._topics.logs["t"]
    await log.state.compact(lambda: log.snapshot(broker.groups.groups), force=True)
    found = await events_of(topic)
    assert [event.offset for _, event in found if isinstance(event, OffsetCommitted)] == [5]
    assert {name for name, _ in found} == {"g"}


async def test_a_deleted_group_does_not_come_back_with_another_leader(nursery: trio.Nursery) -> None:
    old, new = LedGroups(nursery), LedGroups(nursery)
    topic, other = await old.new_topic("t"), await old.new_topic("u")
    topic.commits_at_once = other.commits_at_once = True
    for name in ("t", "u"):
        member = old.join(name)
        member.commit(0, epoch_of(member), 5)
        member.close()
        await wait_all_tasks_blocked()
    await old.groups.forget("g", "t")
    assert (old.position(), old.position("u")) == (None, 5)
    await old.groups.forget("g")
    with pytest.raises(GroupUnknown):
        old.groups.known("g")
    await new.taken_over("t", old)
    await new.taken_over("u", old)
    assert not new.groups.groups


async def test_a_reset_is_done_when_it_is_committed(nursery: trio.Nursery) -> None:
    broker, done = LedGroups(nursery), list[str]()
    topic = await broker.new_topic("t")
    broker.join().close()
    await wait_all_tasks_blocked()

    async def reset() -> None:
        await broker.groups.reset("g", [OffsetCommitted("t", 0, 2)])
        done.append("done")
        with pytest.raises(NotLeader):
            await broker.groups.reset("g", [OffsetCommitted("t", 0, 3)])
        done.append("failed")

    nursery.start_soon(reset)
    await wait_all_tasks_blocked()
    assert not done
    topic.commit(GROUPS)
    await wait_all_tasks_blocked()
    assert done == ["done"]
    broker.lose("t")
    await wait_all_tasks_blocked()
    assert done == ["done", "failed"]


async def test_a_deleted_topic_takes_its_positions_with_it(nursery: trio.Nursery) -> None:
    broker = LedGroups(nursery)
    topic = await broker.new_topic("t")
    topic.commits_at_once = True
    member = broker.join()
    member.commit(0, epoch_of(member), 5)
    broker.groups.release("t")
    assert not broker.groups.groups
    await broker.new_topic("t")
    assert broker.position() is None


# --- walks -----------------------------------------------------------------------------------------------------------


async def compact(broker: LedGroups, name: str) -> None:
    log = broker.groups._topics.logs.get(name)
    with suppress(NotLeader):
        if log is not None:
            await log.state.compact(lambda: log.snapshot(broker.groups.groups), force=True)


async def walk(seed: int, nursery: trio.Nursery) -> None:
    """Members of two topics commit while their leaders change; nothing that was confirmed is lost."""
    random, brokers = Random(seed), [LedGroups(nursery), LedGroups(nursery)]
    leader = {name: random.choice(brokers) for name in ("t", "u")}
    for name, broker in leader.items():
        await broker.new_topic(name, records=1000)
    sent, confirmed = {"t": 0, "u": 0}, {"t": 0, "u": 0}
    for _ in range(80):
        name = random.choice(["t", "u"])
        broker, what = leader[name], random.random()
        topic, log = broker.topics[name], broker.topics[name].partitions[GROUPS]
        members = [it for seat, it in broker.groups.seats("g").items() if seat[1] == name and not it.ended]
        if what < 0.15:
            broker.join(name, random.choice(["ann", "bob"]))
        elif what < 0.2 and members:
            random.choice(members).close()
        elif what < 0.6 and members:
            owners = [it for it in members if it.group.membership.owner((name, 0)) == it.seat[0]]
            for owner in owners:
                sent[name] += 1
                awaits = owner.commit(0, owner.group.epoch, sent[name])

                def passed(failure: Exception | None, name: str = name, at: int = sent[name]) -> None:
                    confirmed[name] = confirmed[name] if failure is not None else max(at, confirmed[name])

                mark: Mark
                for mark, end in awaits:
                    mark.when_passed(end, passed)
        elif what < 0.85:
            log.commit(random.randint(log.high_watermark, topic.end(GROUPS)))
        elif what < 0.9:
            nursery.start_soon(compact, broker, name)
        else:
            told = max((epoch for it in brokers for _, at, epoch in it.told if at == name), default=0)
            new = random.choice([it for it in brokers if it is not broker])
            await new.taken_over(name, broker, random.randint(log.high_watermark, topic.end(GROUPS)))
            leader[name] = new
            assert (new.position(name) or 0) >= confirmed[name], "a confirmed position is lost"
            assert (new.position(name) or 0) <= sent[name]
            assert not told or new.groups.known("g").epoch >= told, "an epoch goes back"
            assert broker.position(name) is None
        await trio.sleep(random.choice([0.0, 0.0, 0.1]))


def test_groups_keep_what_they_have_confirmed_over_failovers() -> None:
    for seed in range(SEEDS):

        async def scenario(_: SimEnv, seed: int = seed) -> None:
            async with trio.open_nursery() as nursery:
                await walk(seed, nursery)
                nursery.cancel_scope.cancel()

        run_simulation(seed, scenario)
