"""Errors of replicated partitions; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import StorageError


class CopyMisplaced(StorageError):
    """A batch of another replica does not continue the log: nothing was stored."""

    code = "log.copy_misplaced"


class NotEnoughReplicas(StorageError):
    """Fewer replicas follow than have to hold a record before it is confirmed: nothing was stored.

    For publishes with `acks = all`. It is over when enough brokers of the topic are back.
    """

    code = "partition.not_enough_replicas"
    retriable = True


class NotLeader(StorageError):
    """This broker does not lead the partition, or leads it no more: see `leader` and `epoch`.

    A publish may have been stored and may yet be committed; sent again with the same numbers, it is stored once.
    """

    code = "partition.not_leader"
    retriable = True

    def __init__(self, text: str, *, leader: int = 0, epoch: int = 0) -> None:
        super().__init__(text)
        self.leader = leader
        """The node that leads, as far as this broker knows; 0: unknown."""
        self.epoch = epoch
        """The epoch in which it leads; 0: unknown."""
