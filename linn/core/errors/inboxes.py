"""Errors of replies to requests; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import LinnError, RequestTimeout


class InboxUnknown(LinnError):
    """The address of a reply is that of no connection: the requester is gone, or no broker gave the address out."""

    code = "inbox.unknown"


class InboxFull(LinnError):
    """The requester does not read, and as much output waits for it as may: the reply was dropped."""

    code = "inbox.full"
    retriable = True


class NoReply(RequestTimeout):
    """No reply to a request came in time. The request may be carried out."""

    code = "request.no_reply"
    retriable = False
