"""The status of a message, asked by its id, and messages that come into their topic later."""

from __future__ import annotations

from typing import Literal, TypedDict

IDS_MAX = 1_000
"""Limit of the ids in one request: each takes some microseconds for each partition of the topic."""

MessageState = Literal[
    "unknown",
    "in_doubt",
    "aborted",
    "scheduled",
    "cancelled",
    "stored",
    "delivered",
    "decided",
    "settled",
    "dead",
    "expired",
    "dropped",
]
ENDED: frozenset[MessageState] = frozenset({"settled", "dead", "expired", "dropped", "cancelled", "aborted"})
"""States that do not change any more, unless a message of the same id is published again."""


class MessageStatus(TypedDict):
    """The status of one message, and its place."""

    id: str
    state: MessageState
    """unknown: the topic knows no such id. in_doubt: it is not confirmed yet, or in an open transaction; aborted: in an
    aborted one. scheduled: it waits for its time; cancelled: before that had come. stored: no consumer has had it;
    delivered: one has it, or had it; decided: a consumer that settles in two phases has accepted it. settled: by a
    consumer. dead: it became a dead letter, or was dropped in place of that. expired: its time to live was over.
    dropped: to make room, by retention, or by an operator.
    """
    reason: str
    """The reason why it is dead: "rejected", "max_deliveries" or "overflow"; "leaving" if it is scheduled and due, and
    can't be cancelled any more; "" in other states."""
    partition: int | None
    """None if the message is unknown."""
    offset: int | None
    """None if it is unknown or cancelled. Of a scheduled message its number: "PARTITION/OFFSET" is its id for
    `cancel_scheduled`."""


SCHEDULED_SHOWN_MAX = 1_000
"""Limit of the scheduled messages in one answer, and of the ids in one request."""

ScheduledOutcome = Literal["cancelled", "moved", "leaving", "gone"]
"""The outcome of a change. leaving: the message is due, and can't be changed any more; gone: it has come, was cancelled
before, or there never was one."""


class ScheduledMessage(TypedDict):
    """A message that comes into its topic later."""

    id: str
    """Its partition, and its number there: "0/5"."""
    due_ms: int
    """Time at which it comes, in ms since 1970."""


class ScheduledMessages(TypedDict):
    """The messages of a topic that come next."""

    count: int
    """Number of all that wait."""
    first: list[ScheduledMessage]
    """The ones that come first, in this order."""


class ScheduledChanged(TypedDict):
    """The outcome of a change for one message."""

    id: str
    outcome: ScheduledOutcome
