"""OpenBatch: messages of one buffer that wait to be sent together. Pure: no I/O, no clock, no task."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from linn.client.produce.confirmation import Confirmation
from linn.client.produce.properties import PLAIN, Properties, index_pairs
from linn.core.batch.batch import ID_MASK
from linn.core.batch.builder import BatchColumns
from linn.core.batch.key_hash import key_hash

RECORD_BYTES = 8
"""What a record costs in a batch besides its bytes, about: offsets, and room for a key's. Bounds the records, too."""


class Prepared(NamedTuple):
    """A message that can be added to a batch: all that could be wrong with it was checked."""

    value: bytes | None
    properties: Properties
    size: int
    """Bytes of value, key and headers."""
    mandatory: bool
    """Whether the broker is to be asked whether a topic took it."""


class OpenBatch:
    """Grows by `values.append` (the fast way, for messages that are only a value) or by `add`."""

    __slots__ = (
        "_rows",
        "_withdrawn",
        "base_id",
        "confirmation",
        "mandatory",
        "opened_tick",
        "size",
        "timestamp_ms",
        "unwatched",
        "values",
    )

    def __init__(self, base_id: int, timestamp_ms: int, mandatory: bool = False) -> None:
        self.values: list[bytes | None] = []
        self.size = 0
        """Bytes, about; kept by whoever appends."""
        self.base_id = base_id
        self.timestamp_ms = timestamp_ms
        self.mandatory = mandatory
        """Of all its messages: what the broker is asked is asked for the whole batch."""
        self.unwatched: list[int] = []
        """The messages of a mandatory batch that no publisher waits for: their return the next flush reports."""
        self.confirmation = Confirmation()
        self.opened_tick: int | None = None
        """When it was opened, in ticks of its sender, where it waits for no more than those before it."""
        self._rows: dict[int, Properties] = {}
        self._withdrawn: list[int] = []

    def add(self, value: bytes | None, properties: Properties, size: int) -> int:
        """Append a message of `size` bytes; returns its index."""
        index = len(self.values)
        self.values.append(value)
        self.size += size + RECORD_BYTES
        if properties is not PLAIN:
            self._rows[index] = properties
        return index

    def extend(self, values: Sequence[bytes], ends: Sequence[int], first: int, bytes_max: int) -> int:
        """Append values from `first` on, at least one, as long as the size is below `bytes_max`; the next one's index.

        `ends` are the sums of all sizes up to each value, the value included.
        """
        begin = ends[first - 1] if first else 0
        room = bytes_max - self.size
        last = bisect_left(
            range(first, len(values)), room, key=lambda at: ends[at] - begin + RECORD_BYTES * (at + 1 - first)
        )
        last = min(first + last + 1, len(values))
        self.values.extend(values[first:last])
        self.size += ends[last - 1] - begin + RECORD_BYTES * (last - first)
        return last

    def withdraw(self, index: int) -> None:
        """Take back the message at `index`, before `columns`."""
        if index not in self._withdrawn:
            self._withdrawn.append(index)

    def __bool__(self) -> bool:
        return len(self.values) > len(self._withdrawn)

    def place(self, index: int) -> int:
        """Where in the batch the message at `index` is."""
        return index - sum(1 for withdrawn in self._withdrawn if withdrawn < index)

    def id(self, index: int) -> int:
        """The id of the message at `index`, 128 bits, unless its properties have one."""
        return (self.base_id + self.place(index)) & ID_MASK

    def columns(self, with_key_hashes: bool) -> BatchColumns:
        """All messages by column."""
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
        keys, pairs, headers, ids, times, priorities, delays_ms, ttls_ms = zip(*rows, strict=True)
        columns.pairs, columns.pair_index = index_pairs(pairs)
        if any(key is not None for key in keys):
            columns.keys = keys
            columns.key_hashes = list(map(key_hash, keys)) if with_key_hashes else None
        columns.headers = headers if any(headers) else None
        columns.priorities = priorities if any(priorities) else None
        columns.delays_ms = delays_ms if any(delays_ms) else None
        columns.ttls_ms = ttls_ms if any(ttls_ms) else None
        if any(time is not None for time in times):
            columns.timestamps_ms = [self.timestamp_ms if time is None else time for time in times]
        if any(id is not None for id in ids):
            base = self.base_id
            columns.ids = [
                ((base + place) & ID_MASK).to_bytes(16, "big") if id is None else id.bytes
                for place, id in enumerate(ids)
            ]
