"""The port through which the replica of a topic reaches the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

from linn.core.cluster.following import FollowLane
from linn.core.env.env import Clock, Rng
from linn.core.log.replication.events import ChangeIsr
from linn.core.replicas.replication_counts import ReplicationCounts


class ReplicaHost(Protocol):
    """This broker as one of a cluster, as its replicas need it."""

    clock: Clock
    rng: Rng
    counts: ReplicationCounts

    @property
    def number(self) -> int:
        """The number of this node."""

    @property
    def session(self) -> str:
        """The present session of this node; "": it has none."""

    @property
    def thins(self) -> bool:
        """Whether all brokers of the cluster know how to follow a thinned log."""

    def spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a background task."""

    def settle(self, topic: UUID) -> None:
        """Open or close a topic, soon, because its role here has changed."""

    def look_again(self, topic: UUID) -> None:
        """Tell the replica of a topic what the store has, soon: it could not look."""

    def read(self, topic: UUID) -> None:
        """Read a topic's entry linearizably, soon, and tell its replica."""

    async def change_isr(self, key: str, change: ChangeIsr) -> int:
        """See `PartStore.change_isr`."""

    async def begin_epoch(self, topic: UUID) -> None:
        """Lead in the next epoch; returns when its replica knows of it. Raises NotLeader, MetadataError."""

    def retreat(self, topic: UUID, *, is_damaged: bool) -> None:
        """Let another broker lead, soon, because this one can't go on: its disk is full, or its log is damaged."""

    async def recovered(self, topic: UUID) -> None:
        """Note that this broker is fit again. Raises MetadataError."""

    async def pace(self, bytes: int) -> None:
        """Wait as long as this broker has to, after so many bytes of topics with which it is not in sync."""

    async def open_lane(self, node: int) -> FollowLane:
        """Open a lane to the leader. Raises PeerError."""
