"""Columns in Arrow's binary layout: n+1 little-endian Int32 offsets, the bytes, a validity bitmap if some are null.

Law: offsets begin with 0, never decrease, and the last is the length of the bytes. `check` tests both ends, at batch
cost; `check_ascending` tests all of them, before any slice or read. Neither it nor `slice` costs a Python loop: a whole
array of offsets is compared or moved by one subtraction of big integers, whose 32-bit digits never borrow from each
other.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from linn.core.batch.flat_message import Buffer, Parts
from linn.core.errors.tree import BatchMalformed

assert sys.byteorder == "little", "linn's columns are little-endian and read in place"


EQUAL_COUNT_MAX = 8_192
"""Columns of more values are not cached; 64 columns of 32 KiB are."""
_ONES_CACHED_MAX = 4_096
"""Larger integers are computed each time: slices of many sizes could fill a cache with integers of 4 MB."""


def _new_ones(count: int) -> int:
    return int.from_bytes(b"\x01\x00\x00\x00" * count, "little")


_cached_ones = lru_cache(maxsize=256)(_new_ones)


def _ones(count: int) -> int:
    """An integer whose `count` 32-bit digits are all 1."""
    return _cached_ones(count) if count <= _ONES_CACHED_MAX else _new_ones(count)


def never_decrease(offsets: Buffer, step_min: int = 0) -> bool:
    """Whether these Int32 are not negative, and each is at least its predecessor + `step_min`, which is 0 or 1."""
    count = len(offsets) // 4 - 1
    digits = int.from_bytes(offsets, "little")
    if digits & (_ones(count + 1) << 31):
        return False
    # Each digit of `later` borrows 2^31, and still has it if the step from its predecessor is large enough.
    ones = _ones(count)
    signs = ones << 31
    earlier, later = digits & ((1 << 32 * count) - 1), digits >> 32
    steps = (later | signs) - earlier
    return (steps - ones if step_min else steps) & signs == signs


def any_step_over(limit: int, columns: Sequence[Buffer]) -> bool:
    """Whether a step between neighbouring Int32, summed over columns of equal length, exceeds `limit`.

    No column may decrease, and the sums must stay below 2^31.
    """
    count = len(columns[0]) // 4 - 1
    if limit >= 1 << 31 or not count:
        return False
    steps = 0
    for offsets in columns:
        digits = int.from_bytes(offsets, "little")
        steps += (digits >> 32) - (digits & ((1 << 32 * count) - 1))
    ones = _ones(count)
    # A digit that is over the limit reaches 2^31.
    return (steps + ones * ((1 << 31) - 1 - limit)) & (ones << 31) != 0


def shift_offsets(offsets: Buffer, by: int) -> bytes:
    """Subtract `by` from each Int32 in `offsets`; none may be less than `by`."""
    if by == 0:
        return bytes(offsets)
    size = len(offsets)
    return (int.from_bytes(offsets, "little") - by * _ones(size // 4)).to_bytes(size, "little")


def slice_bits(bitmap: Buffer, first: int, last: int) -> bytes:
    """Bits `first` to `last` (exclusive) of a bitmap, moved to the front."""
    count = last - first
    bits = int.from_bytes(bitmap, "little") >> first & ((1 << count) - 1)
    return bits.to_bytes(-(-count // 8), "little")


@lru_cache(maxsize=64)
def _equal_offsets(count: int, size: int) -> bytes:
    """The offsets of `count` values that all have `size` bytes."""
    return array("i", range(0, count * size + 1, size) if size else [0] * (count + 1)).tobytes()


class BuiltColumn:
    """A column of values that are not joined yet, so that a batch copies each value only once."""

    __slots__ = ("data", "offsets", "validity")

    def __init__(self, values: Sequence[bytes | None]) -> None:
        """Collect the values. Raises TypeError if a value has no length; any other value that is not bytes fails when
        `data` is joined.
        """
        self.validity: bytes | None = None
        try:
            sizes = list(map(len, values))  # type: ignore[arg-type]
        except TypeError:
            values = self._without_nulls(values)
            sizes = list(map(len, values))
        count = len(sizes)
        if count <= EQUAL_COUNT_MAX and count and sizes.count(sizes[0]) == count:
            self.offsets = _equal_offsets(count, sizes[0])
            size = count * sizes[0]
        else:
            ends = list(accumulate(sizes, initial=0))
            self.offsets = array("i", ends).tobytes()
            size = ends[-1]
        self.data = Parts(size, values)  # type: ignore[arg-type]

    def _without_nulls(self, values: Sequence[bytes | None]) -> list[bytes]:
        digits = "".join(["0" if value is None else "1" for value in reversed(values)])
        self.validity = int(digits, 2).to_bytes(-(-len(values) // 8), "little")
        return [b"" if value is None else value for value in values]


class BinaryColumn:
    """Values of variable size, one per record. Reading an item copies its bytes."""

    __slots__ = ("_ends", "data", "offsets", "validity")

    def __init__(self, offsets: Buffer, data: Buffer, validity: Buffer | None = None) -> None:
        self.offsets = memoryview(offsets)
        self.data = data
        self.validity = validity
        self._ends = self.offsets.cast("i")

    @classmethod
    def read(
        cls, offsets: memoryview, data: memoryview | None, validity: memoryview | None, count: int, what: str
    ) -> BinaryColumn:
        """A view of a column from outside, checked as by `check`.

        Raises BatchMalformed.
        """
        if count < 0 or len(offsets) != 4 * (count + 1):
            raise BatchMalformed(f"the offsets of {what} do not fit {count} records")
        column = cls(offsets, data if data is not None else b"", validity)
        column.check(count, what)
        return column

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> BinaryColumn:
        """Build a column. Raises TypeError if a value is neither bytes nor None."""
        built = BuiltColumn(values)
        return cls(built.offsets, built.data.join(), built.validity)

    def check(self, count: int, what: str) -> None:
        """Check at batch cost that the column has `count` values and that its last offset is its length.

        Raises BatchMalformed.
        """
        if len(self.offsets) != 4 * (count + 1) or self._ends[0] != 0 or self._ends[count] != len(self.data):
            raise BatchMalformed(f"the offsets of {what} do not fit {count} records")
        if self.validity is not None and len(self.validity) != -(-count // 8):
            raise BatchMalformed(f"the validity of {what} does not fit {count} records")

    def check_ascending(self, what: str) -> None:
        """Check that the offsets never decrease, so that every item and every slice lies inside the bytes.

        Raises BatchMalformed.
        """
        if not never_decrease(self.offsets):
            raise BatchMalformed(f"the offsets of {what} decrease")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> bytes | None:
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        ends = self._ends
        return bytes(self.data[ends[index] : ends[index + 1]])

    def __iter__(self) -> Iterator[bytes | None]:
        return (self[index] for index in range(len(self)))

    def to_list(self) -> list[bytes | None]:
        """All values, copied."""
        data = bytes(self.data)
        ends = self._ends.tolist()
        values: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
        if self.validity is None:
            return values
        return [value if self.validity[i >> 3] >> (i & 7) & 1 else None for i, value in enumerate(values)]

    def slice(self, first: int, last: int) -> BinaryColumn:
        """The values `first` to `last` (exclusive), sharing the bytes."""
        start, end = self._ends[first], self._ends[last]
        offsets = shift_offsets(self.offsets[4 * first : 4 * (last + 1)], start)
        validity = slice_bits(self.validity, first, last) if self.validity is not None else None
        return BinaryColumn(offsets, memoryview(self.data)[start:end], validity)

    def take(self, indexes: Sequence[int]) -> BinaryColumn:
        """The values at `indexes`, in that order."""
        return BinaryColumn.of([self[index] for index in indexes])
