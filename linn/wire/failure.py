"""Errors on the wire: the message that tells a peer of one, and the error that such a message stands for."""

from __future__ import annotations

from linn.core.errors.tree import LinnError, LogTruncated, error_from_code
from linn.wire.messages import Failed


def failed_by(error: LinnError) -> Failed:
    """The message that tells of an error."""
    if isinstance(error, LogTruncated):
        return Failed(error.code, error.text, error.retriable, error.partition, error.offset)
    return Failed(error.code, error.text, error.retriable)


def error_of(failed: Failed) -> LinnError:
    """The error that a peer tells of; an unknown code becomes a plain `LinnError` that has it in the text."""
    error = error_from_code(failed.code, failed.text)
    if isinstance(error, LogTruncated):
        error.partition, error.offset = failed.partition, failed.offset
    return error
