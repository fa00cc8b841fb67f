"""Choices of the nodes that hold a new topic, and of the one that leads it."""

from __future__ import annotations

from collections import Counter

from linn.core.cluster.entries import ClusterState, NodeEntry, PartEntry, SessionEntry
from linn.core.cluster.placement import PlacedTopic, part_key, place

KEYS_MAX = 100


def state_of(nodes: int) -> ClusterState:
    state = ClusterState(90)
    for number in range(1, nodes + 1):
        state.nodes[number] = NodeEntry("f", f"h{number}", "")
        state.sessions[number] = SessionEntry(f"s{number}", 0, {}, (1, 1), "none")
    return state


def topics_of(count: int, replicas: int, partitions: int = 1) -> list[PlacedTopic]:
    return [PlacedTopic(f"topics/{n:03}", 7, f"{n:03}", None, partitions, replicas, 1) for n in range(count)]


def placed(state: ClusterState, topics: list[PlacedTopic]) -> dict[str, PartEntry]:
    """Place topics, and take the writes into the state."""
    for write in place(state, topics, KEYS_MAX):
        state.parts |= {key: part for key, part in write.changes.items() if isinstance(part, PartEntry)}
    return {topic.id: state.parts[part_key(topic.id)] for topic in topics}


def test_brokers_that_hold_all_topics_lead_as_many_each() -> None:
    parts = placed(state_of(3), topics_of(9, replicas=3))
    assert Counter(part.leader for part in parts.values()) == {1: 3, 2: 3, 3: 3}
    for part in parts.values():
        assert part.replicas == part.isr, "a new topic is nowhere behind"
        assert sorted(part.replicas) == [1, 2, 3]
        assert part.replicas[0] == part.leader
        assert part.session == f"s{part.leader}"


def test_topics_that_are_made_one_by_one_are_led_everywhere_too() -> None:
    state, topics = state_of(3), topics_of(6, replicas=2)
    for count in range(1, len(topics) + 1):
        parts = placed(state, topics[:count])
    assert Counter(part.leader for part in parts.values()) == {1: 2, 2: 2, 3: 2}
    assert Counter(node for part in parts.values() for node in part.replicas) == {1: 4, 2: 4, 3: 4}


def test_a_topic_counts_by_its_partitions() -> None:
    wide, *others = [*topics_of(1, replicas=2, partitions=3), *topics_of(4, replicas=2)[1:]]
    parts = placed(state_of(2), [wide, *others])
    assert parts[wide.id].leader not in [parts[topic.id].leader for topic in others]
