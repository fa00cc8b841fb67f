"""At-least-once delivery: a record is delivered until a consumer acks or rejects it, or its deliveries are used up.

A producer's confirmation means what its `acks` ask for. Delivery takes a lease; a record that is not settled within it
is returned to its place. Attempts and settlements survive a restart; leases do not.
"""

from __future__ import annotations

from typing import Final

from linn.core.plugins.hookspecs import hookimpl
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.semantics import CONFIRM_WHEN, Acks, ConfirmWhen, SemanticsKind
from linn.core.queue.subscription import SharedSubscription


class AtLeastOnce:
    """The semantics of one topic."""

    settles_on_delivery: Final = False
    survives_restart: Final = True

    def __init__(self, settings: LeaseSettings) -> None:
        self.settings = settings

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """The condition that the producer asked for."""
        return CONFIRM_WHEN[acks]

    def shared_subscription(self, start: int) -> SharedSubscription:
        """Make a subscription with this topic's lease settings."""
        return SharedSubscription(self.settings, start)


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    """Register `delivery = "at-least-once"`."""
    return SemanticsKind("at-least-once", LeaseSettings, AtLeastOnce)
