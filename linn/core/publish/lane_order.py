"""The order of an idempotent producer's batches where the broker chooses their partitions."""

from __future__ import annotations

from linn.core.batch.batch import SCATTERED
from linn.core.errors.tree import LinnError, ProducerOutOfOrder
from linn.core.publish.request import PublishRequest

PRODUCERS_MAX = 10_000
"""Limit of the producers with a batch to come; beyond it the order of the one that waits longest is given up."""


class LaneOrder:
    """The order of an idempotent producer's batches, over any connection, where the broker chooses their partitions.

    A partition sees a part of such a producer's sequence, with gaps, and can't tell that a batch is missing. So while a
    refused batch may still be sent again, later ones of its producer are refused as well.
    """

    __slots__ = ("missing",)

    def __init__(self) -> None:
        self.missing: dict[int, tuple[int, int]] = {}
        """(epoch, first sequence) of the earliest refused batch, by producer."""

    def check(self, request: PublishRequest) -> None:
        """Check that no earlier batch of the producer is missing. Raises ProducerOutOfOrder."""
        if self.missing:
            batch = request.batches[0]
            missing = self.missing.get(batch.producer_id)
            if missing is not None and batch.producer_epoch == missing[0] and batch.first_sequence > missing[1]:
                raise ProducerOutOfOrder(
                    f"sequence {batch.first_sequence} of producer {batch.producer_id} comes before the refused"
                    f" {missing[1]} was sent again"
                )

    def refused(self, request: PublishRequest, error: LinnError) -> None:
        """Note that a batch was refused: it is missing if it can be sent again."""
        batch = request.batches[0] if request.batches else None
        if (
            batch is None
            or batch.producer_id <= 0  # A transfer makes one step at a time.
            or not batch.attributes & SCATTERED
            or isinstance(error, ProducerOutOfOrder)
        ):
            return
        if not error.retriable:
            self.settled(request)
            return
        self.missing[batch.producer_id] = (batch.producer_epoch, batch.first_sequence)
        if len(self.missing) > PRODUCERS_MAX:
            del self.missing[next(iter(self.missing))]

    def settled(self, request: PublishRequest) -> None:
        """Note that a batch was stored, or will not come again."""
        if self.missing:
            batch = request.batches[0]
            missing = self.missing.get(batch.producer_id)
            if missing is not None and (batch.producer_epoch, batch.first_sequence) >= missing:
                del self.missing[batch.producer_id]
