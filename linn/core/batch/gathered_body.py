"""A body gathered from pieces of another batch, each in a short step."""

from __future__ import annotations

from array import array

from linn.core.batch.body import Body, HeaderColumn
from linn.core.batch.column import BinaryColumn
from linn.core.batch.flat_message import Buffer


class GatheredOffsets:
    """One column of Int32 offsets, gathered from pieces that each begin with 0."""

    def __init__(self) -> None:
        self._ends = array("i", (0,))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, offsets: Buffer) -> None:
        """Append a piece's offsets."""
        base = self._ends[-1]
        ends = memoryview(offsets).cast("B").cast("i").tolist()
        self._ends.extend([base + end for end in ends[1:]])

    def joined(self) -> bytes:
        """All offsets as bytes."""
        return self._ends.tobytes()


class GatheredColumn:
    """One column of values, gathered from pieces."""

    def __init__(self) -> None:
        self._offsets = GatheredOffsets()
        self._data: list[Buffer] = []
        self._validity: bytearray | None = None

    def add(self, piece: BinaryColumn) -> None:
        """Append a piece's values."""
        count, more = len(self._offsets), len(piece)
        self._offsets.add(piece.offsets)
        self._data.append(piece.data)
        if piece.validity is not None and self._validity is None:
            self._validity = bytearray(_ones(count).to_bytes(-(-count // 8), "little"))
        if self._validity is not None:
            valid = _ones(more) if piece.validity is None else int.from_bytes(piece.validity, "little")
            shift = count % 8
            last = self._validity.pop() if shift else 0
            self._validity += (last | valid << shift).to_bytes(-(-(shift + more) // 8), "little")

    def joined(self) -> BinaryColumn:
        """All values as one column."""
        return BinaryColumn(self._offsets.joined(), b"".join(self._data), self._validity)


def _ones(count: int) -> int:
    return (1 << count) - 1


class GatheredHeaders:
    """The headers of records, gathered from pieces."""

    def __init__(self) -> None:
        self._offsets = GatheredOffsets()
        self._names = GatheredColumn()
        self._values = GatheredColumn()

    def add(self, piece: HeaderColumn) -> None:
        """Append a piece's headers."""
        self._offsets.add(piece.offsets)
        self._names.add(piece.names)
        self._values.add(piece.values)

    def joined(self) -> HeaderColumn:
        """All headers as one column."""
        return HeaderColumn(self._offsets.joined(), self._names.joined(), self._values.joined())


class GatheredBody:
    """A body gathered from pieces that have the same columns."""

    def __init__(self) -> None:
        self._values = GatheredColumn()
        self._keys: GatheredColumn | None = None
        self._times: list[Buffer] = []
        self._headers: GatheredHeaders | None = None

    def add(self, piece: Body) -> None:
        """Append a piece."""
        self._values.add(piece.values)
        if piece.keys is not None:
            self._keys = self._keys or GatheredColumn()
            self._keys.add(piece.keys)
        if piece.timestamps_ms is not None:
            self._times.append(piece.timestamps_ms)
        if piece.headers is not None:
            self._headers = self._headers or GatheredHeaders()
            self._headers.add(piece.headers)

    def joined(self) -> Body:
        """All pieces as one body."""
        return Body(
            self._values.joined(),
            self._keys.joined() if self._keys is not None else None,
            b"".join(self._times) if self._times else None,
            self._headers.joined() if self._headers is not None else None,
        )
