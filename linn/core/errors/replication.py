"""Errors of replicated partitions; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import LinnError, StorageError


class CopyMisplaced(StorageError):
    """A batch of another replica does not continue the log: nothing was stored."""

    code = "log.copy_misplaced"


class NotLeader(LinnError):
    """Another broker of the cluster leads the partition, or none does at the moment."""

    code = "partition.not_leader"
    retriable = True
