"""The verbs that operate a cluster, at any of its brokers.

Laws: a request is checked against the metadata store as it is now, and written if nothing has changed there since; if
something has, it is checked again. A write without an answer is looked for in the store: an operation that is done is
not repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, TypeVar

from linn import verbs
from linn.core.cluster.entries import ClusterState
from linn.core.cluster.node import ClusterNode
from linn.core.cluster.operations import LevelChange, NodeChange, Operations, TopicChange
from linn.core.cluster.plan import KEYS_MAX, packed
from linn.core.env.env import Clock
from linn.core.errors.cluster import ClusterAbsent
from linn.core.errors.metadata import MetadataUnknown, RevisionConflict
from linn.core.errors.tree import ConfigError
from linn.descriptions import TopicMoveDescription
from linn.verbs import Verb

TRIES = 10
"""Times that an operation is checked again because something has changed meanwhile."""
AGAIN_S = 0.1
"""Pause before that."""
BALANCED_MAX = 1000
"""Limit of the topics that one balance moves: its answer names them, and all of them are copied at a time."""

C = TypeVar("C", NodeChange, TopicChange, LevelChange)


class ClusterOperations:
    """The operations of the cluster of this broker, if it has one."""

    def __init__(self, node: ClusterNode | None, clock: Clock) -> None:
        self._node = node
        self._clock = clock

    @property
    def performs(self) -> dict[Verb[Any, Any], Callable[[Any], Awaitable[Any]]]:
        """The functions that perform the verbs."""
        return {
            verbs.DRAIN_NODE: self.drain,
            verbs.UNDRAIN_NODE: self.undrain,
            verbs.REMOVE_NODE: self.remove,
            verbs.REASSIGN_TOPIC: self.reassign,
            verbs.CANCEL_MOVE: self.cancel,
            verbs.BALANCE_CLUSTER: self.balance,
            verbs.LIST_MOVES: self.moves,
            verbs.ELECT_LEADER: self.elect,
            verbs.UPGRADE_CLUSTER: self.upgrade,
        }

    async def drain(self, asked: verbs.NodeChange) -> verbs.NodeChanged:
        """Drain a node."""
        return await self._change_node(asked, lambda it: it.drain(asked.node))

    async def undrain(self, asked: verbs.NodeChange) -> verbs.NodeChanged:
        """Let a node lead again."""
        return await self._change_node(asked, lambda it: it.undrain(asked.node))

    async def remove(self, asked: verbs.NodeChange) -> verbs.NodeChanged:
        """Remove a node."""
        return await self._change_node(asked, lambda it: it.remove(asked.node))

    async def reassign(self, asked: verbs.TopicReassignment) -> verbs.TopicMoved:
        """Move a topic to other nodes."""
        return await self._move(asked.topic, asked, lambda it: it.reassign(asked.topic, asked.nodes))

    async def cancel(self, asked: verbs.TopicMoveChange) -> verbs.TopicMoved:
        """Cancel the reassignment of a topic."""
        return await self._move(asked.topic, asked, lambda it: it.cancel(asked.topic))

    async def balance(self, asked: verbs.Balance) -> verbs.Balanced:
        """Spread replicas and preferred leaders evenly.

        Raises MetadataError, RevisionConflict: some of the moves have begun, and the next balance goes on.
        """
        node, begun = self._clustered(), dict[str, TopicChange]()
        for left in reversed(range(TRIES)):
            state = await self._load(node)
            operations = Operations(state, node.catalog.topics, node.policy_of)
            changes, moving = operations.balance(), {move["topic"]: move["target"] for move in operations.moves()}
            begun = {
                name: it for name, it in begun.items() if moving.get(name, [*it.after.target]) == [*it.after.target]
            }
            now = dict(islice(changes.items(), BALANCED_MAX - len(begun)))
            if asked.validate_only or not now:
                return _balanced({**begun, **now}, len(changes) - len(now), len(moving.keys() - begun.keys()))
            begun |= now
            try:
                for write in packed(
                    (it.write for it in now.values() if it.write), min(KEYS_MAX, node.store.changes_max)
                ):
                    await node.view.wait_revision(await node.store.put_all(*write))
            except (MetadataUnknown, RevisionConflict):
                if not left:
                    raise
                await self._clock.sleep(AGAIN_S)
            else:
                return _balanced(begun, len(changes) - len(now), len(moving.keys() - begun.keys()))
        raise AssertionError("the last try returns or raises")

    async def elect(self, asked: verbs.Election) -> verbs.TopicMoved:
        """Let another replica lead a topic. Raises ConfigError: the arguments do not fit."""
        if not asked.unclean:
            if asked.give_up:
                raise ConfigError("nodes are given up only where the election is unclean: say unclean")
            return await self._move(asked.topic, asked, lambda it: it.elect(asked.topic, asked.leader))
        leader = asked.leader
        if leader is None:
            raise ConfigError("an unclean election names the next leader")
        return await self._move(asked.topic, asked, lambda it: it.elect_unclean(asked.topic, leader, asked.give_up))

    async def upgrade(self, asked: verbs.Upgrade) -> verbs.Upgraded:
        """Raise the cluster's level to the greatest that this broker knows."""
        level = self._clustered().level_known
        is_changed, change = await self._put(lambda it: it.upgrade(level), validate_only=asked.validate_only)
        return {"changed": is_changed, "before": change.before, "level": change.after}

    async def moves(self, _: verbs.NoArguments) -> list[TopicMoveDescription]:
        """Describe the topics that are moving."""
        node = self._clustered()
        return Operations(node.view.state, node.catalog.topics, node.policy_of).moves()

    async def _change_node(self, asked: verbs.NodeChange, ask: Callable[[Operations], NodeChange]) -> verbs.NodeChanged:
        is_changed, change = await self._put(ask, validate_only=asked.validate_only)
        return {"node": asked.node, "changed": is_changed, "leads": change.leads, "holds": change.holds}

    async def _move(
        self, topic: str, asked: verbs.Change, ask: Callable[[Operations], TopicChange]
    ) -> verbs.TopicMoved:
        is_changed, change = await self._put(ask, validate_only=asked.validate_only)
        target = change.after.target or change.after.replicas
        return {"topic": topic, "changed": is_changed, "replicas": list(change.before.replicas), "target": list(target)}

    async def _put(self, ask: Callable[[Operations], C], *, validate_only: bool) -> tuple[bool, C]:
        """Carry an operation out; returns whether it has changed anything, and the change.

        Raises LinnErrors of the operation, MetadataError, RevisionConflict: others changed it again and again.
        """
        node, was_written = self._clustered(), False
        for left in reversed(range(TRIES)):
            state = await self._load(node)
            change = ask(Operations(state, node.catalog.topics, node.policy_of))
            if change.write is None or validate_only:
                return change.write is not None or was_written, change
            try:
                await node.view.wait_revision(await node.store.put_all(*change.write))
            except (MetadataUnknown, RevisionConflict) as error:
                was_written = isinstance(error, MetadataUnknown)
                if not left:
                    raise
                await self._clock.sleep(AGAIN_S)
            else:
                return True, change
        raise AssertionError("the last try returns or raises")

    async def _load(self, node: ClusterNode) -> ClusterState:
        snapshot = await node.store.load()
        return ClusterState.of(snapshot.revision, snapshot.entries)

    def _clustered(self) -> ClusterNode:
        if self._node is None:
            raise ClusterAbsent("this broker is alone: its configuration has no [cluster]")
        return self._node


def _balanced(changes: dict[str, TopicChange], left: int, moving: int) -> verbs.Balanced:
    moves: list[verbs.TopicToMove] = [
        {"topic": name, "replicas": [*change.before.replicas], "target": [*change.after.target]}
        for name, change in sorted(changes.items())
    ]
    return {"changed": bool(moves), "moves": moves, "left": left, "moving": moving}
