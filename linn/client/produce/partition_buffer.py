"""PartitionBuffer: the batches of one producer for one partition, in their order."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from linn.client.produce.confirmation import Confirmation
from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.wire.messages import Message

if TYPE_CHECKING:
    from linn.client.produce.open_batch import OpenBatch
    from linn.client.produce.sender import Sender


class InFlightBatch:
    """A finished batch on its way; the caller of its publish request."""

    __slots__ = (
        "asked_tick",
        "attempts",
        "attended",
        "buffer",
        "confirmation",
        "correlation",
        "mandatory",
        "records",
        "refusal",
        "sender",
        "sequence",
    )

    def __init__(
        self, sender: Sender, buffer: PartitionBuffer, records: RecordBatch, confirmation: Confirmation, mandatory: bool
    ) -> None:
        self.sender = sender
        self.buffer = buffer
        self.records = records
        self.confirmation = confirmation
        self.mandatory = mandatory
        self.sequence = buffer.next_sequence
        buffer.next_sequence += 1
        self.attempts = 0
        self.correlation = 0
        self.asked_tick = 0
        """From when its time counts, in ticks of its sender."""
        self.refusal: LinnError | None = None
        """Why it was not confirmed the last time it was sent."""
        self.attended = False
        """Whether its publisher reads the answer itself; see `Connection.attend`."""

    def answered(self, message: Message, batches: list[RecordBatch]) -> None:
        """The broker confirmed it."""
        self.sender.confirmed(self, message)

    def failed(self, error: LinnError) -> None:
        """The broker refused it, or the connection ended first."""
        self.sender.refused(self, error)

    def __lt__(self, other: InFlightBatch) -> bool:
        return self.sequence < other.sequence


class PartitionBuffer:
    """One partition's batches: one that is open, those that are ready to be sent, those in flight."""

    __slots__ = ("held", "in_flight", "next_sequence", "open", "partition", "queued", "ready")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        """-1: the broker chooses, or an exchange does."""
        self.open: OpenBatch | None = None
        self.ready: list[InFlightBatch] = []
        """Ascending; short, because publishers wait when it grows."""
        self.in_flight: dict[int, InFlightBatch] = {}
        """By sequence."""
        self.next_sequence = 0
        self.queued = False
        """Whether it is among the buffers that wait for their turn."""
        self.held = False
        """Nothing is sent: a batch was refused, and goes again when those behind it have been answered."""

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self.in_flight and not self.ready

    def put_back(self, batch: InFlightBatch) -> None:
        """Have a batch sent again, before all that came later."""
        insort(self.ready, batch)
