"""The decisions of the controller: a pure function from the state of the cluster to writes.

Laws, of `tests/models/replication.py`, which is searched with this function as its controller:
- A member that has lost something leaves the in-sync set before it is elected or added, also below the least number.
  The last one stays if it has lost a tail, or if its topic is in memory; one that has lost everything leaves as well,
  and the partition has no leader until an operator decides.
- A leader is elected, of the in-sync set, where the leader's session is gone or another one, or the leader is not in
  the set. Each election has a new epoch. Dead members leave as far as the least number allows: they hold everything.
- A leader may name its successor, as an election would without it: in a new epoch. A node that stops leaves the set as
  far as the least number allows.
- Every write depends on each key from which it follows, and a write of the controller on its own key as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, NamedTuple

import msgspec

from linn.core.cluster.entries import (
    CONTROLLER,
    ENDED,
    NODES,
    SESSIONS,
    ClusterState,
    Loss,
    PartEntry,
    SessionEnd,
    unnoted_session,
    with_end,
)
from linn.core.metadata.store import ABSENT

KEYS_MAX = 100
"""Limit of the keys of one write: it fails as a whole if one of them has changed."""


class PartPolicy(NamedTuple):
    """Promises of a partition's topic."""

    min_in_sync: int = 1
    is_synced: bool = False
    """Whether a record is synced before it counts, so that no tail can be lost."""
    is_in_memory: bool = False


class Write(NamedTuple):
    """Changes that are made together, if each key of `conditions` has the given revision."""

    changes: dict[str, Any]
    conditions: dict[str, int]


PolicyOf = Callable[[str], PartPolicy]
"""Returns the policy of a partition, by its key."""


def plan(state: ClusterState, now_ms: int, policy_of: PolicyOf, keys_max: int = KEYS_MAX) -> list[Write]:
    """The writes that the controller has to make, in order. Empty: nothing is to be done."""
    steps: list[Write] = []
    leaving: set[int] = set()
    for key, part in sorted(state.parts.items()):
        policy = policy_of(key)
        kept = without_lost(state, part, policy)
        leaving.update(set(part.isr) - set(kept.isr))
        now = with_leader(state, kept, policy)
        if now != part:
            steps.append(part_write(state, key, part, now))
    steps += [_handled_write(state, node) for node in sorted(_unhandled(state) - leaving)]
    steps += [end_write(state, node, session, now_ms) for node, session in _unnoted(state)]
    return [of_controller(state, write) for write in packed(steps, keys_max)]


def told_loss(state: ClusterState, node: int, policy: PartPolicy) -> Loss:
    """The unhandled loss of a live node in a partition: none, tail (it may stay as the last member) or all."""
    session, entry = state.sessions.get(node), state.nodes.get(node)
    if session is None or (entry is not None and entry.handled == session.session):
        return "none"
    if policy.is_in_memory:
        return "none" if session.lost == "none" else "tail"
    if session.lost == "all":
        return "all"
    return "tail" if session.lost == "tail" and not policy.is_synced else "none"


def without_lost(state: ClusterState, part: PartEntry, policy: PartPolicy) -> PartEntry:
    """The partition without members that have lost something, but for the last one that has lost no more than a tail.

    If all of them have, the one that is first among the replicas stays.
    """
    losses = {node: told_loss(state, node, policy) for node in part.isr}
    kept = tuple(node for node in part.isr if losses[node] == "none")
    if not kept:
        kept = tuple(node for node in _in_order(part) if losses[node] == "tail")[:1]
    return with_members(part, kept)


def with_leader(state: ClusterState, part: PartEntry, policy: PartPolicy) -> PartEntry:
    """The partition with a leader, if it needs one and there is one."""
    session = state.sessions.get(part.leader)
    if session is not None and session.session == part.session and part.leader in part.isr:
        return part
    possible = candidates(state, part, policy)
    if not possible:
        return part
    gone = dead_members(state, part, policy)
    left = with_members(part, tuple(node for node in part.isr if node not in gone))
    return led_by(state, left, part.leader if part.leader in possible else possible[0])


def with_members(part: PartEntry, isr: tuple[int, ...]) -> PartEntry:
    """The partition with another in-sync set. Who leaves it has to catch up anyway, and is unfit no more."""
    unfit = tuple(node for node in part.unfit if node in isr or node not in part.isr)
    return msgspec.structs.replace(part, isr=isr, unfit=unfit)


def led_by(state: ClusterState, part: PartEntry, leader: int) -> PartEntry:
    """The partition led by a live member of its in-sync set, in the next epoch."""
    session = state.sessions[leader].session
    return msgspec.structs.replace(part, leader=leader, session=session, epoch=part.epoch + 1, successor=0)


def candidates(state: ClusterState, part: PartEntry, policy: PartPolicy) -> list[int]:
    """In-sync members that may lead, the preferred one first, draining ones and then unfit ones last."""
    alive = [node for node in _in_order(part) if node in state.sessions and told_loss(state, node, policy) == "none"]
    draining = {node for node, entry in state.nodes.items() if entry.draining}
    return sorted(alive, key=lambda node: (node in part.unfit, node in draining))


def dead_members(state: ClusterState, part: PartEntry, policy: PartPolicy) -> list[int]:
    """In-sync members without a session that leave: as many as the least number allows, the last replicas first."""
    dead = [node for node in reversed(_in_order(part)) if node not in state.sessions]
    return dead[: max(0, len(part.isr) - max(1, policy.min_in_sync))]


def _in_order(part: PartEntry) -> list[int]:
    """The in-sync members in the order of the replicas."""
    places = {node: place for place, node in enumerate(part.replicas)}
    return sorted(part.isr, key=lambda node: (places.get(node, len(places)), node))


# --- orderly moves ---------------------------------------------------------------------------------------------------


def departure(
    state: ClusterState, node: int, keys: Set[str], policy_of: PolicyOf, keys_max: int = KEYS_MAX
) -> list[Write]:
    """The writes of a node that stops, for the partitions with these keys: others lead them, and it leaves the in-sync
    sets as far as the least numbers allow."""
    steps: list[Write] = []
    for key in sorted(keys & state.parts.keys()):
        part, policy = state.parts[key], policy_of(key)
        now = withdrawn(handed_over(state, part, node, policy), node, policy.min_in_sync)
        if now != part:
            steps.append(part_write(state, key, part, now))
    return list(packed(steps, keys_max))


def retreat(state: ClusterState, node: int, key: str, policy: PartPolicy, *, is_damaged: bool) -> list[Write]:
    """The write of a node that can't go on with a partition; none if no other member can.

    If its disk takes no records, a fit member leads instead. If its log is damaged, it leaves the in-sync set as well,
    also below the least number, and is added again only after it has begun anew.
    """
    part = state.parts.get(key)
    if part is None:
        return []
    if part.leader == node and not any_fit(state, part, node, policy):
        return []
    now = handed_over(state, part, node, policy)
    if is_damaged:
        now = withdrawn(now, node, 1)
    if node not in part.unfit and (now.leader != part.leader or (is_damaged and node not in now.isr)):
        now = msgspec.structs.replace(now, unfit=(*now.unfit, node))
    return [part_write(state, key, part, now)] if now != part else []


def any_fit(state: ClusterState, part: PartEntry, node: int, policy: PartPolicy) -> bool:
    """Whether another member may lead that is fit."""
    return any(other != node and other not in part.unfit for other in candidates(state, part, policy))


def handed_over(state: ClusterState, part: PartEntry, node: int, policy: PartPolicy) -> PartEntry:
    """The partition led by the first candidate but a node, if that leads it; unchanged if there is no other."""
    others = [other for other in candidates(state, part, policy) if other != node]
    return led_by(state, part, others[0]) if part.leader == node and others else part


def withdrawn(part: PartEntry, node: int, least: int) -> PartEntry:
    """The partition without a node in its in-sync set, unless it leads, or fewer than `least` members would be left."""
    if node not in part.isr or node == part.leader or len(part.isr) <= max(1, least):
        return part
    return with_members(part, tuple(member for member in part.isr if member != node))


# --- writes ----------------------------------------------------------------------------------------------------------


def part_write(state: ClusterState, key: str, part: PartEntry, now: PartEntry) -> Write:
    """The change of a partition's entry; a new epoch depends on the session of its leader as well."""
    conditions = {key: state.revision_of(key)}
    if now.epoch != part.epoch:
        elected = f"{SESSIONS}{now.leader}"
        conditions[elected] = state.revision_of(elected)
    return Write({key: now}, conditions)


def _unhandled(state: ClusterState) -> set[int]:
    """Nodes that tell a loss which the controller has not handled."""
    told = {node for node, session in state.sessions.items() if session.lost != "none" and node in state.nodes}
    return {node for node in told if state.nodes[node].handled != state.sessions[node].session}


def _handled_write(state: ClusterState, node: int) -> Write:
    key, session = f"{NODES}{node}", f"{SESSIONS}{node}"
    entry = msgspec.structs.replace(state.nodes[node], handled=state.sessions[node].session)
    return Write({key: entry}, {key: state.revision_of(key), session: state.revision_of(session)})


def _unnoted(state: ClusterState) -> Iterator[tuple[int, str]]:
    for node in sorted(state.nodes):
        session = unnoted_session(state, node)
        if session is not None:
            yield node, session


def end_write(state: ClusterState, node: int, session: str, now_ms: int) -> Write:
    """Note that a node's session has ended and that it was given up."""
    key, ended = f"{NODES}{node}", f"{ENDED}{node}"
    ends = with_end(state.ended.get(node, ()), SessionEnd(session, now_ms, "given up"))
    conditions = {key: state.revision_of(key), ended: state.revision_of(ended), f"{SESSIONS}{node}": ABSENT}
    return Write({ended: ends}, conditions)


def packed(steps: Iterable[Write], keys_max: int) -> Iterator[Write]:
    """Put as many steps together as one write may have, with one condition to spare."""
    packed = Write({}, {})
    for step in steps:
        keys = len({*packed.conditions, *step.conditions})
        if packed.changes and max(len(packed.changes) + len(step.changes), keys + 1) > keys_max:
            yield packed
            packed = Write({}, {})
        packed.changes.update(step.changes)
        packed.conditions.update(step.conditions)
    if packed.changes:
        yield packed


def of_controller(state: ClusterState, write: Write) -> Write:
    """The write as one of this controller alone: a later one has another revision."""
    return Write(write.changes, {**write.conditions, CONTROLLER: state.revision_of(CONTROLLER)})
