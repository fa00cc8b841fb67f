"""The health of a cluster's topics, by its metadata: topics without a leader, below their minimum or out of sync.

A pure function of the state and the topics, as the plan of the controller is. It goes by live sessions: a member that
has died counts as out of sync at once, though a leader may keep it in the in-sync set for the sake of the minimum.
It judges all topics, of which there may be ten thousand, in one step: a topic that is well costs about 2 us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from linn.core.cluster.entries import ClusterState, PartEntry
from linn.core.cluster.placement import PlacedTopic, part_key
from linn.descriptions import TopicTrouble, Trouble

TROUBLES: tuple[Trouble, ...] = ("leaderless", "below minimum", "unfit", "out of sync", "too few replicas")
"""From the worst to the least."""


class NodeTopics(NamedTuple):
    """The topics of one node."""

    leads: int = 0
    holds: int = 0
    """Topics of which it is a replica, led ones included."""
    out_of_sync: int = 0
    """Topics of which it is a replica, and no live in-sync member."""


NO_TOPICS = NodeTopics()


class Troubled(NamedTuple):
    """A topic in trouble. In their order the worst comes first."""

    rank: int
    """The place of its worst trouble."""
    name: str
    troubles: tuple[Trouble, ...]
    """The worst first."""
    leader: int
    in_sync: tuple[int, ...]
    """Replicas that are in sync and alive."""
    part: PartEntry | None
    topic: PlacedTopic

    def describe(self) -> TopicTrouble:
        """Describe it to people and programs."""
        part = self.part
        return {
            "topic": self.name,
            "troubles": list(self.troubles),
            "leader": self.leader,
            "epoch": part.epoch if part is not None else 0,
            "nodes": sorted(part.replicas) if part is not None else [],
            "in_sync": sorted(self.in_sync),
            "unfit": sorted(part.unfit) if part is not None else [],
            "replicas": self.topic.replicas,
            "min_in_sync": self.topic.min_in_sync,
        }


class ClusterHealth(NamedTuple):
    """All topics of a cluster."""

    topics: int
    counts: Mapping[Trouble, int]
    """Topics by trouble; one may have several."""
    out_of_sync_members: int
    """Replicas that are out of sync, over all topics."""
    moving: int
    """Topics that are being moved to other nodes."""
    away: int
    """Topics that another node leads than their preferred one."""
    troubled: Sequence[Troubled]
    """Topics in trouble, the worst first."""
    nodes: Mapping[int, NodeTopics]


def health(state: ClusterState, topics: Iterable[PlacedTopic]) -> ClusterHealth:
    """Judge all topics."""
    sessions, parts = state.sessions, state.parts
    leads, holds, lacks, counts = Counter[int](), Counter[int](), Counter[int](), Counter[Trouble]()
    troubled: list[Troubled] = []
    count = moving = away = 0
    for topic in topics:
        count += 1
        part = parts.get(part_key(topic.id))
        if part is None:
            troubled.append(_troubled(topic, None, 0, ()))
            continue
        leader, replicas = part.leader, part.replicas
        session = sessions.get(leader)
        if session is None or session.session != part.session or leader not in part.isr:
            leader = 0
        in_sync = tuple([node for node in part.isr if node in sessions])
        for node in replicas:
            holds[node] += 1
        for node in _kept(part):
            if node not in in_sync:
                lacks[node] += 1
        leads[leader] += 1
        moving += bool(part.target)
        away += leader not in (0, replicas[0])
        held = len(replicas)
        is_well = leader and not part.unfit and len(in_sync) >= held >= topic.replicas
        if not (is_well and held >= topic.min_in_sync and set(in_sync) >= set(replicas)):
            found = _troubled(topic, part, leader, in_sync)
            if found.troubles:
                troubled.append(found)
    for each in troubled:
        counts.update(each.troubles)
    nodes = {node: NodeTopics(leads[node], holds[node], lacks[node]) for node in holds}
    by_trouble = {trouble: counts[trouble] for trouble in TROUBLES}
    troubled.sort(key=lambda each: each[:2])
    return ClusterHealth(count, by_trouble, sum(lacks.values()), moving, away, troubled, nodes)


def _kept(part: PartEntry) -> tuple[int, ...]:
    """The replicas that should be in sync by now: without new ones, while a topic moves to them."""
    return part.former if part.target and part.former else part.replicas


def _troubled(topic: PlacedTopic, part: PartEntry | None, leader: int, in_sync: tuple[int, ...]) -> Troubled:
    """Name the troubles of a topic, if there are any."""
    replicas = part.replicas if part is not None else ()
    holds = (
        not leader,
        len(in_sync) < topic.min_in_sync,
        part is not None and bool(part.unfit),
        part is not None and any(node not in in_sync for node in _kept(part)),
        len(replicas) < topic.replicas,
    )
    troubles = tuple([trouble for trouble, is_so in zip(TROUBLES, holds, strict=True) if is_so])
    rank = holds.index(True) if troubles else len(TROUBLES)
    return Troubled(rank, topic.key.partition("/")[2], troubles, leader, in_sync, part, topic)
