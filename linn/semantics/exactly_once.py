"""Exactly-once delivery: two phases, in which a consumer's effect and the end of the delivery can't come apart.

PREPARE: records are delivered under a lease, to a consumer with a name. READY: it has found that it can apply them.
COMMIT: the broker has decided, durably, that they are this name's, and answers. The consumer stores its effect together
with a mark of the records, in one local transaction; DONE settles them. What was decided and is not done is delivered
to the name again, after a restart of either side, and the mark tells whether it was applied. See ADR 0024.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final

from linn.core.errors.tree import SubscriptionWrongKind
from linn.core.plugins.hookspecs import hookimpl
from linn.core.queue.effects import Effects
from linn.core.queue.event_run import Holder
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.offset_ranges import Range
from linn.core.queue.semantics import CONFIRM_WHEN, Acks, ConfirmWhen, SemanticsKind
from linn.core.queue.subscription import SharedSubscription


class TwoPhaseSubscription(SharedSubscription):
    """A shared subscription whose records are settled by `done`, after they were decided to their consumer."""

    is_two_phase: ClassVar[bool] = True

    def ready(
        self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, holder: Holder, now: float
    ) -> Effects:
        """Decide the records to their consumer. Raises as `decide` does."""
        return self.decide(consumer, delivery_id, ranges, holder, now)

    def ack(self, consumer: int, delivery_id: int, ranges: Iterable[Range] | None, now: float) -> Effects:
        """Raise SubscriptionWrongKind: a record that was never decided to its consumer is not settled by it."""
        raise SubscriptionWrongKind("the topic delivers exactly once: records are settled with ready and done, not ack")


class ExactlyOnce:
    """The semantics of one topic."""

    settles_on_delivery: Final = False
    survives_restart: Final = True

    def __init__(self, settings: LeaseSettings) -> None:
        self.settings = settings

    def confirm_when(self, acks: Acks) -> ConfirmWhen:
        """The condition that the producer asked for."""
        return CONFIRM_WHEN[acks]

    def shared_subscription(self, start: int) -> TwoPhaseSubscription:
        """Make a subscription with this topic's lease settings."""
        return TwoPhaseSubscription(self.settings, start)


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    """Register `delivery = "exactly-once"`."""
    return SemanticsKind("exactly-once", LeaseSettings, ExactlyOnce)
