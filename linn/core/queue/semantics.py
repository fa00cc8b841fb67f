"""The delivery semantics port: what a confirmation means, what is settled when, what a restart does.

A semantics is bound once per topic, when the topic is made or loaded. What runs per batch are the subscriptions it
makes, which are state machines without I/O. One that wants another state machine derives it from
`SharedSubscription`: events, snapshots, dead letters and the log's bounds come with it, and the broker knows one
interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

from linn.core.queue.subscription import SharedSubscription

Acks = Literal["none", "leader", "all"]
"""What a producer asks for with a publish."""


class ConfirmWhen(Enum):
    """What must be true of a batch before its producer is told that it is confirmed."""

    ACCEPTED = "accepted"
    """It is in the partition's log, perhaps only in memory."""
    DURABLE = "durable"
    """It is durable on the leader, as the topic's storage defines durable."""
    REPLICATED = "replicated"
    """It is durable on every in-sync replica."""


CONFIRM_WHEN: dict[Acks, ConfirmWhen] = {
    "none": ConfirmWhen.ACCEPTED,
    "leader": ConfirmWhen.DURABLE,
    "all": ConfirmWhen.REPLICATED,
}
"""The usual answer of `DeliverySemantics.confirm_when`."""


class DeliverySemantics(Protocol):
    """The semantics of one topic."""

    @property
    def settles_on_delivery(self) -> bool:
        """Whether a record is settled when it is handed to the connection.

        Then the events of an `acquire` must be durable before its records are sent, or a crash in between would deliver
        them a second time. Otherwise they may be written later: what is lost with them is delivered again.
        """

    @property
    def survives_restart(self) -> bool:
        """Whether the subscription's events are logged and applied again. False: it begins anew at the log's start."""

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """What confirms a batch that was published with these acks."""

    def shared_subscription(self, start: int) -> SharedSubscription:
        """A fresh subscription that begins at offset `start`. Apply the event log, then call its `recovered`."""


@dataclass(frozen=True, slots=True)
class SemanticsKind:
    """What a plugin registers: the name TOML uses, the settings' struct, and the factory."""

    name: str
    """The value of `delivery =` in a `[topics.*]` table."""
    settings: type[Any] | None
    """A frozen msgspec.Struct with a default and a help text for each field; None where nothing can be set."""
    make: Callable[[Any], DeliverySemantics]
    """(settings, or None) -> the semantics of one topic. Does no I/O."""
