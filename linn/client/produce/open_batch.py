"""OpenBatch: messages of one buffer that wait to be sent together. Pure: no I/O, no clock, no task."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from linn.client.produce.confirmation import Confirmation
from linn.client.produce.properties import PLAIN, Properties, index_pairs, overhead_of
from linn.core.batch.batch import ID_MASK
from linn.core.batch.builder import BatchColumns
from linn.core.batch.key_hash import key_hash
from linn.core.batch.routes import NO_PAIR, ROUTES_BYTES_MAX, routes_bytes

RECORD_BYTES = 8
"""Approximate overhead of a record in a batch: its offsets and a key's. Bounds the number of records, too."""


class Prepared(NamedTuple):
    """A checked message, ready to be added to a batch."""

    value: bytes | None
    properties: Properties
    size: int
    """Size of value, key and headers in bytes."""
    mandatory: bool
    """Whether the broker reports if no topic takes the message."""


class OpenBatch:
    """A batch that takes messages: by `values.append` (the fast way, for plain values) or by `add`."""

    __slots__ = (
        "_rows",
        "_withdrawn",
        "awaited",
        "base_id",
        "confirmation",
        "is_delayed",
        "mandatory",
        "opened_tick",
        "routes_bytes",
        "size",
        "timestamp_ms",
        "values",
    )

    def __init__(self, base_id: int, timestamp_ms: int, mandatory: bool = False) -> None:
        self.values: list[bytes | None] = []
        self.size = 0
        """Approximate size in bytes; code that appends to `values` adds to it."""
        self.base_id = base_id
        self.timestamp_ms = timestamp_ms
        self.mandatory = mandatory
        """Whether all its messages are mandatory; the broker is asked for a whole batch."""
        self.is_delayed = False
        """Whether its messages come into their topic later."""
        self.awaited: list[int] = []
        """Indexes of the messages whose publishers wait; the next flush reports failures of the others."""
        self.confirmation = Confirmation()
        self.opened_tick: int | None = None
        """Sender tick at which its time limit began, if it waits only for earlier batches and not for a linger time."""
        self.routes_bytes = 0
        """Limit of the bytes of its routing keys and labels."""
        self._rows: dict[int, Properties] = {}
        self._withdrawn: list[int] = []

    def add(self, value: bytes | None, properties: Properties, size: int) -> int:
        """Append a message of `size` bytes; return its index."""
        index = len(self.values)
        self.values.append(value)
        self.size += size + RECORD_BYTES
        if properties is not PLAIN:
            self._rows[index] = properties
            self.is_delayed = self.is_delayed or properties.is_delayed
            self.size += overhead_of(properties)
            if properties.pair is not NO_PAIR:
                self.routes_bytes += routes_bytes((properties.pair,))
        return index

    def has_room(self, properties: Properties, size: int, bytes_max: int) -> bool:
        """Tell whether the batch with this message fits the broker's limits; a message of `bytes_max` goes alone."""
        if properties is PLAIN:
            return size < bytes_max and not self.is_delayed
        if self.values and self.is_delayed != properties.is_delayed:
            return False  # Only a batch of one kind has a place.
        if size + overhead_of(properties) >= bytes_max:
            return False
        pair = properties.pair
        return pair is NO_PAIR or self.routes_bytes + routes_bytes((pair,)) <= ROUTES_BYTES_MAX

    def extend(self, values: Sequence[bytes], ends: Sequence[int], first: int, bytes_max: int) -> int:
        """Append values from `first` on, while the size is below `bytes_max`; return the next index.

        A value of `bytes_max` is appended only to an empty batch; an empty batch takes at least one value. `ends` are
        the sums of the sizes up to and including each value.
        """
        begin = ends[first - 1] if first else 0
        room = bytes_max - self.size
        last = bisect_left(
            range(first, len(values)), room, key=lambda at: ends[at] - begin + RECORD_BYTES * (at + 1 - first)
        )
        last = min(first + last + 1, len(values))
        if (self.values or last - first > 1) and len(values[last - 1]) >= bytes_max:
            last -= 1
            if last == first:
                return last
        self.values.extend(values[first:last])
        self.size += ends[last - 1] - begin + RECORD_BYTES * (last - first)
        return last

    def withdraw(self, index: int) -> None:
        """Withdraw the message at `index`; call before `columns`."""
        if index not in self._withdrawn:
            self._withdrawn.append(index)

    def __bool__(self) -> bool:
        return len(self.values) > len(self._withdrawn)

    def place(self, index: int) -> int:
        """Return the position of the message at `index`, without withdrawn ones."""
        return index - sum(1 for withdrawn in self._withdrawn if withdrawn < index)

    def id(self, index: int) -> int:
        """Return the 128-bit id of the message at `index`, unless its properties have one."""
        return (self.base_id + self.place(index)) & ID_MASK

    def columns(self, with_key_hashes: bool) -> BatchColumns:
        """Return all messages by column."""
        values, rows = self.values, self._rows
        columns = BatchColumns(values, self.timestamp_ms, self.base_id)
        if rows or self._withdrawn:
            every = [rows.get(index, PLAIN) for index in range(len(values))]
            if self._withdrawn:
                gone = set(self._withdrawn)
                kept = [index for index in range(len(values)) if index not in gone]
                columns.values = [values[index] for index in kept]
                every = [every[index] for index in kept]
            self._fill(columns, every, with_key_hashes)
        return columns

    def _fill(self, columns: BatchColumns, rows: list[Properties], with_key_hashes: bool) -> None:
        keys, pairs, headers, ids, times, priorities, delays_ms, ttls_ms, dues_ms = zip(*rows, strict=True)
        columns.pairs, columns.pair_index = index_pairs(pairs)
        if any(key is not None for key in keys):
            columns.keys = keys
            columns.key_hashes = list(map(key_hash, keys)) if with_key_hashes else None
        columns.headers = headers if any(headers) else None
        columns.priorities = priorities if any(priorities) else None
        columns.delays_ms = delays_ms if any(delays_ms) else None
        columns.ttls_ms = ttls_ms if any(ttls_ms) else None
        columns.dues_ms = dues_ms if any(dues_ms) else None
        if any(time is not None for time in times):
            columns.timestamps_ms = [self.timestamp_ms if time is None else time for time in times]
        if any(id is not None for id in ids):
            base = self.base_id
            columns.ids = [
                ((base + place) & ID_MASK).to_bytes(16, "big") if id is None else id.bytes
                for place, id in enumerate(ids)
            ]
