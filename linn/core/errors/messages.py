"""Errors about messages that a topic knows by their ids; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import TopicError


class MessageInDoubt(TopicError):
    """A message with the id of this one is in a transaction that has not ended: it may be aborted."""

    code = "message.in_doubt"
    retriable = True


class StatusUnsupported(TopicError):
    """The topic can't be asked about messages by their ids: it has no `status`."""

    code = "message.status_unsupported"
