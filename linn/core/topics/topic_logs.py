"""The port through which a topic of a cluster gets its logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from linn.core.log.partition import Partition
from linn.core.log.storage import PartitionId
from linn.descriptions import ReplicasDescription


class TopicLogs(Protocol):
    """The logs of one topic, which stay open while it is closed."""

    def check_enough(self) -> None:
        """Check that enough replicas follow for new records to be committed. Raises NotEnoughReplicas."""

    def describe(self) -> ReplicasDescription | None:
        """Describe the replicas; None: nothing is known of them yet."""

    async def open(self, id: PartitionId) -> Partition:
        """The open log; it is made if there is none. Raises NotLeader, LogCorrupt, StorageError."""

    async def begin_epoch(self) -> None:
        """Begin another epoch, before logs are made for an open topic.

        A replica may still have a log of that name, which was deleted while it was away. None of its batches is of the
        new epoch, and so the leader takes none for a batch of the new log.

        Raises NotLeader, NotEnoughReplicas, MetadataError.
        """

    async def close(self) -> None:
        """Close all of them: the broker stops. Raises StorageError."""

    async def forget(self, ids: Sequence[PartitionId]) -> None:
        """Close these logs, where they are open, before they are deleted. Raises StorageError."""
