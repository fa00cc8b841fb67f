"""The next step of a reassignment, and the next leader, from the state of the cluster alone."""

from __future__ import annotations

import msgspec

from linn.core.cluster.entries import ClusterState, NodeEntry, PartEntry, SessionEntry
from linn.core.cluster.moves import cancelled, is_gone, moved, named, reassigned
from linn.core.cluster.plan import PartPolicy

TWO = PartPolicy(min_in_sync=2)
PART = PartEntry(1, "s1", 5, (1, 2), (1, 2))


def state_of(*alive: int, draining: int = 0) -> ClusterState:
    state = ClusterState(9)
    state.nodes = {node: NodeEntry("f", f"h{node}", "", draining=node == draining) for node in range(1, 6)}
    state.sessions = {node: SessionEntry(f"s{node}", 0, {}, (1, 1)) for node in alive or range(1, 6)}
    return state


def in_sync(part: PartEntry, *isr: int) -> PartEntry:
    return msgspec.structs.replace(part, isr=isr)


def test_replicas_are_dropped_in_a_new_epoch_when_all_targets_are_in_sync() -> None:
    moving = reassigned(PART, (3, 1))
    assert (moving.replicas, moving.target, moving.former) == ((1, 2, 3), (3, 1), (1, 2))
    assert moved(state_of(), moving, TWO) == moving, "node 3 is not in sync"
    done = moved(state_of(), in_sync(moving, 1, 2, 3), TWO)
    assert done == PartEntry(1, "s1", 6, (1, 3), (3, 1))
    assert done.epoch > moving.epoch, "what a dropped replica has acknowledged must not count"


def test_a_target_that_is_dead_or_too_few_targets_hold_it_up() -> None:
    ready = in_sync(reassigned(PART, (3, 1)), 1, 2, 3)
    assert moved(state_of(1, 2, 4, 5), ready, TWO).target
    assert moved(state_of(), ready, PartPolicy(min_in_sync=3)).target
    assert not moved(state_of(1, 3), ready, TWO).target


def test_a_leader_that_is_no_target_hands_over_to_one_that_is_in_sync() -> None:
    moving = reassigned(PART, (3, 4))
    assert moved(state_of(), in_sync(moving, 1, 2, 3), TWO).successor == 0
    ready = moved(state_of(), in_sync(moving, 1, 2, 3, 4), TWO)
    assert (ready.successor, ready.target) == (3, (3, 4))
    assert named(state_of(), ready, 2, TWO) == ready, "only the leader hands over"
    led = named(state_of(), ready, 1, TWO)
    assert (led.leader, led.session, led.epoch, led.successor) == (3, "s3", 6, 0)
    assert named(state_of(1, 2, 4), ready, 1, TWO) == ready, "the successor is dead"


def test_the_first_of_the_targets_leads_though_it_is_the_last_of_the_replicas() -> None:
    ready = in_sync(reassigned(PART, (4, 2)), 1, 2, 4)
    assert ready.replicas == (1, 2, 4)
    assert moved(state_of(), ready, TWO).successor == 4


def test_a_cancelled_reassignment_waits_for_no_replica_that_was_behind_before() -> None:
    behind = PartEntry(1, "s1", 5, (1, 2), (1, 2, 3))
    back = cancelled(reassigned(behind, (1, 2, 4)))
    assert (back.target, back.former) == ((1, 2, 3), (1, 2, 3))
    assert moved(state_of(1, 2), back, TWO) == PartEntry(1, "s1", 6, (1, 2), (1, 2, 3))
    assert cancelled(behind) == behind


def test_a_leader_that_drains_hands_over_and_stays_where_no_other_can_lead() -> None:
    assert moved(state_of(draining=1), PART, TWO).successor == 2
    assert moved(state_of(1, draining=1), PART, TWO).successor == 0
    unfit = msgspec.structs.replace(PART, unfit=(2,))
    assert moved(state_of(draining=1), unfit, TWO).successor == 0


def test_a_leadership_returns_when_it_is_due() -> None:
    away = msgspec.structs.replace(PART, leader=2, session="s2")
    assert moved(state_of(), away, TWO).successor == 0
    assert moved(state_of(), away, TWO, is_due=True).successor == 1
    assert moved(state_of(draining=1), away, TWO, is_due=True).successor == 0


def test_a_node_that_leaves_is_gone_when_it_holds_nothing_and_has_stopped() -> None:
    state = state_of(1, 2)
    state.nodes[3] = NodeEntry("f", "h3", "", draining=True, leaving=True)
    assert is_gone(state, 3)
    state.parts["parts/t/0"] = msgspec.structs.replace(PART, replicas=(1, 3))
    assert not is_gone(state, 3)
