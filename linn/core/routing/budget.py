"""Per-publish limits on CPU and memory, for records that are processed one by one and for the parts of a batch.

A batch that goes to one partition as a whole costs nothing, however many records it has. If records are told apart, by
an exchange, by their keys or by a limit on their size, each is examined, with its headers; and where they part, each
is copied into a batch for every distinct set of topics: N topics with bindings of their own make N batches of one.
Storing one publish in all its topics is one step, and bounded as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LimitExceeded

RECORD_STEPS_MAX = 1 << 22
"""Limit of the steps of examining a record or copying it, about a microsecond each. The largest batch, 2^20 records,
can thus pass an exchange that examines all of them and then be split by its keys; more would delay the other
publishes of its connection for longer than clients wait.
"""
PARTS_BYTES_MAX = 64 << 20
"""Limit of the parts held until all of a publish can be stored: eight of the largest batches."""
STORED_MAX = 10_240
"""Limit of the batches that one publish may become in all topics together: they are stored in one go, 13 us each."""
STORED_BYTES_MAX = 256 << 20
"""Limit of these batches' bytes, for topics that each need a copy: they are copied in the same go, a fifth of a second
at worst.
"""
BODY_BYTES_A_STEP = 1_024
"""Bytes of a body decompressed in one step, at a millisecond a mebibyte."""
PART_STEPS = 32
"""Steps that making and storing a batch costs besides its records."""


class PublishBudget:
    """The budget of one publish, for all its batches together."""

    __slots__ = ("_steps", "_stored", "_stored_bytes", "parts_bytes")

    def __init__(self) -> None:
        self._steps = self._stored = self._stored_bytes = self.parts_bytes = 0
        """`parts_bytes` is the size of all parts made so far."""

    def spend(self, records: int) -> None:
        """Count records to be examined or copied. Raises LimitExceeded: before it is done."""
        self._steps += records
        if self._steps > RECORD_STEPS_MAX:
            self._refuse_steps()

    def foresee(self, records: int) -> None:
        """Check that so many more records could be examined, without counting them. Raises as `spend`."""
        if self._steps + records > RECORD_STEPS_MAX:
            self._refuse_steps()

    def look_into(self, batch: RecordBatch) -> None:
        """Count the opening of a body, and the examination of each record and its headers. Raises as `spend`."""
        if not batch.is_plain:
            self.foresee(batch.count)
            self.spend(batch.body_bytes // BODY_BYTES_A_STEP)
        self.spend(batch.body().weight())

    def store(self, parts: Sequence[RecordBatch]) -> None:
        """Count batches to be stored. Raises LimitExceeded."""
        self.spend(PART_STEPS * len(parts))
        self._stored += len(parts)
        if self._stored > STORED_MAX:
            self._refuse(f"store more than {STORED_MAX} batches of one publish")
        for part in parts:
            self._stored_bytes += part.size
        if self._stored_bytes > STORED_BYTES_MAX:
            self._refuse(f"store more than {STORED_BYTES_MAX} bytes of one publish")

    def hold(self, part: RecordBatch) -> None:
        """Count a part that was made. Raises LimitExceeded."""
        self.spend(PART_STEPS)
        self.parts_bytes += part.size
        if self.parts_bytes > PARTS_BYTES_MAX:
            self._refuse(f"make batches of more than {PARTS_BYTES_MAX} bytes of one publish")

    def _refuse_steps(self) -> None:
        self._refuse(f"look at and copy more than {RECORD_STEPS_MAX} records, counted for each copy that differs")

    def _refuse(self, what: str) -> None:
        raise LimitExceeded(f"exchanges and partitioners would have to {what}: publish fewer records at once")
