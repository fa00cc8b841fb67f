"""At-most-once delivery: a record is settled when it is handed to the connection. No lease, no redelivery.

A producer need not wait for a confirmation, and by default gets one when the batch is accepted. Records stay
delivered after a restart, because the broker makes the events of a delivery durable before it sends the records.
"""

from __future__ import annotations

from typing import ClassVar

from linn.api import CONFIRM_WHEN, LEASE_MS_MAX, LEASE_RECORDS_MAX, Acks, ConfirmWhen, SemanticsKind, hookimpl


class AtMostOnce:
    """The semantics of one topic."""

    settles_on_delivery: ClassVar[bool] = True
    survives_restart: ClassVar[bool] = True
    is_two_phase: ClassVar[bool] = False
    lease_ms: ClassVar[int] = LEASE_MS_MAX
    """Without effect: no lease outlives its delivery."""
    lease_records_max: ClassVar[int] = LEASE_RECORDS_MAX

    def __init__(self, settings: None = None) -> None:
        """Make the semantics; there are no settings."""

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """The condition that the producer asked for."""
        return CONFIRM_WHEN[acks]

    def redelivery_ms(self, attempts: int, asked_ms: int | None) -> int | None:
        """No delay: only records that were settled and could not be delivered are returned."""
        return 0


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    """Register `delivery = "at-most-once"`."""
    return SemanticsKind("at-most-once", None, AtMostOnce)
