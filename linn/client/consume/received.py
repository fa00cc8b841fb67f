"""Received batches, and messages made from them on access, without the methods that settle.

Laws: objects are immutable, except that values are cached when they are read; any thread may read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from linn.client.connection.replying import address_in
from linn.client.consume.settling import Delivery
from linn.core.batch.batch import RecordBatch
from linn.core.batch.record import Headers, LabelValue, Record
from linn.core.errors.tree import MessageInvalid


class ReceivedBatch:
    """Records of one partition, in order. `len` and `values` leave out the records before `first`."""

    __slots__ = ("_base_offset", "_delivery", "_deltas", "_first", "_values", "partition", "records", "topic")

    def __init__(
        self, topic: str, partition: int, records: RecordBatch, first: int = 0, delivery: Delivery | None = None
    ) -> None:
        """Raises BatchMalformed: the offsets do not ascend."""
        self.topic = topic
        self.partition = partition
        self.records = records
        """The producer's batch, by column."""
        self._first = first
        """Index of the first record to deliver."""
        self._base_offset: int = records.base_offset
        """First offset of the producer's batch."""
        self._deltas: Sequence[int] | None = records.offset_deltas
        """Distance of each record's offset from `_base_offset`; None: the offsets are dense."""
        self._delivery = delivery
        self._values: list[bytes | None] | None = None

    @property
    def start_offset(self) -> int:
        """Offset of the first record."""
        return self._offset(self._first)

    @property
    def end_offset(self) -> int:
        """Offset at which to read on: after the last record and any gap that follows it."""
        return int(self.records.end_offset)

    def _offset(self, index: int) -> int:
        """Return the offset of the record at `index`, or `end_offset` behind the last."""
        deltas = self._deltas
        if deltas is None:
            return self._base_offset + index
        return self._base_offset + deltas[index] if index < len(deltas) else self.end_offset

    @property
    def leader_epoch(self) -> int:
        """Leader epoch in which its records were appended: (topic id, epoch, offset) never names two records."""
        return int(self.records.leader_epoch)

    @property
    def attempt(self) -> int:
        """Number of this delivery attempt, from 1; 0 if attempts are not counted."""
        return self._delivery.attempt if self._delivery is not None else 0

    @property
    def values(self) -> list[bytes | None]:
        """Values of all records. Raises BatchMalformed."""
        values = self._values if self._values is not None else self._load()
        return values[self._first :] if self._first else values

    @property
    def _indexes(self) -> range:
        """Indexes of its records."""
        return range(self._first, self.records.count)

    def _load(self) -> list[bytes | None]:
        """Read and cache the values from index 0 on. Raises BatchMalformed."""
        self._values = self.records.body().values.to_list()
        return self._values

    def __len__(self) -> int:
        return int(self.records.count) - self._first

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}/{self.partition} {self.start_offset}..{self.end_offset}>"


class ReceivedMessage(msgspec.Struct, gc=False, eq=False, frozen=True):
    """One record. Its properties are read from the batch on access."""

    batch: ReceivedBatch
    index: int

    @property
    def value(self) -> bytes | None:
        """The content; None for a tombstone."""
        batch = self.batch
        values = batch._values
        return values[self.index] if values is not None else batch._load()[self.index]

    @property
    def text(self) -> str:
        """The content as text. Raises MessageInvalid if it is a tombstone or not UTF-8."""
        value = self.value
        if value is None:
            raise MessageInvalid(f"{self._place} is a tombstone: its value is None and has no text")
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise MessageInvalid(f"the value of {self._place} is not UTF-8 text: read it from `value`") from error

    @property
    def key(self) -> bytes | None:
        """The key, by which partitioners choose."""
        return self.batch.records.key(self.index)

    @property
    def routing_key(self) -> str:
        """The routing key, by which exchanges choose."""
        return self.batch.records.pair(self.index).routing_key

    @property
    def labels(self) -> Mapping[str, LabelValue]:
        """Typed properties, visible to exchanges."""
        return self.batch.records.labels(self.index)

    @property
    def headers(self) -> Headers:
        """(name, value) pairs in order; names may repeat."""
        return self.batch.records.headers(self.index)

    @property
    def reply_to(self) -> str | None:
        """The address for replies, of a message that `Client.request` has published; otherwise None."""
        return address_in(self.headers)

    @property
    def id(self) -> UUID:
        """The message's id, the same in every topic."""
        return self.batch.records.id(self.index)

    @property
    def timestamp_ms(self) -> int:
        """Time of its creation, in milliseconds since 1970."""
        return self.batch.records.timestamp_ms(self.index)

    @property
    def priority(self) -> int:
        """Priority, from 0 to 255."""
        priorities = self.batch.records.priorities
        return priorities[self.index] if priorities is not None else 0

    @property
    def topic(self) -> str:
        """Name of its topic."""
        return self.batch.topic

    @property
    def partition(self) -> int:
        """Number of its partition."""
        return self.batch.partition

    @property
    def offset(self) -> int:
        """Offset in its partition."""
        return self.batch._offset(self.index)

    @property
    def leader_epoch(self) -> int:
        """Leader epoch in which it was appended: (topic id, epoch, offset) never names two records."""
        return self.batch.leader_epoch

    @property
    def attempt(self) -> int:
        """Number of this delivery attempt, from 1; 0 if attempts are not counted."""
        return self.batch.attempt

    def record(self) -> Record:
        """Copy everything but topic and offset.

        Example:
            record = message.record()
            print(record.value, record.headers)
        """
        return self.batch.records.record(self.index)

    @property
    def _place(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}>"
