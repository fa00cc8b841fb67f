"""Placement of partitions on nodes: a pure function from the state of the cluster and its topics to writes.

Laws: a partition is placed once, when its topic is made or gets more of them. All partitions of a topic are led by one
node, because a broker does not pass requests on yet. A topic goes to the node with the fewest partitions. Only nodes
that are alive and do not drain get any. A partition's entry is removed when the metadata, at a later revision, has no
topic of its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from linn.core.cluster.entries import PARTS, SESSIONS, ClusterState, PartEntry
from linn.core.cluster.plan import Write, of_controller, packed
from linn.core.metadata.store import ABSENT, REMOVED


class PlacedTopic(NamedTuple):
    """A topic, as its placement needs it."""

    key: str
    """The key of its entry in the metadata store."""
    revision: int
    id: str
    partitions: int
    storage: str | None


def part_key(topic_id: str, index: int) -> str:
    """The key of a partition's entry."""
    return f"{PARTS}{topic_id}/{index}"


def place(state: ClusterState, topics: Iterable[PlacedTopic], keys_max: int) -> list[Write]:
    """The writes that place partitions without a place, and that remove entries of partitions without a topic."""
    known = sorted(topics)
    ids = {topic.id for topic in known}
    used = {key: part for key, part in state.parts.items() if key.removeprefix(PARTS).partition("/")[0] in ids}
    held = Counter(part.replicas[0] for part in used.values())
    steps: list[Write] = []
    for topic in known:
        found = {index: state.parts.get(part_key(topic.id, index)) for index in range(topic.partitions)}
        missing = [index for index, part in found.items() if part is None]
        homes = [part.replicas[0] for part in found.values() if part is not None]
        node = _chosen(state, held, homes) if missing else None
        if node is not None:
            held[node] += len(missing)
            steps += [_placed(state, topic, index, node) for index in missing]
    for key in sorted(state.parts.keys() - used.keys()):
        steps.append(Write({key: REMOVED}, {key: state.revision_of(key)}))
    return [of_controller(state, write) for write in packed(steps, keys_max)]


def _chosen(state: ClusterState, held: Mapping[int, int], homes: list[int]) -> int | None:
    """The node for further partitions of a topic; None: none can take them now."""
    if homes:
        return homes[0] if homes[0] in state.sessions else None
    alive = [node for node in sorted(state.sessions) if node in state.nodes and not state.nodes[node].draining]
    return min(alive, key=lambda node: held[node], default=None)


def _placed(state: ClusterState, topic: PlacedTopic, index: int, node: int) -> Write:
    key, session = part_key(topic.id, index), f"{SESSIONS}{node}"
    entry = PartEntry(leader=node, session=state.sessions[node].session, epoch=1, isr=(node,), replicas=(node,))
    return Write({key: entry}, {key: ABSENT, session: state.revision_of(session), topic.key: topic.revision})
