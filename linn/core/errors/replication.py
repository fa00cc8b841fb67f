"""Errors of replicated partitions; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import StorageError


class CopyMisplaced(StorageError):
    """A batch of another replica does not continue the log: nothing was stored."""

    code = "log.copy_misplaced"
