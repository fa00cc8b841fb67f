"""The delivery semantics port: the meaning of a confirmation, the time of settlement, and the effect of a restart.

A semantics is bound once per topic, when the topic is made or loaded. The subscriptions that it makes, which run per
batch, are state machines without I/O. To provide another state machine, derive it from `SharedSubscription`: events,
snapshots, dead letters and the log's bounds come with it, and the broker knows one interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

from linn.core.queue.subscription import SharedSubscription

Acks = Literal["none", "leader", "all"]
"""The acknowledgement that a producer asks for with a publish."""


class ConfirmWhen(Enum):
    """The condition for telling a producer that its batch is confirmed."""

    ACCEPTED = "accepted"
    """The batch is in the partition's log, perhaps only in memory."""
    DURABLE = "durable"
    """The batch is durable on the leader, as the topic's storage defines durable."""
    REPLICATED = "replicated"
    """The batch is durable on every in-sync replica."""


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
        them a second time. Otherwise they may be written later: records whose events are lost are redelivered.
        """

    @property
    def survives_restart(self) -> bool:
        """Whether the subscription's events are logged and replayed. False: it begins anew at the log's start."""

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """The condition that confirms a batch published with these acks."""

    def shared_subscription(self, start: int) -> SharedSubscription:
        """A fresh subscription that begins at offset `start`. Apply the event log, then call its `recovered`."""


@dataclass(frozen=True, slots=True)
class SemanticsKind:
    """Delivery semantics, as a plugin registers them: the name in TOML, the settings' struct, and the factory."""

    name: str
    """The value of `delivery =` in a `[topics.*]` table."""
    settings: type[Any] | None
    """A frozen msgspec.Struct with a default and a help text for each field; None for semantics without settings."""
    make: Callable[[Any], DeliverySemantics]
    """(settings, or None) -> the semantics of one topic. Does no I/O."""
