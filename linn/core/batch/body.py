"""The body of a batch: columns that only readers need. See `Body` in schema/batch.capnp."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from linn.core.batch import flat_message
from linn.core.batch.column import BinaryColumn, BuiltColumn, any_step_over, never_decrease, shift_offsets
from linn.core.batch.flat_message import Buffer, Field, Parts
from linn.core.batch.record import Headers
from linn.core.errors.tree import BatchMalformed, LimitExceeded

FIELD_COUNT = 13
HEADERS_AT_ONCE_MAX = 1_024
"""Limit of the headers of a record that is routed or moved: it can't be split into steps, and these take 2 ms."""
_I32 = struct.Struct("<i")
VALUES_ONLY_FIELD_COUNT = 2
"""Pointers of a body that holds only values: one to their offsets and one to their bytes."""
_VALUES_ONLY = struct.Struct("<IIQQQ")
"""Segment table, root pointer and pointers of a body that holds only values."""
_ROOT = VALUES_ONLY_FIELD_COUNT << 48
_ENDS_POINTER_AT = 16
_POINTER_MASK = 7 << 32 | 3
_DATA_POINTER = 2 << 32 | 1
"""A list of bytes, as `flat_message` writes its pointer."""


def holds_values_only(message: memoryview, start: int, end: int, count: int) -> bool:
    """Whether the bytes from `start` to `end` are a valid body of `count` values and nothing else.

    Reads the head once, without a loop or a view. False is not final: `decode` decides.
    """
    if end - start < _VALUES_ONLY.size:
        return False
    segments, words, root, ends, values = _VALUES_ONLY.unpack_from(message, start)
    ends_at = start + _ENDS_POINTER_AT + 8 + 2 * (ends & 0xFFFFFFFC)
    ends_bytes, values_bytes = ends >> 35, values >> 35
    return bool(
        root == _ROOT
        and start + 8 + 8 * words == end
        and not segments
        and ends & _POINTER_MASK == _DATA_POINTER
        and values & _POINTER_MASK == _DATA_POINTER
        and ends_bytes == 4 * (count + 1)
        and ends_bytes + values_bytes <= end - start - _VALUES_ONLY.size
        and ends_at + ends_bytes <= end
        and start + _ENDS_POINTER_AT + 16 + 2 * (values & 0xFFFFFFFC) + values_bytes <= end
        and _I32.unpack_from(message, ends_at)[0] == 0
        and _I32.unpack_from(message, ends_at + 4 * count)[0] == values_bytes
    )


@dataclass(slots=True)
class HeaderColumn:
    """Headers as Arrow's map<text, bytes>: a list per record over two columns of entries."""

    offsets: Buffer
    """n+1 Int32 offsets into the entries, beginning with 0."""
    names: BinaryColumn
    values: BinaryColumn

    @classmethod
    def of(cls, headers: Sequence[Headers]) -> HeaderColumn:
        """Build the column from each record's headers."""
        offsets = array("i", accumulate(map(len, headers), initial=0)).tobytes()
        entries = list(chain.from_iterable(headers))
        names = BinaryColumn.of([name.encode() for name, _ in entries])
        return cls(offsets, names, BinaryColumn.of([value for _, value in entries]))

    @classmethod
    def read(cls, fields: Sequence[memoryview | None], count: int) -> HeaderColumn | None:
        """A view of the six header fields of a `Body`, checked at batch cost; None if there are no headers.

        Raises BatchMalformed.
        """
        offsets, name_offsets, names, value_offsets, values, validity = fields
        if offsets is None:
            return None
        if name_offsets is None or value_offsets is None:
            raise BatchMalformed("the batch has headers without names or values")
        if len(offsets) != 4 * (count + 1):
            raise BatchMalformed(f"the headers do not fit {count} records")
        ends = offsets.cast("i")
        if ends[0] != 0:
            raise BatchMalformed("the headers do not begin with 0")
        return cls(
            offsets,
            BinaryColumn.read(name_offsets, names, None, ends[count], "header names"),
            BinaryColumn.read(value_offsets, values, validity, ends[count], "header values"),
        )

    def check_ascending(self) -> None:
        """Check that no offset decreases. Raises BatchMalformed."""
        if not never_decrease(self.offsets):
            raise BatchMalformed("the offsets of headers decrease")
        self.names.check_ascending("header names")
        self.values.check_ascending("header values")

    def __getitem__(self, index: int) -> Headers:
        """One record's headers. Raises BatchMalformed if a name is not UTF-8."""
        ends = memoryview(self.offsets).cast("i")
        try:
            return tuple((str(self.names[i], "utf-8"), self.values[i]) for i in range(ends[index], ends[index + 1]))  # type: ignore[arg-type]
        except UnicodeDecodeError as error:
            raise BatchMalformed("the name of a header is not UTF-8") from error

    def slice(self, first: int, last: int) -> HeaderColumn:
        """The headers of records `first` to `last` (exclusive)."""
        ends = memoryview(self.offsets).cast("i")
        start, end = ends[first], ends[last]
        offsets = shift_offsets(memoryview(self.offsets)[4 * first : 4 * (last + 1)], start)
        return HeaderColumn(offsets, self.names.slice(start, end), self.values.slice(start, end))

    def take(self, indexes: Sequence[int]) -> HeaderColumn:
        """The headers of the records at `indexes`. Names are copied as bytes; only readers decode them."""
        ends = memoryview(self.offsets).cast("i")
        ranges = [range(ends[index], ends[index + 1]) for index in indexes]
        entries = list(chain.from_iterable(ranges))
        offsets = array("i", accumulate(map(len, ranges), initial=0)).tobytes()
        return HeaderColumn(offsets, self.names.take(entries), self.values.take(entries))


@dataclass(slots=True)
class Body:
    """Columns of one batch. An absent column holds defaults only."""

    values: BinaryColumn
    keys: BinaryColumn | None = None
    timestamps_ms: Buffer | None = None
    """Int64 per record."""
    headers: HeaderColumn | None = None

    def lay_out(self) -> Parts:
        """Lay out the columns as a `Body` message. Raises BatchTooLarge."""
        return lay_out_body(self.values, self.keys, self.timestamps_ms, self.headers)

    @classmethod
    def decode(cls, data: memoryview, count: int) -> Body:
        """Read and check a body of `count` records, at batch cost and without copying.

        Only the first and the last offset are checked: call `check_ascending` before slicing or reading.

        Raises BatchMalformed.
        """
        fields = flat_message.decode(data, 0, FIELD_COUNT)
        value_ends, values, times, key_ends, keys, key_bits, value_bits, *headers = fields
        if value_ends is None:
            raise BatchMalformed("the batch has no values")
        body = cls(BinaryColumn.read(value_ends, values, value_bits, count, "values"), timestamps_ms=times)
        if key_ends is not None:
            body.keys = BinaryColumn.read(key_ends, keys, key_bits, count, "keys")
        if times is not None and len(times) != 8 * count:
            raise BatchMalformed(f"the timestamps do not fit {count} records")
        body.headers = HeaderColumn.read(headers, count)
        return body

    @staticmethod
    def check(data: memoryview, count: int) -> None:
        """Check as `decode` does, but build nothing for a body of values alone, as in most batches.

        Raises BatchMalformed.
        """
        if not holds_values_only(data, 0, len(data), count):
            Body.decode(data, count)

    def check_ascending(self) -> None:
        """Check that no column's offsets decrease, so that every record can be read and every range sliced.

        Raises BatchMalformed.
        """
        self.values.check_ascending("values")
        if self.keys is not None:
            self.keys.check_ascending("keys")
        if self.headers is not None:
            self.headers.check_ascending()

    def slice(self, first: int, last: int) -> Body:
        """Records `first` to `last` (exclusive)."""
        return Body(
            self.values.slice(first, last),
            self.keys.slice(first, last) if self.keys is not None else None,
            self.timestamps_ms[8 * first : 8 * last] if self.timestamps_ms is not None else None,
            self.headers.slice(first, last) if self.headers is not None else None,
        )

    def weight(self) -> int:
        """The number of records and headers, a measure of the cost of reading them."""
        return len(self.values) + (len(self.headers.names) if self.headers is not None else 0)

    def pieces(self, indexes: Sequence[int], weight_max: int) -> Iterator[Sequence[int]]:
        """Split `indexes` into runs with about `weight_max` records and headers each.

        Raises LimitExceeded with the indexes of records that have more than HEADERS_AT_ONCE_MAX headers.
        """
        if self.headers is None:
            for first in range(0, len(indexes), weight_max):
                yield indexes[first : first + weight_max]
            return
        ends = memoryview(self.headers.offsets).cast("i")
        if any_step_over(HEADERS_AT_ONCE_MAX, [self.headers.offsets]):
            over = [index for index in indexes if ends[index + 1] - ends[index] > HEADERS_AT_ONCE_MAX]
            if over:
                text = f"a record has more than {HEADERS_AT_ONCE_MAX} headers, too many to be routed"
                raise LimitExceeded(text).of_messages(over)
        first = weight = 0
        for at, index in enumerate(indexes, 1):
            weight += 1 + ends[index + 1] - ends[index]
            if weight >= weight_max:
                yield indexes[first:at]
                first, weight = at, 0
        if first < len(indexes):
            yield indexes[first:]

    def take(self, indexes: Sequence[int]) -> Body:
        """The records at `indexes`, in that order."""
        times = self.timestamps_ms
        return Body(
            self.values.take(indexes),
            self.keys.take(indexes) if self.keys is not None else None,
            b"".join(times[8 * i : 8 * i + 8] for i in indexes) if times is not None else None,
            self.headers.take(indexes) if self.headers is not None else None,
        )


def lay_out_body(
    values: BinaryColumn | BuiltColumn,
    keys: BinaryColumn | BuiltColumn | None,
    timestamps_ms: Buffer | None,
    headers: HeaderColumn | None,
) -> Parts:
    """Lay out these columns as a `Body` message. Raises BatchTooLarge."""
    fields = [values.offsets, values.data, timestamps_ms, *_fields_of(keys), values.validity]
    if headers is not None:
        fields += [headers.offsets, headers.names.offsets, headers.names.data, *_fields_of(headers.values)]
    return flat_message.lay_out(b"", fields)


def _fields_of(column: BinaryColumn | BuiltColumn | None) -> list[Field]:
    return [None, None, None] if column is None else [column.offsets, column.data, column.validity]
