"""What one publish may cost where its records are looked at or moved one by one, and what the parts of it may hold.

A batch that goes to one partition as a whole costs nothing of it, however many records it has. Where records are told
from each other, by an exchange, by their keys or by a limit on their size, each is looked at, with its headers; and
where they part, each is copied into a batch for every set of topics that differs from the others: N topics with
bindings of their own make N batches of one. What all topics together store of one publish is one step, and bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LimitExceeded

if TYPE_CHECKING:
    from linn.core.publish.destination import Destination

RECORD_STEPS_MAX = 1 << 22
"""Looking at a record or copying it, about a microsecond each. So the largest batch, 2^20 records, can still pass an
exchange that looks at all of them and then be cut by its keys; more would hold the other publishes of its connection
up for longer than clients wait."""
PARTS_BYTES_MAX = 64 << 20
"""Eight of the largest batches. Parts are held until all of a publish can be stored."""
RECORD_STEPS_AT_ONCE_MAX = 4_096
"""Without giving others a turn: some milliseconds."""
PARTS_BYTES_AT_ONCE_MAX = 8 << 20
"""Copied without giving others a turn: some milliseconds."""
ASKS_AT_ONCE_MAX = 64
"""Steps of exchanges that are asked, and contents that they are asked about, without giving others a turn: well-meant
bindings take 10 us each, others a hundred times that. How long they may take in turns is the router's to say."""
STORED_MAX = 10_240
"""Batches that one publish may become in all topics together: they are stored in one go, 13 us each."""
STORED_BYTES_MAX = 256 << 20
"""Of all these, each topic with bytes of its own: they are copied in the same go, a fifth of a second at worst."""
BODY_BYTES_A_STEP = 1_024
"""Of a body that is opened: decompressed, at a millisecond a mebibyte."""
PART_STEPS = 32
"""What making and storing a batch costs beside its records, in steps."""


class TakesLong(Exception):
    """More than may be done at once: it has to be done in turns. Nothing has been stored."""


class PublishBudget:
    """Of one publish, all its batches together."""

    __slots__ = ("_asks", "_at_once", "_bytes_max", "_steps", "_steps_max", "_stored", "_stored_bytes", "parts_bytes")

    def __init__(self, *, at_once: bool = False) -> None:
        """`at_once`: what goes beyond the smaller bounds raises TakesLong, and LimitExceeded never."""
        self._at_once = at_once
        self._steps_max = RECORD_STEPS_AT_ONCE_MAX if at_once else RECORD_STEPS_MAX
        self._bytes_max = PARTS_BYTES_AT_ONCE_MAX if at_once else PARTS_BYTES_MAX
        self._steps = self._asks = self._stored = self._stored_bytes = 0
        self.parts_bytes = 0
        """Of all parts made so far."""

    def begin(self) -> None:
        """Another publish."""
        self._steps = self._asks = self._stored = self._stored_bytes = self.parts_bytes = 0

    def spend(self, records: int) -> None:
        """So many records are to be looked at or copied. Raises LimitExceeded, TakesLong: before it is done."""
        self.foresee(records)
        self._steps += records

    def foresee(self, records: int) -> None:
        """So many records will have to be looked at. Raises as `spend`, which counts them."""
        if self._steps + records > self._steps_max:
            self._refuse(f"look at and copy more than {self._steps_max} records, counted for each copy that differs")

    def ask(self) -> None:
        """An exchange is to be asked about one content, or goes on with what takes it long. Raises TakesLong."""
        self._asks += 1
        if self._at_once and self._asks > ASKS_AT_ONCE_MAX:
            raise TakesLong

    def look_into(self, batch: RecordBatch) -> None:
        """The body will be opened, and each record with its headers looked at. Raises as `spend`."""
        if not batch.is_plain:
            self.foresee(batch.count)
            self.spend(batch.body_bytes // BODY_BYTES_A_STEP)
        self.spend(batch.body().weight())

    def store(self, destinations: Sequence[Destination]) -> None:
        """These will have to be stored, beside others. Raises LimitExceeded, TakesLong."""
        self.spend(PART_STEPS * len(destinations))
        self._stored += len(destinations)
        if self._stored > STORED_MAX:
            self._refuse(f"store more than {STORED_MAX} batches of one publish")
        self._stored_bytes += sum([each.batch.size for each in destinations])
        if self._stored_bytes > STORED_BYTES_MAX:
            self._refuse(f"store more than {STORED_BYTES_MAX} bytes of one publish")

    def hold(self, part: RecordBatch) -> None:
        """A part has been made. Raises LimitExceeded, TakesLong."""
        self.spend(PART_STEPS)
        self.parts_bytes += part.size
        if self.parts_bytes > self._bytes_max:
            self._refuse(f"make batches of more than {self._bytes_max} bytes of one publish")

    def _refuse(self, what: str) -> None:
        if self._at_once:
            raise TakesLong
        raise LimitExceeded(f"exchanges and partitioners would have to {what}: publish fewer records at once")
