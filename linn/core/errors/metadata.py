"""Errors of the metadata store; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import LinnError


class MetadataError(LinnError):
    """The metadata store refused a request, or its answer is none that a metadata store gives."""

    code = "metadata.failed"


class MetadataUnavailable(MetadataError):
    """The metadata store can't be reached, or has no majority; nothing was changed."""

    code = "metadata.unavailable"
    retriable = True


class MetadataUnknown(MetadataError):
    """The connection to the metadata store was lost before the answer: the change may have been made, or not."""

    code = "metadata.unknown"


class RevisionConflict(MetadataError):
    """Another client changed the same topic or exchange meanwhile; read it again and retry."""

    code = "metadata.conflict"
    retriable = True


class LeaseLost(MetadataError):
    """A lease in the metadata store has ended, and its keys were removed."""

    code = "metadata.lease_lost"
