"""At-most-once delivery: a record is settled when it is handed to the connection. No lease, no redelivery.

A producer need not wait for a confirmation, and by default gets one when the batch is accepted. Records stay handed
over after a restart, because the broker makes the events of `acquire` durable before it sends the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from linn.core.errors.tree import DeliveryNotCurrent
from linn.core.plugins.hookspecs import hookimpl
from linn.core.queue.effects import Effects
from linn.core.queue.lease import Lease, LeaseSettings
from linn.core.queue.offset_ranges import Range
from linn.core.queue.semantics import CONFIRM_WHEN, Acks, ConfirmWhen, SemanticsKind
from linn.core.queue.subscription import SharedSubscription


class HandOverSubscription(SharedSubscription):
    """A shared subscription whose leases are settled in the step that grants them."""

    def acquire(self, consumer: int, records_max: int, end: int, now: float) -> Lease | None:
        """Acquire as `SharedSubscription` does; the lease has ended and its records are settled."""
        lease = super().acquire(consumer, records_max, end, now)
        if lease is not None:
            super().ack(consumer, lease.delivery_id, None, now)
        return lease

    def ack(self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float) -> Effects:
        """Do nothing, and refuse nothing: a client that acks everything need not know the topic's semantics."""
        return Effects()

    def nack(
        self,
        consumer: int,
        delivery_id: int,
        ranges: Iterable[Range] | None,
        now: float,
        delay_ms: int | None = None,
        reason: str = "",
    ) -> Effects:
        """Raise DeliveryNotCurrent: a promise to redeliver could not be kept."""
        raise _settled(delivery_id)

    def reject(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float, reason: str = ""
    ) -> Effects:
        """Raise DeliveryNotCurrent."""
        raise _settled(delivery_id)

    def extend(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, lease_ms: int, now: float
    ) -> float:
        """Raise DeliveryNotCurrent."""
        raise _settled(delivery_id)


def _settled(delivery_id: int) -> DeliveryNotCurrent:
    return DeliveryNotCurrent(f"delivery {delivery_id} was settled when it was handed over: the topic is at-most-once")


class AtMostOnce:
    """The semantics of one topic."""

    settles_on_delivery: Final = True
    survives_restart: Final = True

    def __init__(self, settings: None = None) -> None:
        """Make the semantics; there are no settings."""

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """The condition that the producer asked for."""
        return CONFIRM_WHEN[acks]

    def shared_subscription(self, start: int) -> HandOverSubscription:
        """Make a subscription. The lease settings have no effect: no lease outlives its acquire."""
        return HandOverSubscription(LeaseSettings(), start)


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    """Register `delivery = "at-most-once"`."""
    return SemanticsKind("at-most-once", None, AtMostOnce)
