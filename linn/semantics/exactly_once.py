"""Exactly-once delivery: two phases, in which a consumer's effect and the end of the delivery can't come apart.

PREPARE: records are delivered under a lease, to a consumer with a name. READY: it has found that it can apply them.
COMMIT: the broker has decided, durably, that they are this name's, and answers. The consumer stores its effect together
with a mark of the records, in one local transaction; DONE settles them. Records that were decided and are not done are
delivered to the name again, after a restart of either side, and the mark tells whether it was applied. See ADR 0024.
"""

from __future__ import annotations

from typing import ClassVar

from linn.api import LeaseSettings, SemanticsKind, hookimpl
from linn.semantics.at_least_once import AtLeastOnce


class ExactlyOnce(AtLeastOnce):
    """The semantics of one topic: leases as at least once, and records that are settled by done, after a decision."""

    is_two_phase: ClassVar[bool] = True


@hookimpl
def linn_register_semantics() -> SemanticsKind:
    """Register `delivery = "exactly-once"`."""
    return SemanticsKind("exactly-once", LeaseSettings, ExactlyOnce)
