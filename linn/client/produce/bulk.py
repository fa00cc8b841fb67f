"""Bulk publishing (`publish_many`): messages by column, cut into batches by slices, with one receipt for all.

Law: no Python loop over records, unless the records have keys for several partitions or properties of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import anyio

from linn.client.arguments import I64_MAX, HeadersInput, as_bytes, checked_headers, checked_number
from linn.client.connection.answer import again
from linn.client.produce.confirmation import Confirmation, places_among
from linn.client.produce.properties import checked_pair, index_pairs
from linn.client.produce.receipt import BulkReceipt, Offsets
from linn.core.batch.batch import Codec, RecordBatch
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.batch.key_hash import key_hash
from linn.core.batch.record import Headers, Labels
from linn.core.batch.routes import NO_PAIR, Pair
from linn.core.errors.texts import counted
from linn.core.errors.tree import LinnError, MessageInvalid, MessageTooLarge, Unroutable

_SAMPLE = 64
"""Number of values from which the size of the first batch is estimated."""
RECORDS_MAX = 32_768
"""Limit on records per batch: half of the values of a UInt16, which indexes routes."""
_RECORD_BYTES = 4
_NO_BINDING = Unroutable("no binding leads some of its messages to a topic")


def _as_list(values: Any, what: str, count: int) -> Any:
    if isinstance(values, list | tuple):
        found: Sequence[Any] = values
    elif isinstance(values, str | bytes | bytearray | Mapping):
        raise MessageInvalid(f"{what} must be a sequence with one entry per message, not {type(values).__name__}")
    else:
        try:
            found = list(values)
        except TypeError as error:
            raise MessageInvalid(f"{what} must be a sequence with one entry per message: {error}") from error
    if count >= 0 and len(found) != count:
        raise MessageInvalid(f"{what} has {counted(len(found), 'entry')} for {counted(count, 'value')}")
    return found


@dataclass(slots=True)
class BulkColumns:
    """Messages of one call by column. `pair` applies to all; `pairs` has one per message."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    pair: Pair = NO_PAIR
    pairs: Sequence[Pair] | None = None
    headers: Sequence[Headers] | None = None
    places: Sequence[int] | None = None
    """Positions of these messages in the call; None if they are all messages of the call."""
    ids: Sequence[bytes] | None = None
    timestamp_ms: int = 0
    timestamps_ms: Sequence[int] | None = None
    priority: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    due_ms: int = 0

    @classmethod
    def checked(
        cls,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        routing_keys: str | Sequence[str] | None,
        labels: Labels | Sequence[Labels | None] | None,
        headers: Sequence[HeadersInput | None] | None,
    ) -> BulkColumns:
        """Check the arguments of a call. Raises MessageInvalid."""
        columns = cls(_as_list(values, "values", -1))
        count = len(columns.values)
        if keys is not None:
            keys = _as_list(keys, "keys", count)
            if not set(map(type, keys)) <= {bytes, type(None)}:
                keys = [None if key is None else as_bytes(key, "a key") for key in keys]
            columns.keys = keys
        if headers is not None:
            columns.headers = [checked_headers(entry) for entry in _as_list(headers, "headers", count)]
        columns._pair_up(routing_keys, labels, count)
        return columns

    def identify(self, ids: Sequence[UUID] | None, timestamp_ms: int | Sequence[int]) -> None:
        """Set the ids and times of the messages. Raises MessageInvalid."""
        count = len(self.values)
        if ids is not None:
            ids = _as_list(ids, "ids", count)
            if not all(isinstance(id, UUID) for id in ids):
                raise MessageInvalid("ids must be UUIDs")
            self.ids = [id.bytes for id in ids]
        if isinstance(timestamp_ms, int):
            self.timestamp_ms = checked_number(timestamp_ms, "timestamp_ms", I64_MAX)
        else:
            times = _as_list(timestamp_ms, "timestamp_ms", count)
            self.timestamps_ms = [checked_number(time, "timestamp_ms", I64_MAX) for time in times]

    def positions(self, first: int, last: int) -> Sequence[int]:
        """Positions in the call of messages `first` to `last` (exclusive)."""
        return range(first, last) if self.places is None else self.places[first:last]

    def _pair_up(self, routing_keys: Any, labels: Any, count: int) -> None:
        one_key = routing_keys is None or isinstance(routing_keys, str)
        one_labels = labels is None or isinstance(labels, Mapping)
        if one_key and one_labels:
            self.pair = checked_pair(routing_keys or "", labels)
        elif one_labels:
            routing_keys = _as_list(routing_keys, "routing_keys", count)
            try:
                made = {routing_key: checked_pair(routing_key, labels) for routing_key in dict.fromkeys(routing_keys)}
            except TypeError as error:
                raise MessageInvalid(f"routing keys must be text: {error}") from error
            self.pairs = list(map(made.__getitem__, routing_keys))
        else:
            every = [routing_keys or ""] * count if one_key else _as_list(routing_keys, "routing_keys", count)
            given = _as_list(labels, "labels", count)
            self.pairs = [checked_pair(*pair) for pair in zip(every, given, strict=True)]

    def by_partition(self, partitions: int) -> dict[int, BulkColumns]:
        """Split the messages by their key's partition; -1: messages for any partition."""
        if not self.values:
            return {}
        if self.keys is None or partitions == 1:
            return {-1: self}
        indexes: dict[int, list[int]] = {}
        for index, key in enumerate(self.keys):
            indexes.setdefault(key_hash(key) % partitions if key is not None else -1, []).append(index)
        return {partition: self._take(found) for partition, found in indexes.items()}

    def _take(self, indexes: list[int]) -> BulkColumns:
        def taken(column: Any) -> Any:
            return [column[index] for index in indexes] if column is not None else None

        return replace(
            self,
            values=taken(self.values),
            keys=taken(self.keys),
            pairs=taken(self.pairs),
            headers=taken(self.headers),
            ids=taken(self.ids),
            timestamps_ms=taken(self.timestamps_ms),
            places=indexes,
        )

    def columns(self, first: int, last: int, base_id: int, with_key_hashes: bool) -> BatchColumns:
        """Return messages `first` to `last` (exclusive) as the columns of one batch."""
        count = last - first
        columns = BatchColumns(self.values[first:last], self.timestamp_ms, base_id)
        if self.keys is not None:
            columns.keys = self.keys[first:last]
            columns.key_hashes = list(map(key_hash, columns.keys)) if with_key_hashes else None
        if self.pairs is not None:
            columns.pairs, columns.pair_index = index_pairs(self.pairs[first:last])
        elif self.pair != NO_PAIR:
            columns.pairs = (self.pair,)
        columns.headers = self.headers[first:last] if self.headers is not None else None
        columns.ids = self.ids[first:last] if self.ids is not None else None
        columns.timestamps_ms = self.timestamps_ms[first:last] if self.timestamps_ms is not None else None
        columns.priorities = [self.priority] * count if self.priority else None
        columns.delays_ms = [self.delay_ms] * count if self.delay_ms else None
        columns.ttls_ms = [self.ttl_ms] * count if self.ttl_ms else None
        columns.dues_ms = [self.due_ms] * count if self.due_ms else None
        return columns

    def check_sizes(self, first: int, last: int, bytes_max: int) -> None:
        """Check the sizes of messages `first` to `last` (exclusive). Raises MessageTooLarge."""
        for index in range(first, last):
            size = len(self.values[index] or b"") + len((self.keys[index] if self.keys else None) or b"")
            headers = self.headers[index] if self.headers is not None else ()
            size += sum(len(name.encode()) + len(value or b"") for name, value in headers)
            if size > bytes_max:
                place = index if self.places is None else self.places[index]
                raise MessageTooLarge(
                    f"message {place} has {size:,} bytes, more than the message_bytes_max of {bytes_max:,}"
                )


class Bulk:
    """One call of `publish_many`: cuts its batches and gathers their outcomes."""

    def __init__(self, with_key_hashes: bool, codec: Codec, batch_bytes_max: int, batch_bytes_limit: int) -> None:
        self.error: LinnError | None = None
        self.message_bytes_max = 0
        self._with_key_hashes = with_key_hashes
        self._codec = codec
        self._batch_bytes_max = batch_bytes_max
        self._batch_bytes_limit = batch_bytes_limit
        self._average = 0.0
        self._unsettled: dict[Confirmation, Sequence[int]] = {}
        self._failures: dict[int, LinnError] = {}
        """Errors of messages that are not stored although their batch was confirmed, by position in the call."""
        self._changed = anyio.Event()
        self._count = 0
        self._partitions: dict[int, Offsets] = {}
        self._copies: int | None = None

    # --- cutting ---

    def cut(self, columns: BulkColumns, first: int, base_id: int) -> RecordBatch:
        """Build the next batch, from `first` on, of about `batch_bytes_max` bytes.

        Raises MessageInvalid, MessageTooLarge.
        """
        last = min(len(columns.values), first + self._guess(columns.values, first))
        while True:
            part = columns.columns(first, last, base_id, self._with_key_hashes)
            batch = build_batch(part, self._codec, sealed=False)
            size = max(batch.size, batch.body_bytes)
            if size > self.message_bytes_max:  # A smaller batch can't hold a message that is too large.
                columns.check_sizes(first, last, self.message_bytes_max)
            self._average = size / batch.count
            if last - first == 1 or (size <= 2 * self._batch_bytes_max and size <= self._batch_bytes_limit):
                return batch
            last = first + (last - first) // 2  # Values grew along the way.

    def _guess(self, values: Sequence[bytes | None], first: int) -> int:
        """Estimate the number of records of a batch from the average size in the last one."""
        if not self._average:
            sample = values[first : first + _SAMPLE]
            try:
                self._average = sum(len(value) if value is not None else 0 for value in sample) / len(sample)
            except TypeError as error:
                raise MessageInvalid(f"a value must be bytes: {error}") from error
            self._average += _RECORD_BYTES
        return max(1, min(RECORDS_MAX, int(self._batch_bytes_max / self._average)))

    # --- outcomes ---

    def expect(self, messages: Sequence[int]) -> Confirmation:
        """Make the confirmation of a batch of these messages, given by their positions in the call."""
        confirmation = Confirmation()
        confirmation.watcher = self._settled
        self._unsettled[confirmation] = messages
        return confirmation

    def fail(self, error: LinnError) -> None:
        """Record an error; only the first one counts."""
        self.error = self.error or error

    def _settled(self, confirmation: Confirmation) -> None:
        messages = self._unsettled.pop(confirmation)
        count, placement = len(messages), confirmation.placement
        if confirmation.error is not None:
            self.fail(confirmation.error)
        else:
            self._count += count
        if placement is not None:
            failed = len(self._failures)
            returned = (_NO_BINDING, placement.returned)
            for error, ranges in [returned, *confirmation.refusals()]:
                self._failures |= {messages[place]: error for place in places_among(ranges, count)}
            count -= len(self._failures) - failed
            self._count += count - len(messages)
            self._copies = (self._copies or 0) + placement.copies
            if placement.partition >= 0 and count:
                self._note(placement.partition, placement.base_offset, placement.base_offset + count - 1)
        if not self._unsettled:
            self._changed.set()

    def _note(self, partition: int, first: int, last: int) -> None:
        known = self._partitions.get(partition, Offsets(first, last))
        self._partitions[partition] = Offsets(min(known.first, first), max(known.last, last))

    async def receipt(self, topic: str | None) -> BulkReceipt:
        """Wait for all batches.

        Raises the first error of a batch, or else the error of the first message that is not stored, with the indexes
        of all such messages. A note gives the number of confirmed messages.
        """
        while self._unsettled:
            self._changed = anyio.Event()
            await self._changed.wait()
        error = again(self.error) if self.error is not None else self._failure()
        if error is not None:
            error.add_note(f"confirmed of this publish_many: {counted(self._count, 'message')}")
            raise error
        return BulkReceipt(self._count, topic, self._partitions, self._copies)

    def _failure(self) -> LinnError | None:
        """Make the error of messages that are not stored although their batches were confirmed, if any."""
        if not self._failures:
            return None
        indexes = sorted(self._failures)
        first = self._failures[indexes[0]]
        alike, error = sum(failure.text == first.text for failure in self._failures.values()), again(first)
        if first is _NO_BINDING:
            error.text = f"no binding leads {counted(alike, 'message')} to a topic, the first is message {indexes[0]}"
        else:
            error.add_note(f"refused: message {indexes[0]}" + (f", and {alike - 1:,} after it" if alike > 1 else ""))
        for other in {
            failure.text: failure for failure in self._failures.values() if failure.text != first.text
        }.values():
            error.add_note(f"others failed for another reason: {other}")
        return error.of_messages(indexes)
