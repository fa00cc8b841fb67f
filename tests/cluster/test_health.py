"""The health of topics by the metadata, one trouble by one."""

from __future__ import annotations

from typing import Any

import pytest
from test_plan import PART, changed, state_of

from linn.core.cluster.entries import PartEntry
from linn.core.cluster.health import TROUBLES, ClusterHealth, NodeTopics, health
from linn.core.cluster.placement import PlacedTopic
from linn.descriptions import Trouble

TOPIC = PlacedTopic("topics/orders", 7, "t", None, partitions=1, replicas=3, min_in_sync=2)


def judged(part: PartEntry | None = PART, topic: PlacedTopic = TOPIC, **state: Any) -> ClusterHealth:
    return health(state_of(part, **state), [topic])


def test_a_topic_that_is_led_and_in_sync_is_in_no_trouble() -> None:
    found = judged()
    assert (found.topics, found.troubled, found.out_of_sync_members, found.away) == (1, [], 0, 0)
    assert found.counts == dict.fromkeys(TROUBLES, 0)
    assert found.nodes == {1: NodeTopics(1, 1), 2: NodeTopics(0, 1), 3: NodeTopics(0, 1)}


TROUBLED: list[tuple[str, dict[str, Any], list[Trouble]]] = [
    ("its leader is dead", {"alive": (2, 3)}, ["leaderless", "out of sync"]),
    ("its leader has another session", {"part": changed(session="s0")}, ["leaderless"]),
    ("its leader has left the set", {"part": changed(isr=(2, 3))}, ["leaderless", "out of sync"]),
    ("all have lost it", {"part": changed(isr=())}, ["leaderless", "below minimum", "out of sync"]),
    ("it is not placed", {"part": None}, ["leaderless", "below minimum", "too few replicas"]),
    ("a member is out of the set", {"part": changed(isr=(1, 2))}, ["out of sync"]),
    ("a member of the set is dead", {"alive": (1, 2)}, ["out of sync"]),
    ("two members of the set are dead", {"alive": (1,)}, ["below minimum", "out of sync"]),
    ("one member is left in the set", {"part": changed(isr=(1,))}, ["below minimum", "out of sync"]),
    ("a disk is full", {"part": changed(unfit=(2,))}, ["unfit"]),
    ("there are two nodes", {"part": changed(isr=(1, 2), replicas=(1, 2))}, ["too few replicas"]),
]


@pytest.mark.parametrize(("state", "troubles"), [row[1:] for row in TROUBLED], ids=[row[0] for row in TROUBLED])
def test_each_trouble_has_its_name(state: dict[str, Any], troubles: list[Trouble]) -> None:
    found = judged(**state)
    (topic,) = [each.describe() for each in found.troubled]
    assert (topic["topic"], topic["troubles"]) == ("orders", troubles)
    assert found.counts == {trouble: int(trouble in troubles) for trouble in TROUBLES}
    assert (topic["leader"] == 0) == ("leaderless" in troubles)
    assert (topic["replicas"], topic["min_in_sync"]) == (3, 2)


def test_a_dead_member_is_out_of_sync_at_its_node() -> None:
    found = judged(alive=(1, 2))
    assert found.nodes[3] == NodeTopics(0, 1, 1)
    assert found.out_of_sync_members == 1
    assert found.troubled[0].in_sync == (1, 2)


def test_a_topic_is_away_where_another_replica_leads_than_the_first() -> None:
    found = judged(changed(leader=2, session="s2"))
    assert (found.away, found.troubled) == (1, [])
    assert judged(changed(leader=2, session="s0")).away == 0, "it is led by none"
    assert judged(changed(target=(1, 2))).moving == 1


def test_a_replica_to_which_a_topic_moves_is_not_out_of_sync_before_it_has_everything() -> None:
    moving = changed(isr=(1, 2), replicas=(1, 2, 3), former=(1, 2), target=(1, 3))
    found = judged(moving, TOPIC._replace(replicas=2))
    assert (found.moving, found.troubled, found.nodes[3]) == (1, [], NodeTopics(0, 1, 0))
    lacking = judged(changed(isr=(1,), replicas=(1, 2, 3), former=(1, 2), target=(1, 3)), TOPIC._replace(replicas=2))
    assert lacking.troubled[0].troubles == ("below minimum", "out of sync")
    assert lacking.out_of_sync_members == 1


def test_the_worst_topics_come_first() -> None:
    parts = {
        "b": changed(isr=()),
        "a": changed(isr=(1, 2)),
        "d": changed(unfit=(3,)),
        "c": changed(isr=(1,)),
        "e": PART,
    }
    state = state_of(None)
    state.parts.update({f"parts/{id}/0": part for id, part in parts.items()})
    topics = [TOPIC._replace(key=f"topics/{id}", id=id) for id in sorted(parts)]
    assert [topic.name for topic in health(state, topics).troubled] == ["b", "c", "d", "a"]
