"""Formats of a batch's body: linn's own, number 0, and the formats of other protocols, which plugins read and write.

Laws: a batch is stored and delivered with the body that its producer sent. A body is translated only to separate its
records, or for a reader that does not accept its format; the numbers and columns of the batch do not change.
Translations of stored batches are cached, up to `CACHE_BYTES_MAX`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from linn.core.batch.batch import Format, RecordBatch
from linn.core.batch.body import Body
from linn.core.batch.builder import body_of, with_body
from linn.core.batch.record import Headers
from linn.core.errors.texts import counted, one_line
from linn.core.errors.tree import BatchError, BatchMalformed, BatchTooLarge, FormatUnknown

NATIVE_ONLY = (int(Format.NATIVE),)
"""The formats of a reader that names none."""
FORMATS_MAX = 255
RECORDS_MAX = 16_384
"""Limit of the records of a batch in another format: they are decoded or encoded one by one, without a pause, in 0.1
s."""
WEIGHT_MAX = 2 * RECORDS_MAX
"""Limit of the records and headers of a batch decoded or encoded together, for the same reason: 0.3 s."""
CACHE_BYTES_MAX = 32 << 20
"""Limit of the cached translations: one of the largest batches, or the batches that hundreds of readers use now."""
BODY_GROWTH_MAX = 4
"""Limit of a translated body, as a multiple of the largest batch: columns take up to 24 bytes for a record of 7."""

Owner = object
"""The log of a batch, which distinguishes its offsets from other logs'; hashable."""


@dataclass(slots=True)
class BodyColumns:
    """The records of a body, by column; None: no record has a value."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    timestamps_ms: Sequence[int] | None = None
    """None: each record has the batch's `first_timestamp_ms`."""
    headers: Sequence[Headers] | None = None


class BodyFormat(Protocol):
    """The codec of a format: pure functions of their arguments, called in the broker's loop.

    Routing keys, labels, ids and offsets are columns of the batch, not of its body.
    """

    def check(self, body: memoryview, count: int, bytes_max: int) -> int:
        """Check a producer's body at batch cost: its size, its checksum, and that it holds `count` records.

        Called once, before the batch is stored. `bytes_max` limits the decompressed size. Returns an upper bound on the
        bytes of its largest record, such as the decompressed size of all records: if that is over the topic's limit,
        the records are checked one by one. A body with more headers than can be decoded without a pause, such as
        WEIGHT_MAX, is refused here: no reader could decode it.

        Raises BatchMalformed, which refuses the publish.
        """

    def to_native(self, body: memoryview, count: int, bytes_max: int) -> BodyColumns:
        """Decode all `count` records. `bytes_max` limits the decompressed size.

        Raises BatchMalformed.
        """

    def from_native(self, batch: RecordBatch) -> bytes:
        """Encode a body with the records of a batch in linn's own format, so that `to_native` returns the same records.

        Raises BatchMalformed: the format can't represent a record. The reader gets the batch unchanged.
        """


@dataclass(frozen=True, slots=True)
class FormatKind:
    """A format, as a plugin registers it."""

    name: str
    """The name of the format, for errors and logs."""
    number: int
    """The number in `format` of its batches, 1 to 255."""
    make: Callable[[], BodyFormat]
    """Makes the codec, once. Does no I/O."""
    settings: None = None
    """None: formats have no settings."""


class BoundFormat(NamedTuple):
    """A format of a loaded plugin."""

    number: int
    name: str
    owner: str
    """A description of the plugin that registered the format."""
    codec: BodyFormat


class Formats:
    """The formats that a broker can translate, and its latest translations."""

    def __init__(self, bound: Iterable[BoundFormat] = (), bytes_max: int = 8 << 20) -> None:
        """`bytes_max`: the limit of a batch, and of its body when decompressed."""
        self._bound = {format.number: format for format in bound}
        self._bytes_max = bytes_max
        self._cache: OrderedDict[tuple[Owner, int, int, int], RecordBatch] = OrderedDict()
        """Translations by owner, both CRCs and format; most recent last. The stamp contains the offset."""
        self.cached_bytes = 0

    def accepts_of(self, numbers: Sequence[int]) -> Sequence[int]:
        """The distinct formats that a reader names; linn's own if it names none. Raises FormatUnknown."""
        if not numbers:
            return NATIVE_ONLY
        accepts = tuple(dict.fromkeys(numbers))
        for number in accepts:
            if number != Format.NATIVE:
                self._of(number)
        return accepts

    def admit(self, batch: RecordBatch) -> None:
        """Check the body of a producer's verified batch, and make it readable.

        Raises FormatUnknown, BatchMalformed; BatchTooLarge: it has more than RECORDS_MAX records.
        """
        bound = self._of(batch.format)
        if batch.count > RECORDS_MAX:
            raise BatchTooLarge(
                f"a batch of format {bound.name} with {batch.count:,} records, more than {RECORDS_MAX:,}"
            )
        body = batch.body_data()
        try:
            batch.messages_within = int(bound.codec.check(body, batch.count, self._bytes_max))
        except BatchError:
            raise
        except Exception as error:
            raise _failure(bound, "check a body", error) from error
        batch.opener = self

    def open_body(self, batch: RecordBatch) -> Body:
        """Decode the body of a batch of another format. Raises FormatUnknown, BatchMalformed."""
        bound = self._of(batch.format)
        data = batch.body_data()
        try:
            columns = bound.codec.to_native(data, batch.count, self._bytes_max)
            body = body_of(columns.values, columns.keys, columns.timestamps_ms, columns.headers).join()
        except BatchError:
            raise
        except Exception as error:
            raise _failure(bound, "read a body", error) from error
        if len(columns.values) != batch.count:
            text = f"the body has {counted(len(columns.values), 'record')}, and the batch says {batch.count:,}"
            raise BatchMalformed(f"{text} (format {bound.name})")
        if len(body) > BODY_GROWTH_MAX * self._bytes_max:
            raise BatchMalformed(f"a body of {len(body):,} bytes in linn's own format is too large to be delivered")
        return Body.decode(memoryview(body), batch.count)

    def translated(self, owner: Owner, batch: RecordBatch, number: int) -> RecordBatch:
        """A stored batch with its body in another format.

        Raises FormatUnknown; BatchMalformed: it can't be decoded, or that format can't represent one of its records.
        """
        key = owner, batch.stamp_crc, batch.crc, number
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            return known
        if batch.format:
            # A separate view: the decoded body must not stay with a batch that an engine keeps in memory.
            opened = RecordBatch(batch.message)
            opened.opener = self
            made = with_body(batch, Format.NATIVE, opened.body().lay_out().join())
        else:
            made = batch
        if number != Format.NATIVE:
            bound = self._of(number)
            _check_weight(made)
            try:
                made = with_body(batch, number, bound.codec.from_native(made))
            except BatchError:
                raise
            except Exception as error:
                raise _failure(bound, "write a body", error) from error
            made.opener = self
        self._keep(key, made)
        return made

    def _keep(self, key: tuple[Owner, int, int, int], batch: RecordBatch) -> None:
        if batch.size > CACHE_BYTES_MAX:
            return
        self._cache[key] = batch
        self.cached_bytes += batch.size
        while self.cached_bytes > CACHE_BYTES_MAX:
            self.cached_bytes -= self._cache.popitem(last=False)[1].size

    def _of(self, number: int) -> BoundFormat:
        bound = self._bound.get(number)
        if bound is None:
            raise FormatUnknown(f"no plugin of this broker reads bodies of format {number}")
        return bound


def _check_weight(batch: RecordBatch) -> None:
    """Check that a native batch can be encoded without a pause. Raises BatchMalformed: it is too large for that."""
    weight = RecordBatch(batch.message).body().weight()
    if weight > WEIGHT_MAX:
        raise BatchMalformed(f"a batch with {weight:,} records and headers is more than can be encoded at once")


def _failure(bound: BoundFormat, task: str, error: Exception) -> BatchMalformed:
    text = f"format {bound.name}, of {bound.owner}, could not {task}: {type(error).__name__}: {error}"
    return BatchMalformed(one_line(text))
