"""Operations on a cluster, checked: pure functions from its state and a request to one write.

Laws: all but the upgrade need the level that has them. An operation that is done already changes nothing, so that it
may be repeated. What would leave a topic without
enough replicas in sync, or with none, is refused. A write depends on all nodes if it was allowed because of the others:
of two operators who drain two nodes at a time, the second one is checked again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from linn.core.cluster.balance import balanced
from linn.core.cluster.catalog_store import TOPICS
from linn.core.cluster.entries import CLUSTER, NODES, SESSIONS, ClusterState, NodeEntry, PartEntry
from linn.core.cluster.moves import cancelled, drains, reassigned
from linn.core.cluster.placement import PlacedTopic, part_key
from linn.core.cluster.plan import PolicyOf, Write, candidates, led_by, told_loss
from linn.core.errors.cluster import ClusterRefused, NodeUnknown
from linn.core.errors.tree import TopicUnknown
from linn.descriptions import TopicMoveDescription

NAMED_MAX = 5
"""Limit of the topics that an error names: the others are counted."""


class NodeChange(NamedTuple):
    """A change of a node, with its topics now. `write` is None: it is done already."""

    write: Write | None
    leads: int
    """Topics that it leads."""
    holds: int
    """Topics of which it holds a replica."""


class TopicChange(NamedTuple):
    """A change of a topic's replicas. `write` is None: it is done already."""

    write: Write | None
    before: PartEntry
    after: PartEntry


class LevelChange(NamedTuple):
    """A change of the cluster's level. `write` is None: it is done already."""

    write: Write | None
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations for one state of the cluster."""

    state: ClusterState
    topics: Mapping[str, PlacedTopic]
    """By their keys in the metadata store."""
    policy_of: PolicyOf

    # --- nodes -------------------------------------------------------------------------------------------------------

    def drain(self, node: int) -> NodeChange:
        """Let a node lead nothing, and get no topics. Raises NodeUnknown, ClusterRefused."""
        entry = self._node(node)
        if entry.draining:
            return self._changed(node, entry)
        self._check_others(node)
        weak = [name for name, topic, part in self._held(node) if self._others_in_sync(part, node) < _least(topic)]
        if weak:
            why = "would have fewer replicas in sync than they need without it: reassign them, or remove the node"
            raise ClusterRefused(f"node {node} can't be drained: {_named(weak)} {why}")
        return self._changed(node, msgspec.structs.replace(entry, draining=True))

    def undrain(self, node: int) -> NodeChange:
        """Let a node lead and get topics again; one that leaves stays. Raises NodeUnknown."""
        return self._changed(node, msgspec.structs.replace(self._node(node), draining=False, leaving=False))

    def remove(self, node: int) -> NodeChange:
        """Move all replicas of a node to others, and forget it when it has stopped.

        Raises NodeUnknown, ClusterRefused.
        """
        entry = self._node(node)
        if entry.leaving:
            return self._changed(node, entry)
        usable = self._check_others(node)
        weak = [name for name, topic, _ in self._held(node) if len(usable) < _least(topic)]
        if weak:
            text = f"{_named(weak)} would have fewer replicas than have to be in sync"
            raise ClusterRefused(f"node {node} can't be removed: {text}")
        if node not in self.state.sessions:
            lost = [name for name, _, part in self._held(node) if not [*self._alive(part.isr)]]
            if lost:
                text = f"it is down, and no other node has all records of {_named(lost)}"
                raise ClusterRefused(f"node {node} can't be removed: {text}")
        return self._changed(node, msgspec.structs.replace(entry, draining=True, leaving=True))

    def _node(self, node: int) -> NodeEntry:
        if node not in self.state.nodes:
            raise NodeUnknown(f"the cluster has no node {node}: it has {', '.join(map(str, sorted(self.state.nodes)))}")
        return self.state.nodes[node]

    def _check_others(self, node: int) -> list[int]:
        """The other nodes that may lead. Raises ClusterRefused: there is none."""
        usable = [it for it in self.state.nodes if it != node and it in self.state.sessions and not self._drains(it)]
        if not usable:
            raise ClusterRefused(f"node {node} is the last one that is alive and does not drain")
        return usable

    def _drains(self, node: int) -> bool:
        return drains(self.state, node)

    def _alive(self, nodes: Collection[int]) -> Iterator[int]:
        return (node for node in nodes if node in self.state.sessions)

    def _held(self, node: int) -> Iterator[tuple[str, PlacedTopic, PartEntry]]:
        """The topics of which a node holds a replica, by name."""
        for key, topic in sorted(self.topics.items()):
            part = self.state.parts.get(part_key(topic.id))
            if part is not None and node in part.replicas:
                yield key.removeprefix(TOPICS), topic, part

    def _others_in_sync(self, part: PartEntry, node: int) -> int:
        return len([it for it in self._alive(part.isr) if it != node and not self._drains(it)])

    def _changed(self, node: int, now: NodeEntry) -> NodeChange:
        held = [part for _, _, part in self._held(node)]
        write = None
        if now != self.state.nodes[node]:
            keys = [f"{NODES}{it}" for it in self.state.nodes]
            write = Write({f"{NODES}{node}": now}, {key: self.state.revision_of(key) for key in keys})
        return NodeChange(write, len([part for part in held if part.leader == node]), len(held))

    # --- topics ------------------------------------------------------------------------------------------------------

    def reassign(self, name: str, nodes: Sequence[int]) -> TopicChange:
        """Move a topic to these nodes, the preferred leader first. Raises TopicUnknown, NodeUnknown, ClusterRefused."""
        topic, part = self._part(name)
        if tuple(nodes) == (part.target or part.replicas):
            return TopicChange(None, part, part)
        if part.target:
            raise ClusterRefused(f"topic {name} is moving to nodes {_listed(part.target)} already: cancel that first")
        self._check_target(name, topic, part, nodes)
        return self._moved(topic, part, reassigned(part, nodes))

    def _check_target(self, name: str, topic: PlacedTopic, part: PartEntry, nodes: Sequence[int]) -> None:
        twice = sorted({node for node in nodes if nodes.count(node) > 1})
        if twice:
            raise ClusterRefused(f"node {twice[0]} is named twice: a node holds one replica of topic {name}")
        for node in nodes:
            entry = self._node(node)
            if node not in part.replicas and (entry.draining or node not in self.state.sessions):
                raise ClusterRefused(f"node {node} {'drains' if entry.draining else 'is down'}: it gets no topics")
        if len(nodes) not in (topic.replicas, min(topic.replicas, len(part.replicas))):
            text = f"topic {name} has replicas = {topic.replicas}: name as many nodes, or alter the topic first"
            raise ClusterRefused(f"{len(nodes)} nodes are named, and {text}")
        if len(nodes) < _least(topic):
            raise ClusterRefused(f"topic {name} needs {_least(topic)} replicas in sync, and {len(nodes)} are named")

    def cancel(self, name: str) -> TopicChange:
        """Go back to the replicas before a topic's reassignment. Raises TopicUnknown, ClusterRefused."""
        topic, part = self._part(name)
        now = cancelled(part)
        return self._moved(topic, part, now) if now != part else TopicChange(None, part, part)

    def balance(self) -> dict[str, TopicChange]:
        """Spread replicas and preferred leaders evenly over the nodes: the changes, by the topics' names."""
        by_key = {part_key(topic.id): (key.removeprefix(TOPICS), topic) for key, topic in self.topics.items()}
        found = balanced(self.state, {key: topic.partitions for key, (_, topic) in by_key.items()})
        changes: dict[str, TopicChange] = {}
        for key, nodes in found.items():
            name, topic = by_key[key]
            changes[name] = self._moved(topic, self.state.parts[key], reassigned(self.state.parts[key], nodes))
        return changes

    def elect(self, name: str, leader: int | None) -> TopicChange:
        """Let a member lead that is in sync, None: the preferred one. Raises TopicUnknown, ClusterRefused."""
        topic, part = self._part(name)
        leader = part.replicas[0] if leader is None else leader
        if leader == part.leader:
            return TopicChange(None, part, part)
        may_lead = candidates(self.state, part, self.policy_of(part_key(topic.id)))
        if leader not in may_lead or leader in part.unfit or self._drains(leader) or part.target:
            why = "the topic is moving" if part.target else "it is not in sync and alive, or it drains or is unfit"
            raise ClusterRefused(f"node {leader} can't lead topic {name} now: {why}")
        return self._moved(topic, part, msgspec.structs.replace(part, successor=leader))

    def elect_unclean(self, name: str, leader: int, give_up: Collection[int]) -> TopicChange:
        """Let a replica lead that may lack confirmed records; what only the nodes given up have is lost.

        They cut that off when they are back. Raises TopicUnknown, ClusterRefused: a member that is in sync can
        lead, or others have to be given up.
        """
        topic, part = self._part(name)
        key, given = part_key(topic.id), [node for node in part.isr if node != leader]
        if leader == part.leader and part.isr == (leader,):
            return TopicChange(None, part, part)
        may_lead = candidates(self.state, part, self.policy_of(key))
        if may_lead:
            raise ClusterRefused(f"node {may_lead[0]} has all of topic {name} and can lead: nothing is given up")
        if leader not in part.replicas or leader not in self.state.sessions:
            raise ClusterRefused(f"node {leader} is down, or holds no replica of topic {name}")
        if told_loss(self.state, leader, self.policy_of(key)) != "none":
            raise ClusterRefused(f"the controller has yet to hear what node {leader} has lost: try again")
        if {*give_up} != {*given}:
            raise ClusterRefused(f"records of nodes {_listed(given) or 'none'} are given up: name exactly these")
        unfit = tuple(node for node in part.unfit if node != leader)
        alone = msgspec.structs.replace(part, isr=(leader,), target=(), former=(), unfit=unfit)
        now = led_by(self.state, alone, leader)
        keys = [key, f"{NODES}{leader}", *(f"{SESSIONS}{node}" for node in (leader, *given))]
        return TopicChange(Write({key: now}, {it: self.state.revision_of(it) for it in keys}), part, now)

    def upgrade(self, level: int) -> LevelChange:
        """Raise the level of the cluster, after which older brokers can't read its metadata.

        Raises ClusterRefused: one is alive.
        """
        cluster = self.state.cluster
        assert cluster is not None, "the broker is a node of it"
        old = [node for node, session in sorted(self.state.sessions.items()) if session.levels[1] < level]
        if old:
            run = f"nodes {_listed(old)} run an older version" if old[1:] else f"node {old[0]} runs an older version"
            raise ClusterRefused(f"{run}, which does not know level {level}: restart it in the new one first")
        if cluster.level >= level:
            return LevelChange(None, cluster.level, cluster.level)
        keys = [CLUSTER, *(f"{SESSIONS}{node}" for node in sorted({*self.state.nodes, *self.state.sessions}))]
        now = msgspec.structs.replace(cluster, level=level)
        write = Write({CLUSTER: now}, {key: self.state.revision_of(key) for key in keys})
        return LevelChange(write, cluster.level, level)

    def moves(self) -> list[TopicMoveDescription]:
        """The topics that are moving, or about to get another leader, by name."""
        found: list[TopicMoveDescription] = []
        for key, topic in sorted(self.topics.items()):
            part = self.state.parts.get(part_key(topic.id))
            if part is not None and (part.target or part.successor):
                found.append(
                    {
                        "topic": key.removeprefix(TOPICS),
                        "leader": part.leader,
                        "successor": part.successor or None,
                        "replicas": list(part.former or part.replicas),
                        "target": list(part.target or part.replicas),
                        "in_sync": sorted(part.isr),
                        "is_cancelled": bool(part.target) and part.target == part.former,
                    }
                )
        return found

    def _part(self, name: str) -> tuple[PlacedTopic, PartEntry]:
        topic = self.topics.get(f"{TOPICS}{name}")
        if topic is None:
            raise TopicUnknown(f"there is no topic {name[:80]}")
        part = self.state.parts.get(part_key(topic.id))
        if part is None:
            raise ClusterRefused(f"topic {name} is on no node yet")
        return topic, part

    def _moved(self, topic: PlacedTopic, part: PartEntry, now: PartEntry) -> TopicChange:
        key = part_key(topic.id)
        keys = [key, *(f"{NODES}{node}" for node in now.target)]
        return TopicChange(Write({key: now}, {key: self.state.revision_of(key) for key in keys}), part, now)


def _least(topic: PlacedTopic) -> int:
    return max(1, topic.min_in_sync)


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def _named(topics: Sequence[str]) -> str:
    """A few topics by name."""
    text = "topic " if len(topics) == 1 else "topics "
    more = f" and {len(topics) - NAMED_MAX} more" if len(topics) > NAMED_MAX else ""
    return text + ", ".join(topics[:NAMED_MAX]) + more
