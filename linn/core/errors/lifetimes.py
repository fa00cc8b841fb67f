"""Errors about topics that end with a connection or with the broker; a part of the tree."""

from __future__ import annotations

from linn.core.errors.tree import TopicError


class TopicExclusive(TopicError):
    """The topic belongs to another connection, which alone may consume it."""

    code = "topic.exclusive"


class LifetimeUnsupported(TopicError):
    """A topic that ends with the broker or with a connection can't be on a disk."""

    code = "topic.lifetime_unsupported"
