"""Placement of topics on nodes: a pure function from the state of the cluster and its topics to writes.

Laws: a topic is placed as a whole, when it is made. It goes to the nodes that hold the fewest partitions, in different
racks and on different hosts as far as possible; only to nodes that are alive and do not drain. That one of them leads
it which is the first replica of the fewest partitions. While there are fewer nodes than it has replicas, it has fewer;
it gets the others when there are more nodes. One with too many replicas, or with some on nodes that leave, is
reassigned. A topic's entry is removed when the metadata, at a later revision, has no topic of its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from linn.core.cluster.entries import PARTS, SESSIONS, ClusterState, PartEntry
from linn.core.cluster.moves import drains, reassigned
from linn.core.cluster.plan import Write, of_controller, packed, part_write
from linn.core.metadata.store import ABSENT, REMOVED


class PlacedTopic(NamedTuple):
    """A topic, as its placement needs it."""

    key: str
    """The key of its entry in the metadata store."""
    revision: int
    id: str
    storage: str | None
    partitions: int
    replicas: int
    min_in_sync: int


def part_key(topic_id: str) -> str:
    """The key of the entry that says who leads a topic, and who holds it.

    A topic is one group of logs: number 0. The key leaves room for more.
    """
    return f"{PARTS}{topic_id}/0"


def place(state: ClusterState, topics: Iterable[PlacedTopic], keys_max: int) -> list[Write]:
    """The writes that place topics, give them replicas that they lack, and remove entries without a topic."""
    known = sorted(topics)
    weights = {part_key(topic.id): topic.partitions for topic in known}
    used = {key: part for key, part in state.parts.items() if key in weights}
    held, preferred = Counter[int](), Counter[int]()
    for key, placed in used.items():
        preferred[placed.replicas[0]] += weights[key]
        for node in placed.replicas:
            held[node] += weights[key]
    steps: list[Write] = []
    for topic in known:
        part = state.parts.get(part_key(topic.id))
        there = part.replicas if part is not None else ()
        target = there
        if part is not None and not part.target:
            target = _reduced(state, held, topic, part)
        if part is not None and target != there:
            held.update(dict.fromkeys({*target} - {*there}, topic.partitions))
            steps.append(part_write(state, part_key(topic.id), part, reassigned(part, target)))
            continue
        added = _chosen(state, held, there, topic.replicas - len(there))
        for node in added:
            held[node] += topic.partitions
        if part is None and added:
            added = tuple(sorted(added, key=lambda node: preferred[node]))
            preferred[added[0]] += topic.partitions
            steps.append(_placed(state, topic, added))
        elif part is not None and added and not part.target:
            more = msgspec.structs.replace(part, replicas=(*there, *added))
            steps.append(part_write(state, part_key(topic.id), part, more))
    for key in sorted(state.parts.keys() - used.keys()):
        steps.append(Write({key: REMOVED}, {key: state.revision_of(key)}))
    return [of_controller(state, write) for write in packed(steps, keys_max)]


def _reduced(state: ClusterState, held: Mapping[int, int], topic: PlacedTopic, part: PartEntry) -> tuple[int, ...]:
    """The replicas without those on nodes that leave, replaced as far as possible, and without more than there should
    be: at least as many as have to be in sync, or all of them."""
    staying = [node for node in part.replicas if not (node in state.nodes and state.nodes[node].leaving)]
    better = sorted(
        staying, key=lambda n: (n not in part.isr, n not in state.sessions, drains(state, n), n != part.leader)
    )
    kept = tuple(node for node in part.replicas if node in better[: topic.replicas])
    if len(staying) < len(part.replicas):
        kept += _chosen(state, held, kept, topic.replicas - len(kept))
    return kept if len(kept) >= max(1, topic.min_in_sync) else part.replicas


def _chosen(state: ClusterState, held: Mapping[int, int], there: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Choose further nodes for a topic, at most `count`, beside the nodes that have it."""
    alive = [node for node in sorted(state.sessions) if node in state.nodes and not drains(state, node)]
    chosen: list[int] = []
    while len(chosen) < count:
        beside = [state.nodes[node] for node in (*there, *chosen) if node in state.nodes]
        racks, hosts = {node.rack for node in beside if node.rack}, {node.host for node in beside}
        free = [node for node in alive if node not in there and node not in chosen]
        if not free:
            break
        chosen.append(min(free, key=lambda n: (state.nodes[n].rack in racks, state.nodes[n].host in hosts, held[n], n)))
    return tuple(chosen)


def _placed(state: ClusterState, topic: PlacedTopic, nodes: tuple[int, ...]) -> Write:
    """Place a new topic: all of its replicas hold all that there is, which is nothing."""
    key, leader = part_key(topic.id), nodes[0]
    entry = PartEntry(leader=leader, session=state.sessions[leader].session, epoch=1, isr=nodes, replicas=nodes)
    sessions = {f"{SESSIONS}{node}": state.revision_of(f"{SESSIONS}{node}") for node in nodes}
    return Write({key: entry}, {key: ABSENT, **sessions, topic.key: topic.revision})
