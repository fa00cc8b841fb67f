"""Building a RecordBatch from columns, from records, or from a part of another batch.

Law: a batch is joined once, sealed once, and never changed again except for its stamp.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from linn.core.batch import flat_message, zstd_codec
from linn.core.batch.batch import (
    COLUMN_WIDTHS,
    CONTROL,
    DELAYS_MS,
    DUES_MS,
    ID_MASK,
    IDS,
    KEY_HASHES,
    NUMBER_BYTES,
    OFFSET_DELTAS,
    OFFSET_SPAN_MAX,
    ROUTE_INDEX,
    ROUTES,
    SEALED,
    STAMP_BYTES,
    TRANSACTIONAL,
    Codec,
    Format,
    RecordBatch,
    seal,
)
from linn.core.batch.body import VALUES_ONLY_FIELD_COUNT, Body, HeaderColumn, lay_out_body
from linn.core.batch.column import BinaryColumn, BuiltColumn, shift_offsets
from linn.core.batch.flat_message import DATA_AT, WORD, Buffer, Field, Parts
from linn.core.batch.gathered_body import GatheredBody
from linn.core.batch.key_hash import KEY_CACHED_BYTES_MAX, key_hash
from linn.core.batch.record import Headers, Record
from linn.core.batch.routes import NO_PAIR, Pair, encode_routes, encode_routes_cached, exact_kinds, pair_of
from linn.core.batch.steps import STEP_RECORDS, Steps, run_steps
from linn.core.errors.texts import counted
from linn.core.errors.tree import LimitExceeded, MessageInvalid

_SEALED_NUMBERS_AT = 52 - DATA_AT
_OFFSET_SPAN_AT = 120
_CODEC_AT = 88
_BODY_BYTES_AT = 92
_LOW = (1 << 64) - 1
HASHED_BYTES_MAX = 2 << 20
"""Limit of the keys that a broker hashes for one batch: 0.2 s where none of them has come before."""
LONG_KEYS_BYTES_MAX = 1 << 18
"""Limit of the keys among them whose hashes are not cached: 25 ms."""


@dataclass(slots=True)
class BatchColumns:
    """The content of a batch by column; None: all records have the default."""

    values: Sequence[bytes | None]
    timestamp_ms: int
    """Timestamp of the first record, and of all if `timestamps_ms` is None."""
    base_id: int
    """128 bits: record i has the id base_id + i if `ids` is None."""
    keys: Sequence[bytes | None] | None = None
    pairs: tuple[Pair, ...] = ()
    """The distinct (routing key, labels) pairs; empty if no record has either."""
    pair_index: Sequence[int] | None = None
    """Index into `pairs` for each record; only if there is more than one pair."""
    headers: Sequence[Headers] | None = None
    timestamps_ms: Sequence[int] | None = None
    priorities: Sequence[int] | None = None
    delays_ms: Sequence[int] | None = None
    ttls_ms: Sequence[int] | None = None
    dues_ms: Sequence[int] | None = None
    ids: Sequence[bytes] | None = None
    key_hashes: Sequence[int] | None = None
    """`partitioner.key_hash` of each key, for an exchange in front of topics with partitions."""


def build_batch(columns: BatchColumns, codec: Codec = Codec.NONE, *, sealed: bool = True) -> RecordBatch:
    """Make a batch of at least one record. A batch that is not `sealed` must be numbered or sealed before use.

    Raises:
        MessageInvalid: a value has a type or size that can't be carried, or a column another length than `values`.
        BatchTooLarge: a column or the body has 2^29 bytes or more.
    """
    count = len(columns.values)
    pairs = columns.pairs
    assert count > 0, "a batch holds at least one record"
    assert (columns.pair_index is not None) == (len(pairs) > 1), "an index tells more than one pair apart"
    _check_lengths(columns, count)
    encoder = encode_routes_cached if len(pairs) <= 16 else encode_routes
    try:
        body = body_of(columns.values, columns.keys, columns.timestamps_ms, columns.headers)
        fields: list[Field] = [
            encoder(pairs) if pairs else None,
            array("H", columns.pair_index).tobytes() if columns.pair_index is not None else None,
            _numbers("I", columns.key_hashes),
            _numbers("B", columns.priorities),
            _numbers("I", columns.delays_ms),
            _numbers("I", columns.ttls_ms),
            b"".join(columns.ids) if columns.ids is not None else None,
            None,
            _numbers("q", columns.dues_ms),
        ]
    except _UNFIT as error:
        raise MessageInvalid(f"a message can't be encoded: {error}") from error
    times = columns.timestamps_ms
    first_ms = times[0] if times is not None else columns.timestamp_ms
    max_ms = max(times) if times is not None else columns.timestamp_ms
    head = _Head(count, first_ms, max_ms, pair_count=len(pairs), base_id=columns.base_id, offset_span=count)
    try:
        return _assemble(head, fields, body, codec, sealed)
    except TypeError as error:
        raise MessageInvalid(f"a value is neither bytes nor None: {error}") from error


# A batch of one value: the head of the message, its numbers, the pointer of the body; the head of the body, the
# pointers of the values' offsets and bytes; the two offsets.
_SINGLE = struct.Struct("<IIIHH 36x IqqqIHHBBHIQQQI4x Q IIIHH QQ ii")
_SINGLE_BODY_BYTES = 40
"""Size of the body of an empty value."""
_SINGLE_WORDS = 16
"""Size of the message before its body, without the segment table."""
_BYTES_AT = 2 << 32 | 1
_OFFSETS_POINTER = 8 << 35 | _BYTES_AT | 1 << 2
_VALUES_POINTER = _BYTES_AT | 1 << 2


def build_single(value: bytes, timestamp_ms: int, base_id: int, *, sealed: bool = True) -> RecordBatch:
    """Build what `build_batch` makes of one record that is only a value within the size limit: the same bytes, faster.

    Raises MessageInvalid if the timestamp or the id does not fit its field.
    """
    size = len(value)
    padding = -size % WORD
    body_bytes = _SINGLE_BODY_BYTES + size + padding
    try:
        head = _SINGLE.pack(
            *(0, _SINGLE_WORDS + body_bytes // WORD, 0, NUMBER_BYTES // WORD, 1),
            *(1, timestamp_ms, timestamp_ms, 0, 0, 0, 0, Codec.NONE, Format.NATIVE, 0, body_bytes),
            *(base_id >> 64, base_id & _LOW, 0, 1),
            body_bytes << 35 | _BYTES_AT,
            *(0, body_bytes // WORD - 1, 0, 0, VALUES_ONLY_FIELD_COUNT),
            *(_OFFSETS_POINTER, size << 35 | _VALUES_POINTER),
            *(0, size),
        )
    except struct.error as error:
        raise MessageInvalid(f"a number of the batch does not fit its field: {error}") from error
    message = bytearray().join((head, value, bytes(padding)))
    if sealed:
        seal(message)
    return RecordBatch(message)


def build_marker(producer_id: int, epoch: int, number: int, timestamp_ms: int, *, is_commit: bool) -> RecordBatch:
    """The control batch of one empty record that marks the end of a producer's transaction in a log."""
    batch = build_single(b"", timestamp_ms, 0, sealed=False)
    batch.number(producer_id, epoch, int(is_commit), TRANSACTIONAL | CONTROL, number)
    return batch


_UNFIT = (TypeError, ValueError, OverflowError, AttributeError, struct.error)
"""Exceptions that Python raises when a value does not have the type or size of its column."""


def _check_lengths(columns: BatchColumns, count: int) -> None:
    for column in (
        columns.keys,
        columns.pair_index,
        columns.headers,
        columns.timestamps_ms,
        columns.priorities,
        columns.delays_ms,
        columns.ttls_ms,
        columns.dues_ms,
        columns.ids,
    ):
        if column is not None and len(column) != count:
            raise MessageInvalid(f"a column of {counted(len(column), 'item')} beside {counted(count, 'value')}")


def body_of(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: Sequence[int] | None,
    headers: Sequence[Headers] | None,
) -> Parts:
    """Lay out a native body. Raises BatchTooLarge, and Python's exceptions for values of a wrong type or size."""
    return lay_out_body(
        BuiltColumn(values),
        BuiltColumn(keys) if keys is not None else None,
        _numbers("q", timestamps_ms),
        HeaderColumn.of(headers) if headers is not None else None,
    )


def _numbers(kind: str, numbers: Sequence[int] | None) -> bytes | None:
    return array(kind, numbers).tobytes() if numbers is not None else None


@dataclass(slots=True)
class _Head:
    """The numbers that a producer seals, without the body's."""

    count: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    pair_count: int
    base_id: int
    offset_span: int
    producer_id: int = 0
    first_sequence: int = 0
    producer_epoch: int = 0
    attributes: int = 0
    transaction: int = 0

    def numbers(self, codec: int, body_format: int, body_bytes: int) -> bytes:
        try:
            sealed = SEALED.pack(
                self.count,
                self.first_timestamp_ms,
                self.max_timestamp_ms,
                self.producer_id,
                self.first_sequence,
                self.producer_epoch,
                self.attributes,
                codec,
                body_format,
                self.pair_count,
                body_bytes,
                self.base_id >> 64,
                self.base_id & _LOW,
                self.transaction,
                self.offset_span,
            )
        except struct.error as error:
            raise MessageInvalid(f"a number of the batch does not fit its field: {error}") from error
        assert _SEALED_NUMBERS_AT + len(sealed) == NUMBER_BYTES
        return bytes(_SEALED_NUMBERS_AT) + sealed


def _assemble(head: _Head, fields: Sequence[Field], body: Parts, codec: Codec, sealed: bool = True) -> RecordBatch:
    encoded = zstd_codec.compress(body.join()) if codec == Codec.ZSTD else body
    message = flat_message.encode(head.numbers(codec, Format.NATIVE, body.size), [encoded, *fields])
    if sealed:
        seal(message)
    return RecordBatch(message)


def build_from_records(records: Sequence[Record], *, base_id: int, codec: Codec = Codec.NONE) -> RecordBatch:
    """Make a batch of at least one record; records without an id get base_id + their index.

    Raises MessageInvalid.
    """
    distinct, pair_index = _distinct([pair_of(record.routing_key, record.labels) for record in records])
    plain = distinct == (NO_PAIR,)
    times = [record.timestamp_ms for record in records]
    ids = None
    if any(record.id is not None for record in records):
        ids = [(r.id.int if r.id is not None else (base_id + i) & ID_MASK).to_bytes(16) for i, r in enumerate(records)]
    columns = BatchColumns(
        values=[record.value for record in records],
        timestamp_ms=times[0],
        base_id=base_id,
        keys=[record.key for record in records] if any(record.key is not None for record in records) else None,
        pairs=() if plain else distinct,
        pair_index=pair_index if len(distinct) > 1 else None,
        headers=[record.headers for record in records] if any(record.headers for record in records) else None,
        timestamps_ms=times if any(time != times[0] for time in times) else None,
        priorities=_unless_all_zero([record.priority for record in records]),
        delays_ms=_unless_all_zero([record.delay_ms for record in records]),
        ttls_ms=_unless_all_zero([record.ttl_ms for record in records]),
        dues_ms=_unless_all_zero([record.due_ms for record in records]),
        ids=ids,
    )
    return build_batch(columns, codec)


def _distinct(pairs: Sequence[Pair]) -> tuple[tuple[Pair, ...], list[int]]:
    """The distinct pairs in order of appearance, and the index of each record's pair."""
    places: dict[tuple[Pair, tuple[object, ...]], int] = {}
    try:
        index = [places.setdefault((pair, exact_kinds((pair,))), len(places)) for pair in pairs]
    except TypeError as error:
        raise MessageInvalid(f"a routing key must be text, a label text, int, float or bool: {error}") from error
    return tuple(pair for pair, _ in places), index


def _unless_all_zero(numbers: list[int]) -> list[int] | None:
    return numbers if any(numbers) else None


def slice_batch(batch: RecordBatch, first: int, end: int) -> RecordBatch:
    """The part of a stamped batch that covers the offsets [first, end), which must include a record.

    The slice is a separate, uncompressed batch that covers exactly these offsets. It keeps the routes of the whole
    batch. No Python loop over records.

    Raises BatchMalformed.
    """
    base = batch.base_offset
    assert base <= first < end <= batch.end_offset
    if first == base and end == batch.end_offset:
        return batch
    return _stamped_as(batch, _sliced(batch, batch.index_at(first), batch.index_at(end), range(first, end)), first)


def _stamped_as(batch: RecordBatch, part: RecordBatch, base_offset: int) -> RecordBatch:
    part.stamp(base_offset, batch.append_time_ms, batch.durable_offset, batch.leader_epoch)
    return part


def _sliced(batch: RecordBatch, first: int, last: int, covers: range | None) -> RecordBatch:
    """Records `first` to `last` (exclusive), by index, covering the offsets `covers`; None: offsets without gaps."""
    assert 0 <= first < last <= batch.count
    deltas, span = (None, last - first) if covers is None else (_deltas(batch, first, last, covers), len(covers))
    columns: list[Buffer | None] = [
        column[width * first : width * last] if column is not None else None
        for column, width in list(zip(batch.raw_fields, COLUMN_WIDTHS, strict=True))[ROUTE_INDEX:]
    ]
    columns[OFFSET_DELTAS - ROUTE_INDEX] = deltas
    fields = [batch.raw_fields[ROUTES], *columns]
    return _part(batch, fields, batch.body().slice(first, last), last - first, batch.base_id + first, span=span)


def _deltas(batch: RecordBatch, first: int, last: int, covers: range) -> bytes | None:
    """The offsets of records `first` to `last`, by index, counted from the first of `covers`. No loop over records."""
    if len(covers) == last - first:
        return None
    known, shift = batch.offset_deltas, covers.start - batch.base_offset
    if known is None:
        return array("I", range(first - shift, last - shift)).tobytes()
    return shift_offsets(known.cast("B")[4 * first : 4 * last], shift)


def body_slice(batch: RecordBatch, first: int, last: int) -> RecordBatch:
    """A batch with the body columns of records `first` to `last` (exclusive), for reading a large batch in pieces.

    Raises BatchMalformed.
    """
    return _part(batch, (), batch.body().slice(first, last), last - first, batch.base_id + first, 0)


def take_batch(batch: RecordBatch, indexes: Sequence[int]) -> RecordBatch:
    """The records at ascending `indexes` as an unstamped batch, for an exchange with more than one destination.

    Adjacent records are sliced without a loop; others are gathered one by one.

    Raises BatchMalformed.
    """
    return run_steps(take_steps(batch, indexes))


def pick_batch(batch: RecordBatch, indexes: Sequence[int], covers: range) -> RecordBatch:
    """The records at ascending `indexes` of a stamped batch, as a batch that covers `covers` and keeps their offsets.

    `covers` includes their offsets; its other offsets are gaps.

    Raises BatchMalformed.
    """
    return run_steps(pick_steps(batch, indexes, covers))


def pick_steps(batch: RecordBatch, indexes: Sequence[int], covers: range) -> Steps[RecordBatch]:
    """Do what `pick_batch` does, in short steps."""
    assert batch.offset(indexes[0]) in covers
    assert batch.offset(indexes[-1]) in covers
    assert len(covers) <= OFFSET_SPAN_MAX
    return _stamped_as(batch, (yield from take_steps(batch, indexes, covers)), covers.start)


def widen_batch(batch: RecordBatch, covers: range) -> RecordBatch:
    """All records of a stamped batch, as a batch that covers `covers` and keeps their offsets. The body is not opened.

    Raises BatchMalformed.
    """
    if covers == range(batch.base_offset, batch.end_offset):
        return batch
    assert batch.offset(0) in covers
    assert batch.offset(batch.count - 1) in covers
    assert len(covers) <= OFFSET_SPAN_MAX
    deltas = _deltas(batch, 0, batch.count, covers)
    numbers = bytearray(batch.message[DATA_AT : DATA_AT + NUMBER_BYTES])
    struct.pack_into("<I", numbers, _OFFSET_SPAN_AT - DATA_AT, len(covers))
    fields = [*batch.raw_fields[:OFFSET_DELTAS], deltas, *batch.raw_fields[OFFSET_DELTAS + 1 :]]
    message = flat_message.encode(bytes(numbers), fields)
    seal(message)
    return _stamped_as(batch, RecordBatch(message), covers.start)


def take_steps(batch: RecordBatch, indexes: Sequence[int], covers: range | None = None) -> Steps[RecordBatch]:
    """Do what `take_batch` does, in short steps; with `covers` the records keep their offsets, which lie in it."""
    count = len(indexes)
    if indexes[-1] - indexes[0] + 1 == count:
        if covers is None and count == batch.count == batch.offset_span:
            return _unstamped(batch)
        return _sliced(batch, indexes[0], indexes[-1] + 1, covers)
    # Their offsets have a gap, so that `covers`, if given, has more offsets than these records.
    base, span = (covers.start, len(covers)) if covers is not None else (None, count)
    if count <= STEP_RECORDS and batch.body().headers is None:
        some = list(indexes)
        taken = _taken_columns(batch, some, base)
        return _part(batch, taken, batch.body().take(some), count, batch.base_id, span=span)
    pieces: list[list[Buffer | None]] = []
    body = GatheredBody()
    for piece in batch.body().pieces(indexes, STEP_RECORDS):
        some = list(piece)
        pieces.append(_taken_columns(batch, some, base))
        body.add(batch.body().take(some))
        yield
    fields = [batch.raw_fields[ROUTES], *map(_joined, zip(*[piece[1:] for piece in pieces], strict=True))]
    yield
    return _part(batch, fields, body.joined(), count, batch.base_id, span=span)


def _joined(pieces: tuple[Buffer | None, ...]) -> bytes | None:
    """Join the pieces of a column, which are all present or all None."""
    return None if pieces[0] is None else b"".join(pieces)  # type: ignore[arg-type]


def _taken_columns(batch: RecordBatch, indexes: Sequence[int], base_offset: int | None) -> list[Buffer | None]:
    """The fields after the body: routes unchanged, columns for these records; their offsets from `base_offset` on."""
    fields: list[Buffer | None] = [batch.raw_fields[ROUTES]]
    for column, width in list(zip(batch.raw_fields, COLUMN_WIDTHS, strict=True))[ROUTE_INDEX:]:
        taken = None if column is None else b"".join([column[width * i : width * i + width] for i in indexes])
        fields.append(taken)
    if fields[IDS - ROUTES] is None:  # Ids that count up from a base are no longer dense.
        fields[IDS - ROUTES] = _taken_ids(batch.base_id, indexes)
    deltas = None if base_offset is None else _taken_deltas(batch, indexes, base_offset)
    fields[OFFSET_DELTAS - ROUTES] = deltas
    return fields


def _taken_deltas(batch: RecordBatch, indexes: Sequence[int], base_offset: int) -> bytes:
    shift, deltas = batch.base_offset - base_offset, batch.offset_deltas
    if deltas is None:
        return array("I", [index + shift for index in indexes]).tobytes()
    return array("I", [deltas[index] + shift for index in indexes]).tobytes()


def _taken_ids(base_id: int, indexes: Sequence[int]) -> bytes:
    high, low = base_id >> 64, base_id & _LOW
    if low + indexes[-1] > _LOW:
        return b"".join([((base_id + index) & ID_MASK).to_bytes(16) for index in indexes])
    # Big-endian, high half first: two columns of halves, combined without making a number for each id.
    ids = array("Q", bytes(16 * len(indexes)))
    ids[::2] = array("Q", [high]) * len(indexes)
    ids[1::2] = array("Q", [low + index for index in indexes])
    ids.byteswap()
    return ids.tobytes()


def edit_batch(
    batch: RecordBatch,
    *,
    pairs: Sequence[Pair] | None = None,
    values: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
) -> RecordBatch:
    """The same records with other columns, as a new, unstamped, uncompressed batch; `batch` is not changed.

    Args:
        batch: the new one has linn's own format, whatever the format of this one.
        pairs: for `batch.pairs()`, one for one, so that each record's pair changes without a loop over records.
        values: one per record.
        headers: one per record.

    Raises:
        BatchMalformed: the batch can't be read. MessageInvalid: a new column can't be encoded.
    """
    body, fields, pair_count = batch.body(), list[Buffer | None](batch.raw_fields[ROUTES:]), batch.pair_count
    try:
        if pairs is not None:
            assert len(pairs) == len(batch.pairs()), "each pair has one in its place"
            fields[0], pair_count = encode_routes(pairs), len(pairs)
        edited = Body(
            body.values if values is None else BinaryColumn.of(values),
            body.keys,
            body.timestamps_ms,
            body.headers if headers is None else HeaderColumn.of(headers),
        )
    except _UNFIT as error:
        raise MessageInvalid(f"a message can't be encoded: {error}") from error
    assert all(column is None or len(column) == batch.count for column in (values, headers)), "one per record"
    return _part(batch, fields, edited, batch.count, batch.base_id, pair_count, batch.offset_span)


def with_key_hashes(batch: RecordBatch) -> RecordBatch:
    """The same batch with a column of key hashes, if any record has a key. The producer's numbers stay.

    Raises BatchMalformed, FormatUnknown: the batch can't be read. LimitExceeded: too many bytes would be hashed.
    """
    keys = batch.body().keys
    if keys is None:
        return batch
    size, found = len(keys.data), keys.to_list() if len(keys.data) <= HASHED_BYTES_MAX else ()
    long = sum([len(key) for key in found if key is not None and len(key) > KEY_CACHED_BYTES_MAX])
    if size > HASHED_BYTES_MAX or long > LONG_KEYS_BYTES_MAX:
        raise LimitExceeded(
            f"{size} bytes of keys come without their hashes: in one batch up to {HASHED_BYTES_MAX} may, and of keys "
            f"over {KEY_CACHED_BYTES_MAX} bytes up to {LONG_KEYS_BYTES_MAX}"
        )
    hashes = array("I", map(key_hash, found)).tobytes()
    fields = [*batch.raw_fields[:KEY_HASHES], hashes, *batch.raw_fields[KEY_HASHES + 1 :]]
    message = flat_message.encode(bytes(batch.message[DATA_AT : DATA_AT + NUMBER_BYTES]), fields)
    seal(message)
    made = RecordBatch(message)
    made.opener, made.messages_within = batch.opener, batch.messages_within
    return made


def with_dues(batch: RecordBatch, now_ms: int) -> RecordBatch:
    """The same batch with a time for each record that has a delay, counted from `now_ms`, in place of the delays.

    The body is not opened, and the producer's numbers stay.
    """
    delays, dues = batch.delays_ms, batch.dues_ms
    if delays is None:
        return batch
    times = [now_ms + delay if delay else 0 for delay in delays]
    if dues is not None:
        times = [due or time for due, time in zip(dues, times, strict=True)]
    fields = list(batch.raw_fields)
    fields[DELAYS_MS], fields[DUES_MS] = None, memoryview(array("q", times)).cast("B")
    message = flat_message.encode(bytes(batch.message[DATA_AT : DATA_AT + NUMBER_BYTES]), fields)
    seal(message)
    made = RecordBatch(message)
    made.opener, made.messages_within = batch.opener, batch.messages_within
    return made


def wrap_body(
    format: int, body: Buffer, count: int, *, base_id: int, first_timestamp_ms: int, max_timestamp_ms: int
) -> RecordBatch:
    """Make a batch around a body of another format, with `count` records without routing key and labels.

    Raises MessageInvalid if a number does not fit its field; BatchTooLarge.
    """
    head = _Head(count, first_timestamp_ms, max_timestamp_ms, pair_count=0, base_id=base_id, offset_span=count)
    message = flat_message.encode(head.numbers(Codec.NONE, format, len(body)), [body])
    seal(message)
    return RecordBatch(message)


def with_body(batch: RecordBatch, format: int, body: Buffer) -> RecordBatch:
    """A stamped, uncompressed batch with the same records in another format: only the body and the CRC differ.

    Raises BatchTooLarge.
    """
    numbers = bytearray(batch.message[DATA_AT : DATA_AT + NUMBER_BYTES])
    struct.pack_into("<BB", numbers, _CODEC_AT - DATA_AT, Codec.NONE, format)
    struct.pack_into("<I", numbers, _BODY_BYTES_AT - DATA_AT, len(body))
    message = flat_message.encode(bytes(numbers), [body, *batch.raw_fields[ROUTES:]])
    seal(message)
    return RecordBatch(message)


def _unstamped(batch: RecordBatch) -> RecordBatch:
    message = bytearray(batch.message)
    message[DATA_AT : DATA_AT + STAMP_BYTES] = bytes(STAMP_BYTES)
    return RecordBatch(message)


def _part(
    batch: RecordBatch,
    fields: Sequence[Buffer | None],
    body: Body,
    count: int,
    base_id: int,
    pair_count: int | None = None,
    span: int | None = None,
) -> RecordBatch:
    """Make a batch of `fields`, which come after the body, and the numbers of `batch`."""
    times = body.timestamps_ms
    first_ms, max_ms = batch.first_timestamp_ms, batch.first_timestamp_ms
    if times is not None:
        numbers = memoryview(times).cast("q")
        first_ms, max_ms = numbers[0], max(numbers)
    head = _Head(
        count,
        first_ms,
        max_ms,
        pair_count=batch.pair_count if pair_count is None else pair_count,
        base_id=base_id & ID_MASK,
        producer_id=batch.producer_id,
        first_sequence=batch.first_sequence,
        producer_epoch=batch.producer_epoch,
        offset_span=count if span is None else span,
        attributes=batch.attributes,
        transaction=batch.transaction,
    )
    return _assemble(head, fields, body.lay_out(), Codec.NONE)
