"""At-least-once delivery: a record is delivered until a consumer acks or rejects it, or its deliveries are used up.

A producer's confirmation means what its `acks` ask for. Delivery takes a lease; a record that is not settled within it
is returned to its place. Attempts and settlements survive a restart; leases do not.
"""

from __future__ import annotations

from typing import ClassVar

from linn.api import CONFIRM_WHEN, LEASE_RECORDS_MAX, Acks, ConfirmWhen, LeaseSettings, SemanticsKind, hookimpl


class AtLeastOnce:
    """The semantics of one topic."""

    settles_on_delivery: ClassVar[bool] = False
    survives_restart: ClassVar[bool] = True
    is_two_phase: ClassVar[bool] = False

    def __init__(self, settings: LeaseSettings) -> None:
        self.settings = settings
        self.lease_ms = settings.lease_ms
        self.lease_records_max = LEASE_RECORDS_MAX

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """The condition that the producer asked for."""
        return CONFIRM_WHEN[acks]

    def redelivery_ms(self, attempts: int, asked_ms: int | None) -> int | None:
        """The delay of the topic's settings, unless its consumer asks for another."""
        return self.settings.redelivery_ms(attempts, asked_ms)


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    """Register `delivery = "at-least-once"`."""
    return SemanticsKind("at-least-once", LeaseSettings, AtLeastOnce)
