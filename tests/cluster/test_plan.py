"""Decisions of the controller, one by one. `tests/models/test_controller_plan.py` searches them as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from linn.core.cluster.entries import ClusterState, Loss, NodeEntry, PartEntry, SessionEnd, SessionEntry
from linn.core.cluster.plan import PartPolicy, Write, departure, plan, retreat

KEY = "parts/t/0"
PART = PartEntry(leader=1, session="s1", epoch=5, isr=(1, 2, 3), replicas=(1, 2, 3))
NOW_MS = 1_000
CONTROLLER = 77
TWO = PartPolicy(min_in_sync=2)


def state_of(
    part: PartEntry | None = PART,
    alive: tuple[int, ...] = (1, 2, 3),
    lost: dict[int, Loss] = {},  # noqa: B006  Not changed.
    draining: tuple[int, ...] = (),
) -> ClusterState:
    """Three nodes, of which some are alive, and one partition."""
    state = ClusterState(90)
    state.revisions["controller"] = CONTROLLER
    for number in (1, 2, 3):
        state.nodes[number] = NodeEntry("f", "h", "r", draining=number in draining)
        state.revisions[f"nodes/{number}"] = 10 + number
        if number in alive:
            state.sessions[number] = SessionEntry(f"s{number}", 0, {}, (1, 1), lost.get(number, "none"))
            state.revisions[f"sessions/{number}"] = 20 + number
    if part is not None:
        state.parts[KEY] = part
        state.revisions[KEY] = 30
    return state


def writes(state: ClusterState, policy: PartPolicy = TWO, **more: Any) -> list[Write]:
    return plan(state, NOW_MS, lambda _: policy, **more)


def part_after(state: ClusterState, policy: PartPolicy = TWO) -> PartEntry:
    """The partition after the first write of the plan."""
    found = writes(state, policy)
    after: PartEntry = found[0].changes.get(KEY, state.parts[KEY]) if found else state.parts[KEY]
    return after


def changed(**fields: Any) -> PartEntry:
    return msgspec.structs.replace(PART, **fields)


# --- elections -------------------------------------------------------------------------------------------------------


def test_nothing_is_done_while_the_leader_lives() -> None:
    assert writes(state_of()) == []


def test_the_first_of_the_replicas_leads_after_a_dead_leader_in_a_new_epoch() -> None:
    assert part_after(state_of(alive=(2, 3))) == changed(leader=2, session="s2", epoch=6, isr=(2, 3))
    assert part_after(state_of(changed(replicas=(1, 3, 2)), alive=(2, 3))).leader == 3


def test_the_dead_leave_as_far_as_the_least_number_allows() -> None:
    assert part_after(state_of(alive=(2,))).isr == (1, 2), "the last of the replicas goes first"
    assert part_after(state_of(alive=(2,)), PartPolicy(min_in_sync=3)).isr == (1, 2, 3)
    assert part_after(state_of(alive=(2,)), PartPolicy(min_in_sync=1)).isr == (2,)
    assert part_after(state_of(alive=(2,)), PartPolicy(min_in_sync=0)).isr == (2,)


def test_the_old_leader_leads_again_if_it_is_back() -> None:
    part = changed(leader=3, session="before")
    assert part_after(state_of(part)) == changed(leader=3, session="s3", epoch=6)


def test_draining_nodes_come_last() -> None:
    assert part_after(state_of(alive=(2, 3), draining=(2,))).leader == 3
    assert part_after(state_of(alive=(2,), draining=(2,))).leader == 2


def test_nobody_outside_of_the_in_sync_set_leads() -> None:
    state = state_of(changed(isr=(1,)), alive=(2, 3))
    assert writes(state) == []


def test_a_leader_outside_of_the_in_sync_set_is_replaced() -> None:
    assert part_after(state_of(changed(isr=(2, 3)))) == changed(leader=2, session="s2", epoch=6, isr=(2, 3))


def test_a_partition_that_was_never_led_gets_a_leader() -> None:
    part = changed(leader=0, session="", epoch=0)
    assert part_after(state_of(part)) == changed(epoch=1)


# --- departures ------------------------------------------------------------------------------------------------------


def departed(state: ClusterState, node: int, policy: PartPolicy = TWO) -> PartEntry:
    """The partition after a node has prepared its stop."""
    found = departure(state, node, {KEY}, lambda _: policy)
    after: PartEntry = found[0].changes[KEY] if found else state.parts[KEY]
    return after


def test_a_leader_that_stops_names_the_next_replica_and_leaves() -> None:
    assert departed(state_of(), 1) == changed(leader=2, session="s2", epoch=6, isr=(2, 3))
    assert departed(state_of(draining=(2,)), 1).leader == 3


def test_a_follower_that_stops_leaves_and_the_epoch_stays() -> None:
    assert departed(state_of(), 3) == changed(isr=(1, 2))


def test_a_node_that_stops_stays_in_sync_where_the_least_number_needs_it() -> None:
    assert departed(state_of(), 1, PartPolicy(min_in_sync=3)) == changed(leader=2, session="s2", epoch=6)
    assert departed(state_of(), 3, PartPolicy(min_in_sync=3)) == PART


def test_a_leader_stays_if_no_other_member_can_lead() -> None:
    assert departed(state_of(alive=(1,)), 1) == PART
    assert departed(state_of(lost={2: "all", 3: "tail"}), 1) == PART
    assert departed(state_of(changed(isr=(1,))), 1) == changed(isr=(1,))


def test_a_departure_concerns_the_given_partitions_with_the_node_in_sync() -> None:
    assert departure(state_of(), 1, set(), lambda _: TWO) == []
    assert departure(state_of(), 1, {"parts/unknown/0"}, lambda _: TWO) == []
    assert departed(state_of(changed(isr=(1, 2))), 3) == changed(isr=(1, 2))


def test_a_departure_depends_on_the_partition_and_the_next_leaders_session() -> None:
    [write] = departure(state_of(), 1, {KEY}, lambda _: TWO)
    assert write.conditions == {KEY: 30, "sessions/2": 22}


# --- full disks and damaged logs -------------------------------------------------------------------------------------


def retreated(state: ClusterState, node: int, *, is_damaged: bool) -> PartEntry:
    """The partition after a node has said that it can't go on."""
    found = retreat(state, node, KEY, TWO, is_damaged=is_damaged)
    after: PartEntry = found[0].changes[KEY] if found else state.parts[KEY]
    return after


def test_a_leader_with_a_full_disk_names_another_and_stays_in_sync() -> None:
    assert retreated(state_of(), 1, is_damaged=False) == changed(leader=2, session="s2", epoch=6, unfit=(1,))


def test_a_leader_with_a_damaged_log_names_another_and_leaves_also_below_the_least_number() -> None:
    after = retreated(state_of(changed(isr=(1, 3))), 1, is_damaged=True)
    assert after == changed(leader=3, session="s3", epoch=6, isr=(3,), unfit=(1,))


def test_a_follower_with_a_damaged_log_leaves_and_the_epoch_stays() -> None:
    assert retreated(state_of(), 3, is_damaged=True) == changed(isr=(1, 2), unfit=(3,))
    outside = changed(isr=(1, 2))
    assert retreated(state_of(outside), 3, is_damaged=True) == changed(isr=(1, 2), unfit=(3,))
    marked = changed(isr=(1, 2), unfit=(3,))
    assert retreated(state_of(marked), 3, is_damaged=True) == marked


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_leader_goes_on_if_no_other_member_is_fit(is_damaged: bool) -> None:
    for state in (state_of(changed(unfit=(2, 3))), state_of(changed(isr=(1,))), state_of(alive=(1,))):
        assert retreated(state, 1, is_damaged=is_damaged) == state.parts[KEY]


def test_unfit_members_are_elected_last() -> None:
    assert part_after(state_of(changed(unfit=(2,)), alive=(2, 3))).leader == 3
    assert part_after(state_of(changed(unfit=(2,)), alive=(2,))).leader == 2


def test_a_member_that_leaves_the_set_is_unfit_no_more_and_a_damaged_one_outside_still_is() -> None:
    assert part_after(state_of(changed(unfit=(1,)), alive=(2, 3))).unfit == ()
    assert part_after(state_of(changed(isr=(1, 2), unfit=(3,)), alive=(2, 3))).unfit == (3,)


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "policy", "isr"),
    [
        ("none", PartPolicy(), (1, 2, 3)),
        ("memory", PartPolicy(), (1, 2, 3)),
        ("memory", PartPolicy(is_in_memory=True), (1, 3)),
        ("tail", PartPolicy(), (1, 3)),
        ("tail", PartPolicy(is_synced=True), (1, 2, 3)),
        ("all", PartPolicy(is_synced=True), (1, 3)),
    ],
)
def test_a_member_leaves_that_has_lost_something_of_this_topic(
    lost: Loss, policy: PartPolicy, isr: tuple[int, ...]
) -> None:
    assert part_after(state_of(lost={2: lost}), policy) == changed(isr=isr), "the leader and its epoch stay"


def test_members_that_have_lost_something_leave_below_the_least_number() -> None:
    assert part_after(state_of(lost={2: "all", 3: "tail"}), PartPolicy(min_in_sync=3)).isr == (1,)


def test_the_last_member_stays_with_a_lost_tail_and_leads_once_it_is_handled() -> None:
    state = state_of(changed(isr=(2,)), alive=(2,), lost={2: "tail"})
    [write] = writes(state)
    assert KEY not in write.changes
    assert write.changes["nodes/2"].handled == "s2"
    state.nodes[2] = write.changes["nodes/2"]
    assert part_after(state) == changed(leader=2, session="s2", epoch=6, isr=(2,))


def test_the_last_member_that_has_lost_everything_leaves_nobody_behind() -> None:
    after = part_after(state_of(changed(isr=(2,)), alive=(1, 2, 3), lost={2: "all"}))
    assert after == changed(isr=()), "and an operator has to decide"
    assert writes(state_of(after)) == []


def test_of_members_that_all_have_lost_a_tail_the_first_replica_stays() -> None:
    lost: dict[int, Loss] = {1: "all", 2: "tail", 3: "tail"}
    assert part_after(state_of(changed(replicas=(1, 3, 2)), lost=lost)).isr == (3,)


def test_the_last_member_of_a_topic_in_memory_stays_whatever_it_has_lost() -> None:
    state = state_of(changed(isr=(2,)), lost={2: "all"})
    assert part_after(state, PartPolicy(is_in_memory=True)).isr == (2,)


def test_a_loss_is_handled_only_after_the_member_has_left() -> None:
    state = state_of(lost={2: "all"})
    [write] = writes(state)
    assert write.changes.keys() == {KEY}
    state.parts[KEY] = write.changes[KEY]
    [write] = writes(state)
    assert write.changes == {"nodes/2": NodeEntry("f", "h", "r", handled="s2")}
    assert write.conditions == {"nodes/2": 12, "sessions/2": 22, "controller": CONTROLLER}
    state.nodes[2] = write.changes["nodes/2"]
    assert writes(state) == []


def test_what_was_handled_in_an_earlier_session_is_told_anew() -> None:
    state = state_of(lost={2: "all"})
    state.nodes[2] = NodeEntry("f", "h", "r", handled="of another session")
    assert part_after(state).isr == (1, 3)


# --- ends of sessions ------------------------------------------------------------------------------------------------


def test_a_session_that_ended_without_a_note_is_noted() -> None:
    state = state_of(None, alive=(1, 3))
    state.nodes[2] = NodeEntry("f", "h", "r", session="s2")
    [write] = writes(state)
    assert write.changes == {"ended/2": (SessionEnd("s2", NOW_MS, "given up"),)}
    assert write.conditions == {"nodes/2": 12, "sessions/2": 0, "ended/2": 0, "controller": CONTROLLER}
    state.ended[2] = (SessionEnd("s2", 1, "left"),)
    assert writes(state) == []


# --- writes ----------------------------------------------------------------------------------------------------------


def test_an_election_depends_on_the_partition_the_new_leaders_session_and_the_controller() -> None:
    [write] = writes(state_of(alive=(2, 3)))
    assert write.conditions == {KEY: 30, "sessions/2": 22, "controller": CONTROLLER}


@pytest.mark.parametrize("keys_max", [3, 10, 100])
def test_a_write_has_few_keys_and_conditions_and_together_they_do_all(keys_max: int) -> None:
    state = state_of(None, alive=(2, 3), lost={3: "memory"})
    for number in range(250):
        state.parts[f"parts/t/{number}"] = changed(isr=(1, 2 + number % 2))
        state.revisions[f"parts/t/{number}"] = 100 + number
    found = writes(state, keys_max=keys_max)
    assert all(max(len(write.changes), len(write.conditions)) <= keys_max for write in found)
    assert all(write.conditions["controller"] == CONTROLLER for write in found)
    assert {key for write in found for key in write.changes} == {*state.parts, "nodes/3"}
    assert len(found) < 3 * 251 / keys_max + 1
