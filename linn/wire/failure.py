"""Errors on the wire: conversion between errors and messages."""

from __future__ import annotations

from linn.core.errors.codes import error_from_code
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import LinnError, LogTruncated
from linn.wire.messages import Failed


def failed_by(error: LinnError) -> Failed:
    """Make the message for an error."""
    if isinstance(error, LogTruncated):
        return Failed(error.code, error.text, error.retriable, error.partition, error.offset)
    if isinstance(error, NotLeader):
        return Failed(error.code, error.text, error.retriable, leader=error.leader, leader_epoch=error.epoch)
    return Failed(error.code, error.text, error.retriable)


def error_of(failed: Failed) -> LinnError:
    """Make the error for a peer's message; an unknown code becomes a plain `LinnError` with the code in its text."""
    error = error_from_code(failed.code, failed.text)
    if isinstance(error, LogTruncated):
        error.partition, error.offset = failed.partition, failed.offset
    if isinstance(error, NotLeader):
        error.leader, error.epoch = failed.leader, failed.leader_epoch
    return error
