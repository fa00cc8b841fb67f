"""The delivery semantics port: the meaning of a confirmation, leases and their ends, and the effect of a restart.

A semantics is bound once per topic, when the topic is made or loaded. It only decides: the broker's own state machine,
`SharedSubscription`, carries its decisions out, with events, snapshots and dead letters.

Laws: a member does no I/O and returns at once, and the same question has the same answer. The broker asks before it
changes the records in question: an error of a semantics fails the request and loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

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
    """The semantics of one topic. It is asked as batches are delivered and returned; attributes do as well."""

    @property
    def settles_on_delivery(self) -> bool:
        """Whether a record is settled when it is handed to the connection.

        Then the events of an `acquire` must be durable before its records are sent, or a crash in between would deliver
        them a second time. Otherwise they may be written later: records whose events are lost are redelivered.
        """

    @property
    def survives_restart(self) -> bool:
        """Whether the subscription's events are logged and replayed. False: it begins anew at the log's start."""

    @property
    def is_two_phase(self) -> bool:
        """Whether a consumer says that it is ready for records, and settles them once they were decided to it.

        Not together with `settles_on_delivery`.
        """

    @property
    def lease_ms(self) -> int:
        """The duration of a lease that no consumer extends, from 1 to LEASE_MS_MAX; CONNECTION_LEASE_MS: as long as its
        consumer is connected."""

    @property
    def lease_records_max(self) -> int:
        """The limit of the records of one lease, at least 1. The broker's own is LEASE_RECORDS_MAX."""

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """The condition that confirms a batch published with these acks."""

    def redelivery_ms(self, attempts: int, asked_ms: int | None) -> int | None:
        """The delay before a record is delivered again that is returned after so many attempts, at least one.

        It is returned by its consumer, or because its lease ended. None: it gets no more attempts, and is dead. The
        longest delay is LEASE_MS_MAX. `asked_ms`: the delay that its consumer asks for, within that; None: for none.
        """


@dataclass(frozen=True, slots=True)
class SemanticsKind:
    """Delivery semantics, as a plugin registers them: the name in TOML, the settings' struct, and the factory."""

    name: str
    """The value of `delivery =` in a `[topics.*]` table."""
    settings: type[Any] | None
    """A frozen msgspec.Struct with a default and a help text for each field; None for semantics without settings."""
    make: Callable[[Any], DeliverySemantics]
    """(settings, or None) -> the semantics of one topic. Does no I/O."""
