"""Moves of topics that are in order: a pure function from the state of the cluster to writes.

Laws, of `tests/models/moved_replicas.py`:
- During a reassignment the replicas are the former ones and the targets. It is done when all targets are alive and in
  the in-sync set, which has the least number of members without the others, and a target leads. A target that dies
  holds it up, and harms nothing.
- Replicas are dropped in a new epoch, also where the leader stays. A dropped replica deletes its logs; its earlier
  acknowledgements must not count if it is a replica again by then.
- A reassignment is cancelled by making the former replicas its target. One that was behind before is not waited for.
- A leader is moved by its own hand (`plan.handed_over`): the controller names a successor, which is in sync, alive and
  fit. It names one if the leader drains, or if it is no target of a reassignment that is otherwise done, or if the
  preferred replica is due to lead again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from linn.core.cluster.entries import ENDED, NODES, SESSIONS, ClusterState, PartEntry
from linn.core.cluster.plan import (
    PartPolicy,
    PolicyOf,
    Write,
    candidates,
    led_by,
    of_controller,
    packed,
    part_write,
)
from linn.core.metadata.store import ABSENT, REMOVED


def moves(state: ClusterState, policy_of: PolicyOf, keys_max: int, due: Container[str] = ()) -> list[Write]:
    """The writes that carry on reassignments, name successors, and forget nodes that have left for good.

    `due`: keys of partitions whose preferred replica is to lead. For a state in which `plan.plan` finds nothing to do.
    """
    steps: list[Write] = []
    for key, part in sorted(state.parts.items()):
        now = moved(state, part, policy_of(key), is_due=key in due)
        if now != part:
            steps.append(part_write(state, key, part, now))
    steps += [_forgotten(state, node) for node in sorted(state.nodes) if is_gone(state, node)]
    return [of_controller(state, write) for write in packed(steps, keys_max)]


def moved(state: ClusterState, part: PartEntry, policy: PartPolicy, *, is_due: bool = False) -> PartEntry:
    """The partition after the next step of its reassignment, or with another successor."""
    if is_caught_up(state, part, policy) and part.leader in part.target:
        return _without_dropped(part)
    return msgspec.structs.replace(part, successor=_successor(state, part, policy, is_due=is_due))


def is_caught_up(state: ClusterState, part: PartEntry, policy: PartPolicy) -> bool:
    """Whether the targets of a reassignment hold everything, so that the other replicas are not needed."""
    needed = part.target if part.target != part.former else ()
    alive = [node for node in part.target if node in candidates(state, part, policy)]
    return bool(part.target) and {*needed} <= {*alive} and len(alive) >= max(1, policy.min_in_sync)


def _without_dropped(part: PartEntry) -> PartEntry:
    """The partition after its reassignment: the other replicas are dropped, in a new epoch of the same leader."""
    isr = tuple(node for node in part.isr if node in part.target)
    unfit = tuple(node for node in part.unfit if node in part.target)
    about = {"replicas": part.target, "isr": isr, "unfit": unfit, "epoch": part.epoch + 1}
    return msgspec.structs.replace(part, target=(), former=(), successor=0, **about)


def _successor(state: ClusterState, part: PartEntry, policy: PartPolicy, *, is_due: bool) -> int:
    """The member that is to lead instead of the present leader; 0: none."""
    fit = [node for node in candidates(state, part, policy) if node not in part.unfit and not drains(state, node)]
    others = [node for node in fit if node != part.leader]
    if part.leader not in state.sessions:
        return 0  # It is elected instead.
    if is_caught_up(state, part, policy) and part.leader not in part.target:
        others = [node for node in part.target if node in others]  # The one that is to lead comes first.
    elif part.target:
        others = [node for node in others if node in part.target] or others if drains(state, part.leader) else []
    elif drains(state, part.leader):
        pass
    elif part.successor in others or not is_due:
        return part.successor if part.successor in others else 0
    else:
        others = [node for node in others if node == part.replicas[0]]
    if part.successor in others:
        return part.successor
    return others[0] if others else 0


def drains(state: ClusterState, node: int) -> bool:
    """Whether a node is to lead nothing."""
    return node in state.nodes and state.nodes[node].draining


def named(state: ClusterState, part: PartEntry, node: int, policy: PartPolicy) -> PartEntry:
    """The partition led by the successor that it names, if a node leads it and the successor may lead; or unchanged."""
    may_lead = part.successor in candidates(state, part, policy) and part.successor not in part.unfit
    return led_by(state, part, part.successor) if part.leader == node != part.successor and may_lead else part


def reassigned(part: PartEntry, target: Sequence[int]) -> PartEntry:
    """The partition with a reassignment to these replicas, the preferred leader first."""
    added = [node for node in target if node not in part.replicas]
    about = {"replicas": (*part.replicas, *added), "target": tuple(target), "former": part.replicas}
    return msgspec.structs.replace(part, successor=0, **about)


def cancelled(part: PartEntry) -> PartEntry:
    """The partition whose reassignment goes back to the former replicas; unchanged if there is none."""
    return msgspec.structs.replace(part, target=part.former, successor=0) if part.target else part


def is_gone(state: ClusterState, node: int) -> bool:
    """Whether a node that was removed has no session and no replicas any more."""
    holds = any(node in (*part.replicas, *part.target) for part in state.parts.values())
    return state.nodes[node].leaving and node not in state.sessions and not holds


def _forgotten(state: ClusterState, node: int) -> Write:
    key, ended = f"{NODES}{node}", f"{ENDED}{node}"
    conditions = {key: state.revision_of(key), ended: state.revision_of(ended), f"{SESSIONS}{node}": ABSENT}
    return Write({key: REMOVED, **({ended: REMOVED} if node in state.ended else {})}, conditions)
