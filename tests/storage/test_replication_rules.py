"""The rules of replication, one by one: what a leader, a follower and a replica do at an event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from engine_cases import SMALL_DRAM

from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import ProtocolError
from linn.core.log.facts import EPOCHS_MAX
from linn.core.log.replication.events import (
    ChangeIsr,
    Command,
    Commit,
    Cut,
    EpochRow,
    Follow,
    GoOffline,
    Lead,
    LogTable,
    Match,
    PartView,
    ReadPart,
    Recovered,
    Restart,
)
from linn.core.log.replication.follower import Follower
from linn.core.log.replication.leader import LAG_S, LOST_S, READ_AGAIN_S, Leader
from linn.core.log.replication.matching import check_table, match_logs
from linn.core.log.replication.replica import Replica
from linn.core.log.storage import PartitionLog
from linn.storage_engines.dram.engine import DramEngine
from linn.testing.engines import PARTITION, make_batch
from linn.testing.sim_env import SimEnv

EMPTY = LogTable(0, 0, ())


async def log_of(*epochs: int) -> PartitionLog:
    """A log with a batch of one record in each of these epochs."""
    log = await DramEngine("scratch", SMALL_DRAM, SimEnv(0)).open(PARTITION)
    for epoch in epochs:
        log.facts.epochs.note(epoch, log.append(make_batch(1), epoch))
    return log


def part(revision: int = 10, epoch: int = 5, leader: int = 1, isr: Sequence[int] = (1, 2, 3)) -> PartView:
    return PartView(revision, epoch, leader, f"s{leader}", frozenset(isr), frozenset({1, 2, 3}))


class Led:
    """Node 1 leads one log, of which everything is durable there."""

    def __init__(self, log: PartitionLog, view: PartView, *, watermark: int = 0, minimum: int = 2) -> None:
        self.log = log
        self.leader = Leader(1, view, {0: log}, {0: watermark}, minimum, 0.0)
        self.leader.durable(0, log.bounds()[1])
        self.silent_s: dict[int, float] = {}
        """The time since the last word of a node."""

    def append(self, epoch: int = 5) -> None:
        self.log.append(make_batch(1), epoch)
        self.leader.durable(0, self.log.bounds()[1])

    def follow(self, node: int, now_s: float = 0.0) -> None:
        def silent_s() -> float:
            return self.silent_s.get(node, 0.0)

        self.leader.followed(node, self.leader.part.epoch, f"s{node}", {0: EMPTY}, silent_s, now_s)

    def holds(self, node: int, end: int) -> None:
        self.leader.acknowledged(node, f"s{node}", [(0, end)])

    def taken(self) -> list[Command]:
        commands, self.leader.commands = self.leader.commands, []
        return commands

    @property
    def watermark(self) -> int:
        return self.leader.watermarks()[0]


async def led(*, isr: Sequence[int] = (1, 2, 3), records: int = 3, watermark: int = 0, minimum: int = 2) -> Led:
    return Led(await log_of(*[4] * records), part(isr=isr), watermark=watermark, minimum=minimum)


def changes(commands: Sequence[Command]) -> list[ChangeIsr]:
    return [command for command in commands if isinstance(command, ChangeIsr)]


# --- F1: where logs part ---------------------------------------------------------------------------------------------


def table(start: int, end: int, *epochs: EpochRow) -> LogTable:
    return LogTable(start, end, epochs)


@pytest.mark.parametrize(
    ("leading", "following", "match"),
    [
        pytest.param(table(0, 5, (1, 0)), table(0, 5, (1, 0)), Cut(5), id="the same"),
        pytest.param(table(0, 5, (1, 0)), table(0, 3, (1, 0)), Cut(3), id="behind"),
        pytest.param(table(0, 5, (1, 0)), table(0, 8, (1, 0)), Cut(5), id="longer in the same epoch"),
        pytest.param(table(0, 5, (1, 0), (3, 4)), table(0, 7, (1, 0), (2, 6)), Cut(4), id="another epoch at its end"),
        pytest.param(table(0, 9, (1, 0), (3, 4)), table(0, 3, (1, 0)), Cut(3), id="all of an earlier epoch"),
        pytest.param(table(0, 9, (1, 0), (2, 4), (4, 6)), table(0, 8, (1, 0), (2, 4), (3, 7)), Cut(6), id="second row"),
        pytest.param(table(0, 9, (1, 0)), EMPTY, Cut(0), id="empty"),
        pytest.param(table(4, 9, (1, 0)), EMPTY, Restart(4), id="empty, and the leader begins later"),
        pytest.param(table(6, 9, (1, 0)), table(0, 3, (1, 0)), Restart(6), id="ends before the leader begins"),
        pytest.param(table(3, 9, (1, 0)), table(0, 3, (1, 0)), Cut(3), id="ends where the leader begins"),
        pytest.param(table(0, 9, (4, 0)), table(0, 3, (2, 0)), Restart(0), id="nothing in common"),
        pytest.param(table(0, 2, (1, 0)), table(3, 7, (1, 0)), Restart(0), id="begins behind what they share"),
        pytest.param(table(5, 5), table(5, 5, (3, 0)), Cut(5), id="both emptied"),
        pytest.param(table(2, 2), table(7, 7), Restart(2), id="empty, beyond the leader's end"),
    ],
)
def test_logs_part_where_their_epochs_do(leading: LogTable, following: LogTable, match: Match) -> None:
    assert match_logs(leading, following) == match


@pytest.mark.parametrize(
    "wrong",
    [
        table(3, 2),
        table(-1, 2),
        table(0, 5, (2, 0), (2, 3)),
        table(0, 5, (3, 0), (2, 3)),
        table(0, 5, (2, 3), (3, 1)),
        table(0, 5, (2, 6)),
        table(0, 5, (-1, 0)),
        table(0, 1 << 40, *((epoch, epoch) for epoch in range(EPOCHS_MAX + 1))),
    ],
)
def test_wrong_tables_are_refused(wrong: LogTable) -> None:
    with pytest.raises(ProtocolError):
        check_table(wrong)


# --- L3: the watermark -----------------------------------------------------------------------------------------------


async def test_the_watermark_is_the_least_acknowledged_end_of_the_in_sync_set() -> None:
    world = await led()
    for node in (2, 3):
        world.follow(node)
    world.holds(2, 3)
    assert world.watermark == 0
    world.holds(3, 1)
    world.holds(3, 2)
    assert world.watermark == 2
    assert [command for command in world.taken() if isinstance(command, Commit)] == [Commit(0, 1), Commit(0, 2)]


async def test_a_leader_counts_only_what_is_durable_there() -> None:
    world = await led(isr=(1, 2), records=0)
    world.follow(2)
    world.log.append(make_batch(1), 5)
    world.holds(2, 1)
    assert world.watermark == 0
    world.leader.durable(0, 1)
    assert world.watermark == 1


async def test_nodes_outside_the_set_hold_nothing_back() -> None:
    world = await led(isr=(1, 2))
    world.follow(2)
    world.holds(2, 3)
    assert world.watermark == 3


async def test_below_the_least_number_only_records_of_earlier_epochs_are_committed() -> None:
    world = await led(isr=(1,), minimum=2)
    world.append()
    assert (world.watermark, world.leader.has_enough) == (3, False)
    world.follow(2)
    world.holds(2, 4)
    world.leader.tick(0.1)
    (change,) = changes(world.taken())
    assert world.watermark == 3
    world.leader.changed(change, 11)
    assert world.watermark == 4


async def test_the_watermark_begins_at_what_the_last_leader_told() -> None:
    world = await led(watermark=2)
    assert (world.watermark, world.taken()) == (2, [])


async def test_a_new_leader_has_recovered_when_all_that_it_found_is_committed() -> None:
    world = await led(isr=(1, 2))
    world.follow(2)
    world.holds(2, 2)
    assert Recovered() not in world.taken()
    world.append()
    world.holds(2, 3)
    assert world.taken() == [Commit(0, 3), Recovered()]
    world.holds(2, 4)
    assert world.taken() == [Commit(0, 4)]


async def test_a_log_that_a_follower_does_not_know_yet_is_not_committed() -> None:
    world = await led(isr=(1, 2))
    world.follow(2)
    world.holds(2, 3)
    other = await log_of(5)
    world.leader.add_log(1, other)
    world.leader.durable(1, 1)
    assert world.leader.watermarks() == {0: 3, 1: 0}
    assert world.leader.followed(2, 5, "s2", {0: LogTable(0, 3, ((4, 0),))}, float, 1.0) == {0: Cut(3), 1: Cut(0)}
    world.leader.acknowledged(2, "s2", [(1, 1)])
    assert world.leader.watermarks() == {0: 3, 1: 1}


# --- acknowledgements ------------------------------------------------------------------------------------------------


async def test_acknowledgements_count_from_the_last_match_and_in_its_session() -> None:
    world = await led(isr=(1, 2))
    world.holds(2, 3)  # It does not follow.
    assert world.watermark == 0
    world.follow(2)
    world.leader.acknowledged(2, "an earlier one", [(0, 3)])
    assert world.watermark == 0
    world.append()
    world.holds(2, 2)
    world.follow(2)
    world.leader.durable(0, 4)
    assert world.watermark == 2
    world.holds(2, 1)  # It was cut.
    world.holds(2, 4)
    assert world.watermark == 4


@pytest.mark.parametrize("ends", [[(0, 4)], [(0, 1)], [(7, 0)]])
async def test_impossible_acknowledgements_end_the_link(ends: list[tuple[int, int]]) -> None:
    world = await led(isr=(1, 2))
    world.follow(2)
    world.holds(2, 2)
    with pytest.raises(ProtocolError):
        world.leader.acknowledged(2, "s2", ends)
    assert world.watermark == 2


async def test_only_who_means_this_epoch_is_followed() -> None:
    world = await led()
    for epoch in (4, 6):
        with pytest.raises(NotLeader) as raised:
            world.leader.followed(2, epoch, "s2", {0: EMPTY}, float, 0.0)
        assert (raised.value.leader, raised.value.epoch) == (1, 5)


# --- L4: who leaves the in-sync set ----------------------------------------------------------------------------------


async def test_a_member_without_a_link_is_removed_after_a_while() -> None:
    world = await led()
    world.follow(2)
    world.holds(2, 3)
    world.leader.tick(LOST_S - 0.1)
    assert not changes(world.taken())
    world.leader.tick(LOST_S)
    (change,) = changes(world.taken())
    assert change == ChangeIsr(10, frozenset({1, 2}), {})
    assert world.watermark == 0, "it counts until the store has made the change"
    world.leader.changed(change, 11)
    assert (world.watermark, world.leader.part.revision) == (3, 11)


async def test_a_member_that_is_silent_is_removed_although_its_link_stays() -> None:
    world = await led()
    for node in (2, 3):
        world.follow(node)
        world.holds(node, 3)
    world.silent_s[3] = LOST_S - 0.5
    world.leader.tick(5.0)
    assert not changes(world.taken())
    world.silent_s[3] = LOST_S
    world.leader.tick(5.5)
    (change,) = changes(world.taken())
    assert change == ChangeIsr(10, frozenset({1, 2}), {})
    world.leader.changed(change, 11)
    world.leader.tick(6.5)
    assert not changes(world.taken()), "it is not added while it is silent, though it holds everything"
    world.silent_s[3] = 0.0
    world.leader.tick(7.0)
    assert [change.isr for change in changes(world.taken())] == [{1, 2, 3}]


async def test_the_end_of_a_silent_link_gives_no_more_time() -> None:
    world = await led(isr=(1, 2))
    world.follow(2)
    world.holds(2, 3)
    world.silent_s[2] = 4.0
    world.leader.tick(10.0)
    assert not world.leader.has_enough
    world.leader.unfollowed(2, "s2", 10.0)
    world.leader.tick(10.1)
    assert not world.leader.has_enough


async def test_a_member_that_is_slow_but_heard_stays() -> None:
    world = await led()
    for node in (2, 3):
        world.follow(node)
        world.holds(node, 3)
    world.append()
    world.holds(2, 4)
    world.silent_s[3] = 1.5
    for tick in range(1, int(4 * LAG_S)):
        world.leader.tick(tick / 4)
    assert not changes(world.taken())


async def test_a_member_that_is_behind_for_long_is_removed_and_an_idle_one_is_not() -> None:
    world = await led()
    for node in (2, 3):
        world.follow(node)
        world.holds(node, 3)
    world.leader.tick(LAG_S + 1)
    assert not changes(world.taken())
    world.append()
    world.holds(2, 4)
    for now_s in (LAG_S + 2, 2 * LAG_S + 2):
        world.leader.tick(now_s)
    assert [change.isr for change in changes(world.taken())] == [{1, 2}]


async def test_a_member_that_keeps_up_with_steady_appends_stays() -> None:
    world = await led(isr=(1, 2), minimum=1)
    world.follow(2)
    for step in range(60):
        world.append()
        world.leader.tick(step / 2)
        world.holds(2, world.log.bounds()[1] - 1)  # Always one batch behind.
    assert not changes(world.taken())


async def test_a_member_whose_link_comes_and_goes_without_progress_is_removed() -> None:
    world = await led(isr=(1, 2), minimum=1)
    for now_s in range(int(LAG_S)):
        world.follow(2, now_s)
        world.leader.tick(now_s + 0.5)
        world.leader.unfollowed(2, "s2", now_s + 0.9)
    assert not changes(world.taken())
    world.follow(2, LAG_S)
    world.leader.tick(LAG_S)
    assert [change.isr for change in changes(world.taken())] == [{1}]


async def test_it_is_removed_also_if_each_look_finds_it_without_a_link() -> None:
    world = await led(isr=(1, 2), minimum=1)
    for now_s in range(1, int(LAG_S)):
        world.follow(2, now_s)
        world.leader.unfollowed(2, "s2", now_s + 0.1)
        world.leader.tick(now_s + 0.5)
        assert not changes(world.taken())
    world.follow(2, LAG_S)
    world.leader.unfollowed(2, "s2", LAG_S)
    world.leader.tick(LAG_S)
    assert [change.isr for change in changes(world.taken())] == [{1}]


async def test_a_node_with_a_damaged_log_is_not_added_before_it_has_begun_anew() -> None:
    world = await led(isr=(1, 2), watermark=3)
    world.leader.viewed(part(11, isr=(1, 2))._replace(unfit=frozenset({3})))
    for node in (2, 3):
        world.follow(node)
        world.holds(node, 3)
    world.leader.tick(1.0)
    assert not changes(world.taken())
    world.leader.viewed(part(12, isr=(1, 2)))
    world.leader.tick(2.0)
    assert [change.isr for change in changes(world.taken())] == [{1, 2, 3}]


async def test_a_member_with_a_full_disk_that_was_removed_is_added_as_any_other() -> None:
    world = await led()
    world.leader.viewed(part(11)._replace(unfit=frozenset({3})))
    world.follow(2)
    world.holds(2, 3)
    world.leader.tick(LOST_S)
    (change,) = changes(world.taken())
    assert change.isr == {1, 2}
    world.leader.changed(change, 12)
    world.follow(3, 3.0)
    world.holds(3, 3)
    world.leader.tick(3.0)
    assert [change.isr for change in changes(world.taken())] == [{1, 2, 3}]


async def test_the_set_never_shrinks_below_the_least_number() -> None:
    world = await led(minimum=2)
    world.follow(2)
    world.holds(2, 3)
    world.leader.unfollowed(2, "s2", 1.0)
    world.leader.tick(10.0)
    (change,) = changes(world.taken())
    assert change.isr == {1, 2}, "who is gone for longest leaves"
    world.leader.changed(change, 11)
    world.leader.tick(20.0)
    assert not changes(world.taken())
    assert not world.leader.has_enough


# --- L5: who joins it ------------------------------------------------------------------------------------------------


async def test_a_node_joins_when_it_holds_what_is_committed() -> None:
    world = await led(isr=(1, 2))
    for node in (2, 3):
        world.follow(node)
    world.holds(2, 3)
    world.holds(3, 2)
    world.leader.tick(0.1)
    assert not changes(world.taken())
    world.holds(3, 3)
    world.leader.tick(0.2)
    (change,) = changes(world.taken())
    assert change == ChangeIsr(10, frozenset({1, 2, 3}), {3: "s3"})
    world.append()
    world.holds(2, 4)
    assert world.watermark == 3, "it counts from before the change was asked for"
    world.holds(3, 4)
    assert world.watermark == 4


async def test_nobody_joins_before_the_watermark_has_reached_the_end_of_the_election() -> None:
    world = await led(isr=(1, 2), watermark=1)
    world.follow(3)
    world.holds(3, 3)
    world.leader.tick(0.1)
    assert not changes(world.taken())
    world.follow(2)
    world.holds(2, 3)
    world.leader.tick(0.2)
    assert [change.added for change in changes(world.taken())] == [{3: "s3"}]


async def test_who_is_no_replica_does_not_join() -> None:
    world = await led(isr=(1, 2, 3))
    for node in (2, 3, 4):
        world.follow(node)
        world.holds(node, 3)
    world.leader.tick(0.1)
    assert not changes(world.taken())


# --- L6: outcomes ----------------------------------------------------------------------------------------------------


async def joining() -> tuple[Led, ChangeIsr]:
    """A leader that has asked to add node 3, which then falls behind."""
    world = await led(isr=(1, 2))
    for node in (2, 3):
        world.follow(node)
        world.holds(node, 3)
    world.leader.tick(0.1)
    (change,) = changes(world.taken())
    world.append()
    world.holds(2, 4)
    return world, change


async def test_a_change_that_was_refused_counts_no_more() -> None:
    world, change = await joining()
    world.leader.refused(change)
    assert world.watermark == 4
    assert ReadPart() in world.taken()
    world.holds(3, 4)
    world.leader.tick(0.2)
    assert not changes(world.taken()), "the store is not asked again at once"
    world.leader.tick(0.1 + READ_AGAIN_S)
    assert [again.added for again in changes(world.taken())] == [{3: "s3"}]


async def test_a_change_of_unknown_outcome_counts_both_ways_until_the_entry_is_another() -> None:
    world, change = await joining()
    world.leader.lost_answer(change)
    assert world.taken() == [ReadPart()]
    world.leader.viewed(part(isr=(1, 2)), is_read=True)
    assert world.taken() == [change], "it may still be made, and is tried again"
    assert world.watermark == 3
    world.leader.viewed(part(revision=11, isr=(1, 2)))
    assert world.watermark == 4


async def test_a_change_that_was_made_though_its_answer_was_lost_is_recognised() -> None:
    world, change = await joining()
    world.leader.lost_answer(change)
    world.leader.viewed(part(revision=11), is_read=True)
    assert (world.watermark, world.leader.part.isr) == (3, {1, 2, 3})
    world.leader.changed(change, 11)  # Too late.
    world.leader.refused(change)
    world.holds(3, 4)
    assert world.watermark == 4


async def test_a_change_that_is_refused_when_tried_again_was_not_made_if_the_entry_is_the_same() -> None:
    world, change = await joining()
    world.leader.lost_answer(change)
    world.leader.viewed(part(isr=(1, 2)), is_read=True)
    world.leader.refused(change)
    assert world.watermark == 3
    world.leader.viewed(part(isr=(1, 2)), is_read=True)
    assert world.watermark == 4


async def test_the_entry_is_read_again_while_the_store_is_down() -> None:
    world, change = await joining()
    world.leader.lost_answer(change)
    world.taken()
    for now_s in (0.2, 0.1 + READ_AGAIN_S, 0.2 + READ_AGAIN_S):
        world.leader.tick(now_s)
    assert world.taken() == [ReadPart()]


async def test_an_older_view_changes_nothing() -> None:
    world = await led(isr=(1, 2))
    world.follow(2)
    world.leader.viewed(part(revision=9, isr=(1,)))
    assert (world.watermark, world.leader.part.isr) == (0, {1, 2})


async def test_a_member_that_the_controller_has_removed_holds_nothing_back() -> None:
    world = await led()
    world.follow(2)
    world.holds(2, 3)
    world.leader.viewed(part(revision=11, isr=(1, 2)))
    assert world.watermark == 3


# --- L7: the end -----------------------------------------------------------------------------------------------------


async def test_a_leader_steps_down_when_the_store_names_another() -> None:
    world = await led(isr=(1, 2))
    world.follow(2)
    world.leader.viewed(part(revision=11, epoch=6, leader=2))
    assert (world.leader.is_over, world.taken()) == (True, [])
    world.holds(2, 3)
    assert (world.watermark, world.taken()) == (0, [])
    with pytest.raises(NotLeader):
        world.leader.followed(3, 5, "s3", {0: EMPTY}, float, 1.0)


async def test_a_leader_whose_session_has_ended_goes_on_while_all_members_follow() -> None:
    world = await led(isr=(1, 2))
    for node in (2, 3):
        world.follow(node)
        world.holds(node, 3)
    world.leader.session_ended(is_expired=True)
    world.leader.tick(1.0)
    assert not [command for command in world.taken() if not isinstance(command, Commit | Recovered)]
    world.append()
    world.holds(2, 4)
    assert world.watermark == 4
    world.leader.unfollowed(2, "s2", 2.0)
    world.leader.tick(2.1)
    assert [type(command) for command in world.taken()] == [Commit, GoOffline]


async def test_after_its_session_has_changed_a_leader_leaves_the_set_as_it_is() -> None:
    world = await led()
    world.leader.session_ended(is_expired=False)
    world.leader.tick(10.0)
    assert world.taken() == []
    assert not world.leader.is_over


# --- followers -------------------------------------------------------------------------------------------------------


async def test_a_follower_acknowledges_after_its_cut_and_only_what_is_new() -> None:
    follower = Follower(2, 5, "s1", {0: await log_of(3, 4, 4), 1: await log_of()})
    assert follower.request() == Follow(2, 5, "s1", {0: LogTable(0, 3, ((3, 0), (4, 1))), 1: EMPTY})
    assert follower.acknowledge({0: 3, 1: 0}) == []
    follower.answered({0: Cut(1), 1: Restart(7)})
    assert not follower.follows(0)
    follower.cut(0)
    assert follower.acknowledge({0: 1, 1: 0}) == [(0, 1)]
    follower.cut(1)
    assert follower.acknowledge({0: 1, 1: 7}) == [(1, 7)]
    assert follower.acknowledge({0: 2, 1: 7}) == [(0, 2)]


@pytest.mark.parametrize("match", [Cut(4), Cut(-1), Restart(-1)])
async def test_a_follower_refuses_impossible_cuts(match: Match) -> None:
    follower = Follower(2, 5, "s1", {0: await log_of(3, 4, 4)})
    with pytest.raises(ProtocolError):
        follower.answered({0: match})


# --- roles -----------------------------------------------------------------------------------------------------------


def begun(replica: Replica, view: PartView) -> Sequence[Command]:
    replica.viewed(view, 0.0)
    return [command for command in replica.take_commands() if not isinstance(command, Commit | Recovered)]


async def test_a_node_leads_only_in_the_session_in_which_it_was_elected() -> None:
    logs: Mapping[int, PartitionLog] = {0: await log_of(3)}
    assert begun(Replica(1, "s1", logs, 2), part()) == [Lead(5)]
    (offline,) = begun(Replica(1, "a later one", logs, 2), part())
    assert isinstance(offline, GoOffline)


async def test_each_epoch_is_followed_anew_and_older_ones_not_at_all() -> None:
    replica = Replica(1, "s1", {0: await log_of(3)}, 2)
    request = {0: LogTable(0, 1, ((3, 0),))}
    assert begun(replica, part(leader=2)) == [Follow(2, 5, "s1", request)]
    assert begun(replica, part(revision=11, epoch=6, leader=2)) == [Follow(2, 6, "s1", request)]
    assert begun(replica, part(revision=12, epoch=6, leader=2)) == []
    assert begun(replica, part(leader=3)) == []


async def test_a_follower_follows_again_in_a_new_session() -> None:
    replica = Replica(1, "s1", {0: await log_of()}, 2)
    begun(replica, part(leader=2))
    replica.session_began("another")
    assert replica.take_commands() == [Follow(2, 5, "another", {0: EMPTY})]
    replica.follow_again()
    assert replica.take_commands() == [Follow(2, 5, "another", {0: EMPTY})]


async def test_a_new_leader_begins_with_the_watermark_that_it_was_told() -> None:
    log = await log_of(3, 3, 3)
    replica = Replica(1, "s1", {0: log}, 2)
    begun(replica, part(leader=2))
    assert replica.follower is not None
    replica.follower.answered({0: Cut(3)})
    assert replica.told(0, 2) == 0, "not before the cut"
    replica.cut(0)
    assert [replica.told(0, watermark) for watermark in (2, 1, 9)] == [2, 2, 3]
    begun(replica, part(revision=11, epoch=6))
    assert replica.leader is not None
    assert replica.leader.watermarks() == {0: 3}


async def test_a_leader_that_is_elected_again_begins_a_new_epoch() -> None:
    replica = Replica(1, "s1", {0: await log_of(3)}, 2)
    begun(replica, part())
    first = replica.leader
    assert [type(command) for command in begun(replica, part(revision=11, epoch=6))] == [Lead]
    assert replica.leader is not first
    assert replica.epoch == 6
