"""RecordBatch: the unit of work, the same bytes on the wire and on disk. The layout is in schema/batch.capnp.

Laws: a batch is read through views and never copied whole; the data that a broker needs (offsets, routes, limits) is
read without opening the body; `stamp` changes only bytes that `crc` does not cover, and seals them with a CRC of their
own; every byte of a stored batch is covered by one of the two.

See also `body` (columns), `routes` (routing keys and labels) and `builder` (building a batch).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Protocol
from uuid import UUID

from crc32c import crc32c

from linn.core.batch import flat_message, zstd_codec
from linn.core.batch.body import Body, holds_values_only
from linn.core.batch.column import never_decrease
from linn.core.batch.flat_message import DATA_AT, WORD, Buffer
from linn.core.batch.record import Headers, Labels, Record
from linn.core.batch.routes import NO_PAIR, Pair, decode_routes
from linn.core.errors.tree import BatchCorrupt, BatchMalformed, BatchTooLarge

_STAMP = struct.Struct("<qqqi")
_STAMP_END = DATA_AT + _STAMP.size  # 44
_U32 = struct.Struct("<I")
_STAMP_CRC_AT = _STAMP_END
_CRC_AT = 48
STAMP_BYTES = _CRC_AT - DATA_AT
"""Bytes of the stamp and its CRC."""
_PRODUCER_AT = 72
_PRODUCER = struct.Struct("<qIHH")
_TRANSACTION_AT = 112
_SEALED_AT = 52
SEALED = struct.Struct("<IqqqIHHBBHIQQQI4x")
"""Layout of the numbers after `crc`, beginning with `count`."""
_HEADER = struct.Struct("<IIIHH qqqiIIIqqqIHHBBHIQQQI4x")
"""Layout of the message's head and of all numbers."""
NUMBER_BYTES = _HEADER.size - DATA_AT
_NUMBER_WORDS = NUMBER_BYTES // 8
FIELD_COUNT = 10
BODY, ROUTES, ROUTE_INDEX, KEY_HASHES, PRIORITIES, DELAYS_MS, TTLS_MS, IDS, OFFSET_DELTAS, DUES_MS = range(FIELD_COUNT)
"""Indexes of the Data fields."""
BATCH_BYTES_MIN = DATA_AT + NUMBER_BYTES + WORD
"""Size of a message whose only pointer is the body's."""
OFFSET_SPAN_MAX = (1 << 31) - 1
assert NUMBER_BYTES == 112
assert SEALED.size + _SEALED_AT == DATA_AT + NUMBER_BYTES
COLUMN_WIDTHS = (0, 0, 2, 4, 1, 4, 4, 16, 4, 8)
"""Bytes per record of each field; the first two, body and routes, are no columns."""

ID_MASK = (1 << 128) - 1


class Codec(IntEnum):
    """Compression of the body."""

    NONE = 0
    ZSTD = 1


class Format(IntEnum):
    """Encoding of the body. Plugins use other numbers, see `format`."""

    NATIVE = 0


class Attribute(IntFlag):
    """Bits of `attributes`."""

    TRANSACTIONAL = 1
    """The batch belongs to the producer's transaction whose number is in `transaction`."""
    CONTROL = 2
    """The batch is the marker that ends a transaction in its log; `first_sequence` is 1 for a commit."""
    SCATTERED = 4
    """The broker chose the batch's partition, so its producer's sequences have gaps there."""


TRANSACTIONAL, CONTROL = int(Attribute.TRANSACTIONAL), int(Attribute.CONTROL)
SCATTERED = int(Attribute.SCATTERED)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits that `RecordBatch.verify` enforces."""

    batch_bytes_max: int = 8 << 20
    """Limit of the message, and of its body when decompressed: eight of the largest messages."""
    records_max: int = 1 << 20


# Plain numbers for the hot path: a comparison with an enum's member costs several times as much.
_NATIVE = int(Format.NATIVE)
_U64 = struct.Struct("<Q")
_BYTES_NEXT = 2 << 32 | 1
"""The pointer to bytes that directly follow it, without their number."""
_PLAIN_BODY_AT = BATCH_BYTES_MIN
_ROOT_SIZE_AT = 12
_PLAIN_ROOT_SIZE = struct.pack("<HH", NUMBER_BYTES // WORD, 1)
_UNCOMPRESSED = int(Codec.NONE)
_NO_COLUMNS: list[None] = [None] * 6
"""The broker's columns of a batch that has none of them."""


class BodyOpener(Protocol):
    """The part of `Formats` that opens bodies which are not native."""

    def open_body(self, batch: RecordBatch) -> Body:
        """Decode the body of a batch of another format. Raises FormatUnknown, BatchMalformed."""


class RecordBatch:
    """A view of one batch's bytes. The numbers are read once, columns when needed.

    The log stamps `base_offset`, `append_time_ms`, `durable_offset` and `leader_epoch`. `end_offset` is the offset
    after the `offset_span` offsets that the batch covers; a batch with gaps covers more offsets than it has records.
    `size` is in bytes.
    """

    __slots__ = (
        "_body",
        "_deltas",
        "_pairs",
        "_views",
        "append_time_ms",
        "attributes",
        "base_id",
        "base_offset",
        "body_bytes",
        "codec",
        "count",
        "crc",
        "durable_offset",
        "first_sequence",
        "first_timestamp_ms",
        "format",
        "is_plain",
        "leader_epoch",
        "max_timestamp_ms",
        "message",
        "messages_within",
        "offset_span",
        "opener",
        "pair_count",
        "producer_epoch",
        "producer_id",
        "size",
        "stamp_crc",
        "transaction",
    )

    def __init__(self, message: Buffer) -> None:
        """Read the numbers of a message. Other parts are checked when they are read, or by `verify`.

        Raises BatchMalformed.
        """
        view = message if type(message) is memoryview else memoryview(message)
        self.message = view
        self.size = len(view)
        if self.size < BATCH_BYTES_MIN:
            raise BatchMalformed(f"{self.size} bytes hold no record batch")
        self.is_plain = False
        """Whether `verify` found only values, without compression."""
        self._views: list[memoryview | None] | None = None
        self._body: Body | None = None
        self._deltas: memoryview | None = None
        self.messages_within: int | None = None
        """The smallest limit on a message's size that all its messages were found to respect; None before any check."""
        self._pairs: list[Pair] | None = None
        self.opener: BodyOpener | None = None
        """Opens a body in another format; None: only its size is known."""
        (
            segments,
            words,
            root,
            number_words,
            _,
            self.base_offset,
            self.append_time_ms,
            self.durable_offset,
            self.leader_epoch,
            self.stamp_crc,
            self.crc,
            self.count,
            self.first_timestamp_ms,
            self.max_timestamp_ms,
            self.producer_id,
            self.first_sequence,
            self.producer_epoch,
            self.attributes,
            self.codec,
            self.format,
            self.pair_count,
            self.body_bytes,
            id_high,
            id_low,
            self.transaction,
            self.offset_span,
        ) = _HEADER.unpack_from(view)
        if segments or root or number_words < _NUMBER_WORDS or 8 + 8 * words != self.size:
            flat_message.check_head(view, NUMBER_BYTES)  # Raises the specific error.
        self.base_id: int = id_high << 64 | id_low

    @property
    def _fields(self) -> list[memoryview | None]:
        """The Data fields. Raises BatchMalformed."""
        if self._views is None:
            self._views = flat_message.decode_fields(self.message, FIELD_COUNT)
        return self._views

    def forget_views(self) -> None:
        """Drop the decoded views, for a holder that keeps the batch; reading decodes it again."""
        self._views = self._body = self._pairs = self._deltas = None

    def forget_body(self) -> None:
        """Drop the decoded body, which may be many times larger than the compressed one; reading decodes it again."""
        self._body = None

    # --- stamping and checking ---

    @property
    def end_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return int(self.base_offset) + int(self.offset_span)

    def stamp(self, base_offset: int, append_time_ms: int, durable_offset: int = 0, leader_epoch: int = 0) -> None:
        """Write the leader's numbers in place. The message must be writable."""
        view = self.message
        _STAMP.pack_into(view, DATA_AT, base_offset, append_time_ms, durable_offset, leader_epoch)
        self.stamp_crc = crc32c(view[DATA_AT:_STAMP_END])
        _U32.pack_into(view, _STAMP_CRC_AT, self.stamp_crc)
        self.base_offset, self.append_time_ms = base_offset, append_time_ms
        self.durable_offset, self.leader_epoch = durable_offset, leader_epoch

    def seal(self) -> None:
        """Write the CRC of the bytes that a producer seals. The message must be writable."""
        view = self.message
        self.crc = sealed_crc(view)
        _U32.pack_into(view, _CRC_AT, self.crc)

    def number(self, producer_id: int, epoch: int, first_sequence: int, attributes: int, transaction: int = 0) -> None:
        """Write a producer's numbers in place, and seal the batch. The message must be writable."""
        if transaction != self.transaction:
            _U64.pack_into(self.message, _TRANSACTION_AT, transaction)
            self.transaction = transaction
        _PRODUCER.pack_into(self.message, _PRODUCER_AT, producer_id, first_sequence, epoch, attributes)
        self.producer_id, self.producer_epoch = producer_id, epoch
        self.first_sequence, self.attributes = first_sequence, attributes
        self.seal()

    def check_crc(self) -> None:
        """Check the bytes that the producer sealed. Raises BatchCorrupt if they have changed."""
        if sealed_crc(self.message) != self.crc:
            raise BatchCorrupt(f"the CRC of a batch of {self.size} bytes does not match")

    def check_stored(self) -> None:
        """Check both CRCs of bytes read from a disk. Raises BatchCorrupt."""
        if crc32c(self.message[DATA_AT:_STAMP_END]) != self.stamp_crc:
            raise BatchCorrupt("the CRC of a batch's stamp does not match")
        self.check_crc()

    def verify(self, limits: BatchLimits) -> None:
        """Check everything that a broker relies on, at batch cost, in bytes from a client.

        Raises:
            BatchTooLarge: over a limit, before or after decompression.
            BatchCorrupt: the CRC does not match.
            BatchMalformed: sizes, counts or columns do not agree, or the batch has gaps, which a producer's batch never
                has.
        """
        if self.size > limits.batch_bytes_max:
            raise BatchTooLarge(f"a batch of {self.size} bytes, more than {limits.batch_bytes_max}")
        # Before the numbers are judged: a damaged number is corruption, which a producer may retry.
        view = self.message
        if crc32c(view[_SEALED_AT:], crc32c(view[:DATA_AT])) != self.crc:
            self.check_crc()  # Raises the specific error.
        if self.body_bytes > limits.batch_bytes_max:
            raise BatchTooLarge(f"a batch whose body has {self.body_bytes} bytes, more than {limits.batch_bytes_max}")
        if not 0 < self.count <= limits.records_max:
            raise BatchMalformed(f"a batch says that it holds {self.count} records")
        if self.offset_span != self.count:
            raise BatchMalformed(f"a producer's batch of {self.count} records covers {self.offset_span} offsets")
        self.is_plain = self._holds_values_only()
        if not self.is_plain:
            self._check_columns()
            self._check_body()

    def _holds_values_only(self) -> bool:
        """Whether the batch is valid and has an uncompressed body of values alone, like most batches."""
        body_bytes = self.body_bytes
        return (
            self.message[_ROOT_SIZE_AT:DATA_AT] == _PLAIN_ROOT_SIZE
            # Right after its pointer, up to the end of the message, padded to whole words.
            and _U64.unpack_from(self.message, DATA_AT + NUMBER_BYTES)[0] == body_bytes << 35 | _BYTES_NEXT
            and _PLAIN_BODY_AT + body_bytes == self.size
            and not (self.codec or self.format or self.pair_count)
            and holds_values_only(self.message, _PLAIN_BODY_AT, self.size, self.count)
        )

    def _check_columns(self) -> None:
        fields = self._fields
        routes, index = fields[ROUTES], fields[ROUTE_INDEX]
        if fields[BODY] is None:
            raise BatchMalformed("a batch has no body")
        if fields[OFFSET_DELTAS] is not None:
            raise BatchMalformed("a producer's batch says which offsets its records have")
        if (routes is not None) != (self.pair_count > 0):
            raise BatchMalformed("a batch's routes and their number do not agree")
        if (index is not None) != (self.pair_count > 1):
            raise BatchMalformed("a batch's route index and the number of its pairs do not agree")
        if fields[ROUTE_INDEX:OFFSET_DELTAS] != _NO_COLUMNS:
            for place in range(ROUTE_INDEX, OFFSET_DELTAS):
                self._column(place)
            if index is not None and max(_cast(index, "H") or (0,)) >= self.pair_count:
                raise BatchMalformed("a record names a (routing key, labels) pair that the batch does not hold")
        if fields[DUES_MS] is not None:
            self._column(DUES_MS)

    def _column(self, place: int) -> memoryview | None:
        """A field with one item per record. Its length is checked here, so that readers need not call `verify`."""
        column = self._fields[place]
        if column is not None and len(column) != COLUMN_WIDTHS[place] * self.count:
            raise BatchMalformed(f"column {place} has {len(column)} bytes, which does not fit {self.count} records")
        return column

    def _check_body(self) -> None:
        body = self._fields[BODY]
        assert body is not None
        if self.codec == _UNCOMPRESSED:
            if len(body) != self.body_bytes:
                raise BatchMalformed("a batch's body is not of the size that it says")
            if self.format == _NATIVE:
                Body.check(body, self.count)
        elif self.codec == Codec.ZSTD:
            zstd_codec.check_frame(body, self.body_bytes)
        else:
            raise BatchMalformed(f"codec {self.codec} is unknown")

    # --- columns for the broker ---

    @property
    def routes(self) -> memoryview | None:
        """The encoded distinct (routing key, labels) pairs; None if no record has either."""
        return self._fields[ROUTES]

    @property
    def route_index(self) -> memoryview | None:
        """UInt16 per record: the index of its pair. None if there is at most one pair."""
        return _cast(self._column(ROUTE_INDEX), "H")

    @property
    def key_hashes(self) -> memoryview | None:
        """UInt32 per record."""
        return _cast(self._column(KEY_HASHES), "I")

    @property
    def priorities(self) -> memoryview | None:
        """UInt8 per record; None: all 0."""
        return self._column(PRIORITIES)

    @property
    def ids(self) -> memoryview | None:
        """16 bytes per record; None: counted up from `base_id`."""
        return self._column(IDS)

    @property
    def delays_ms(self) -> memoryview | None:
        """UInt32 per record; None: all 0."""
        return _cast(self._column(DELAYS_MS), "I")

    @property
    def ttls_ms(self) -> memoryview | None:
        """UInt32 per record, 0 for no limit; None: all 0."""
        return _cast(self._column(TTLS_MS), "I")

    @property
    def dues_ms(self) -> memoryview | None:
        """Int64 per record: the time before which it is not delivered, in ms since 1970; 0 for none. None: all 0."""
        return _cast(self._column(DUES_MS), "q")

    @property
    def is_timed(self) -> bool:
        """Whether the batch has a column of delays, times or TTLs; of most batches the size of the message's root
        tells.
        """
        if self.message[_ROOT_SIZE_AT:DATA_AT] == _PLAIN_ROOT_SIZE:
            return False
        fields = self._views or self._fields  # Most often they are decoded: a call less.
        return fields[DELAYS_MS] is not None or fields[TTLS_MS] is not None or fields[DUES_MS] is not None

    @property
    def raw_fields(self) -> Sequence[memoryview | None]:
        """The Data fields in schema order, as views of the message."""
        return self._views or self._fields

    def pairs(self) -> list[Pair]:
        """The distinct pairs, decoded; one empty pair if there are none. Raises BatchMalformed."""
        if self._pairs is None:
            routes, index = self._fields[ROUTES], self.route_index
            pairs = decode_routes(routes, self.pair_count) if routes is not None else [NO_PAIR]
            if index is None and len(pairs) != 1:
                raise BatchMalformed("a batch does not say which of its (routing key, labels) pairs its records have")
            if index is not None and max(index, default=0) >= len(pairs):
                raise BatchMalformed("a record names a (routing key, labels) pair that the batch does not hold")
            self._pairs = pairs
        return self._pairs

    # --- offsets ---

    @property
    def offset_deltas(self) -> memoryview | None:
        """UInt32 per record, ascending: its offset minus `base_offset`. None: there are no gaps.

        Raises BatchMalformed.
        """
        if self.offset_span == self.count:
            return None
        if self._deltas is None:
            deltas = self._column(OFFSET_DELTAS)
            if deltas is None or not 0 < self.count < self.offset_span <= OFFSET_SPAN_MAX:
                raise BatchMalformed(f"a batch of {self.count} records covers {self.offset_span} offsets")
            numbers = deltas.cast("I")
            if not never_decrease(deltas, step_min=1) or numbers[-1] >= self.offset_span:
                raise BatchMalformed("a batch's offsets do not ascend, or exceed its span")
            self._deltas = numbers
        return self._deltas

    def offset(self, index: int) -> int:
        """The offset of one record. Raises BatchMalformed."""
        deltas = self.offset_deltas
        return int(self.base_offset) + (index if deltas is None else deltas[index])

    def index_at(self, offset: int) -> int:
        """The number of records before `offset`, which is the index of the first record at or after it.

        Raises BatchMalformed.
        """
        deltas = self.offset_deltas
        if deltas is None:
            return int(min(max(0, offset - self.base_offset), self.count))
        return bisect_left(deltas, offset - self.base_offset)

    # --- columns for readers ---

    def body(self) -> Body:
        """The columns, decompressed if needed, with all offsets into them, and the records' offsets, checked.

        Raises BatchMalformed; FormatUnknown: no plugin reads its format.
        """
        if self._body is None:
            if self.format != Format.NATIVE and self.opener is None:
                raise BatchMalformed(f"the body is of format {self.format}, which this reader does not know")
            if (self._fields[OFFSET_DELTAS] is None) != (self.offset_deltas is None):
                raise BatchMalformed("a batch without gaps says which offsets its records have")
            if self.format == Format.NATIVE or self.opener is None:
                body = Body.decode(self.body_data(), self.count)
            else:
                body = self.opener.open_body(self)
            body.check_ascending()
            self._body = body
        return self._body

    def body_data(self) -> memoryview:
        """The bytes of the body in its own format, decompressed if needed. Raises BatchMalformed."""
        data = self._fields[BODY]
        if data is None:
            raise BatchMalformed("a batch has no body")
        if self.codec == Codec.NONE:
            return data
        if self.codec != Codec.ZSTD:
            raise BatchMalformed(f"codec {self.codec} is unknown")
        return memoryview(zstd_codec.decompress(data, self.body_bytes))

    def pair(self, index: int) -> Pair:
        """The (routing key, labels) of one record."""
        pairs, which = self.pairs(), self.route_index
        return pairs[which[index] if which is not None else 0]

    def timestamp_ms(self, index: int) -> int:
        """The timestamp of one record."""
        times = self.body().timestamps_ms
        return int(memoryview(times).cast("q")[index]) if times is not None else int(self.first_timestamp_ms)

    def id(self, index: int) -> UUID:
        """The id of one record."""
        ids = self._column(IDS)
        if ids is not None:
            return UUID(bytes=bytes(ids[16 * index : 16 * index + 16]))
        return UUID(int=(self.base_id + index) & ID_MASK)

    def key(self, index: int) -> bytes | None:
        """The key of one record."""
        keys = self.body().keys
        return keys[index] if keys is not None else None

    def value(self, index: int) -> bytes | None:
        """The value of one record."""
        return self.body().values[index]

    def headers(self, index: int) -> Headers:
        """The headers of one record."""
        column = self.body().headers
        return column[index] if column is not None else ()

    def labels(self, index: int) -> Labels:
        """The labels of one record."""
        return dict(self.pair(index).labels)

    def record(self, index: int) -> Record:
        """One record, copied out."""
        routing_key, labels = self.pair(index)
        priorities, delays, ttls, dues = self.priorities, self.delays_ms, self.ttls_ms, self.dues_ms
        return Record(
            value=self.value(index),
            key=self.key(index),
            routing_key=routing_key,
            labels=dict(labels),
            headers=self.headers(index),
            id=self.id(index),
            timestamp_ms=self.timestamp_ms(index),
            priority=priorities[index] if priorities is not None else 0,
            delay_ms=delays[index] if delays is not None else 0,
            ttl_ms=ttls[index] if ttls is not None else 0,
            due_ms=dues[index] if dues is not None else 0,
        )

    def records(self) -> list[Record]:
        """All records, copied out. For tests and tools: it loops over records."""
        return [self.record(index) for index in range(self.count)]

    def __len__(self) -> int:
        return int(self.count)

    def __repr__(self) -> str:
        return f"<RecordBatch {self.base_offset}..{self.end_offset} {self.size} bytes>"


def sealed_crc(message: memoryview) -> int:
    """The CRC-32C of the bytes that a producer seals: all but the stamp and the CRC itself."""
    return crc32c(message[_SEALED_AT:], crc32c(message[:DATA_AT]))


def seal(message: bytearray) -> None:
    """Write the CRC of a finished message into its field."""
    with memoryview(message) as view:
        _U32.pack_into(message, _CRC_AT, sealed_crc(view))


def _cast(field: memoryview | None, kind: str) -> memoryview | None:
    return field.cast(kind) if field is not None else None  # type: ignore[call-overload]
