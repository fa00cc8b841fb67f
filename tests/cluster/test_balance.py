"""Replicas and preferred leaders are spread evenly, by few moves, from the state of the cluster alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from linn.core.cluster.balance import balanced
from linn.core.cluster.entries import ClusterState, NodeEntry, PartEntry, SessionEntry


def state_of(placed: Sequence[tuple[int, ...]], racks: Sequence[str]) -> ClusterState:
    """A cluster with a node for each rack, and one topic for each tuple of nodes."""
    state = ClusterState(9)
    for node, rack in enumerate(racks, 1):
        state.nodes[node] = NodeEntry("f", f"h{node}", rack)
        state.sessions[node] = SessionEntry(f"s{node}", 0, {}, (1, 1))
    for number, nodes in enumerate(placed):
        state.parts[f"parts/{number:03}/0"] = PartEntry(nodes[0], f"s{nodes[0]}", 1, nodes, nodes)
    return state


def changes(state: ClusterState) -> dict[str, tuple[int, ...]]:
    return balanced(state, dict.fromkeys(state.parts, 1))


def after(state: ClusterState) -> list[tuple[int, ...]]:
    """The replicas of all topics after a balance, which a second one leaves alone."""
    found = changes(state)
    for key, nodes in found.items():
        moved = msgspec.structs.replace(state.parts[key], replicas=nodes, isr=nodes, leader=nodes[0])
        state.parts[key] = msgspec.structs.replace(moved, session=f"s{nodes[0]}")
    assert changes(state) == {}, "what is even is left alone"
    return [part.replicas for part in state.parts.values()]


def spread(counts: Counter[int], nodes: int) -> int:
    found = [counts[node] for node in range(1, nodes + 1)]
    return max(found) - min(found)


@pytest.mark.parametrize("seed", range(50))
def test_any_placement_becomes_even_and_stays_so(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(3, 7)
    nodes = range(1, count + rng.randint(0, 1))  # One node may be new.
    replicas = rng.randint(1, min(3, len(nodes)))
    state = state_of([tuple(rng.sample(nodes, replicas)) for _ in range(rng.randint(1, 40))], [""] * count)
    placed = after(state)
    assert all(len({*nodes}) == replicas for nodes in placed)
    assert spread(Counter(node for nodes in placed for node in nodes), count) <= 1
    assert spread(Counter(nodes[0] for nodes in placed), count) <= 2


def test_a_new_node_gets_its_share_by_as_few_moves_as_it_holds_topics() -> None:
    state = state_of([(1, 2), (2, 3), (3, 1)] * 4, [""] * 4)
    assert len(changes(state)) == 6, "24 replicas on four nodes"
    placed = after(state)
    assert Counter(node for nodes in placed for node in nodes) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert Counter(nodes[0] for nodes in placed) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_leaders_are_spread_without_moving_a_replica() -> None:
    state = state_of([(1, 2, 3)] * 6, [""] * 3)
    assert len(changes(state)) == 4
    placed = after(state)
    assert Counter(nodes[0] for nodes in placed) == {1: 2, 2: 2, 3: 2}
    assert all({*nodes} == {1, 2, 3} for nodes in placed)


def test_replicas_in_one_rack_are_set_apart_and_none_joins_another_one() -> None:
    assert all(3 in nodes for nodes in after(state_of([(1, 2)] * 4, "aab")))
    for nodes in after(state_of([(1, 2)] * 4 + [(2, 1)] * 4, "aabb")):
        assert len({"aabb"[node - 1] for node in nodes}) == 2
    # Node 3 holds more than the others, and nothing can go from its rack without joining another replica.
    state = state_of([(1, 3), (2, 3)] * 3, "aab")
    assert all(3 in nodes for nodes in after(state))


def test_topics_with_more_partitions_weigh_more() -> None:
    state = state_of([(1,), (1,), (1,)], ["", ""])
    weights = {"parts/000/0": 2, "parts/001/0": 1, "parts/002/0": 1}
    assert balanced(state, weights) == {"parts/000/0": (2,)}


def test_topics_that_move_and_nodes_that_are_down_or_drain_are_left_alone() -> None:
    state = state_of([(1, 2)] * 4, [""] * 4)
    state.nodes[3] = msgspec.structs.replace(state.nodes[3], draining=True)
    del state.sessions[4]
    assert all({*nodes} == {1, 2} for nodes in after(state))
    state = state_of([(1,)] * 4, [""] * 2)
    state.parts["parts/000/0"] = msgspec.structs.replace(
        state.parts["parts/000/0"], replicas=(1, 2), target=(2,), former=(1,)
    )
    assert len(changes(state)) == 1, "the one that moves counts where it goes"
    assert "parts/000/0" not in changes(state)
    state = state_of([(1, 4)] * 4, [""] * 4)
    del state.sessions[4]
    assert changes(state) == {}, "a replica that is down would hold the move up"
