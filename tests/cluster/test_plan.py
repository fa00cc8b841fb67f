"""Decisions of the controller, one by one. `tests/models/test_controller_plan.py` searches them as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from linn.core.cluster.entries import ClusterState, Loss, NodeEntry, PartEntry, SessionEnd, SessionEntry
from linn.core.cluster.plan import PartPolicy, Write, plan

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
