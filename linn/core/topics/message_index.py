"""The index of one partition's messages: ids with their offsets, and the endings of messages that no consumer settled.
It outlives the records.

The log of the index has runs and marks. A run is CHUNKS records, in each the rows of the ids whose last byte is its
number, and a record with its end, the offset below which all ids are in runs. A mark has the endings of the settled
records from the mark before up to its end. Beside them, a record has the ids of messages that were cancelled before
they came into the partition; they are known for the time of `status`.

Laws: ids of records from the last run's end on are in memory; the partition keeps these records, from which a start
rebuilds them. A run has only stable and synced records, which nothing can take back. A mark is written when its
settlements are committed in the queue's state log, and is read only for offsets below its end. An id is forgotten when
a mark beyond its offset is older than the topic's `status`, or, without a queue, when its record is gone.

Layout of a record: kind u8; a chunk: number u8, then rows of id 16 bytes and offset u64; the end of a run: u64; a mark:
end u64, then rows of first u64, end u64, ending u8; cancelled messages: ids of 16 bytes. All numbers are big-endian.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

import trio

from linn.core.batch.batch import CONTROL, TRANSACTIONAL, RecordBatch
from linn.core.env.env import Clock
from linn.core.errors.tree import LogCorrupt, OffsetOutOfRange, StorageError
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.core.queue.dead_letter import Ending
from linn.core.queue.id_rows import CHUNKS, ID_BYTES, OFFSET, ROW_BYTES, IdRows, newest_in, offset_in
from linn.core.queue.offset_map import OffsetMap
from linn.core.queue.offset_ranges import OffsetRanges
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.topics.message_ids import Write

INDEX_TOPIC = "__i."
RUN_ROWS_MAX = 1 << 18
"""Ids in memory at which a run is written: 6 MiB."""
RUN_BYTES_MAX = 64 << 20
"""Bytes of records at which a run is written, so that a start has no more to read, and a queue to keep."""
MARKS_PER_STATUS = 16
"""Marks in the time of `status`: an id may be known 1/n longer."""
ENDINGS_AT_ONCE = 4_096
"""Endings in one mark: 70 KiB."""
CHUNKS_IN_A_TURN = 16
"""Chunks that are written without a pause, in less than a millisecond."""
IDS_IN_A_TURN = 128
"""Ids that are looked for in memory without a pause."""
CANCELLED_MAX = 1 << 16
"""Limit of the cancelled messages that are known: about 10 MiB. Beyond it the oldest are forgotten."""
_READ_BYTES = 1 << 20
_CHUNK, _RUN_END, _MARK, _CANCELLED = b"\0", b"\1", b"\2", b"\3"
_KINDS = _CHUNK, _RUN_END, _MARK, _CANCELLED
_ENDING = struct.Struct(">QQB")


def index_topic(topic: str) -> str:
    """The internal topic that holds the indexes of a topic's partitions."""
    return INDEX_TOPIC + topic


class Run(NamedTuple):
    """A run in the log of the index."""

    at: int
    """Offset of its first chunk in the log of the index."""
    end: int


class EndingsMark(NamedTuple):
    """A mark in the log of the index, and the time at which it was written."""

    at: int
    end: int
    time_ms: int


class _Unwritten(NamedTuple):
    """A run that is being written."""

    chunks: Sequence[bytearray]
    """Rows of records below its end, and of some behind it."""
    end: int
    aborted: Sequence[tuple[int, int]]
    """Offsets of aborted records, which get into no run."""


class MessageIndex:
    """The index of one partition."""

    def __init__(self, partition: Partition, log: StateLog, clock: Clock) -> None:
        """`log`: of the index."""
        self.partition = partition
        self.log = log
        self.on_due: Callable[[], None] | None = None
        """Called when a run has become due."""
        self._is_asked = False
        self.known_from = 0
        """The offset below which ids are forgotten."""
        self.writes: OffsetMap[Write] = OffsetMap()
        """Batches of transactions whose ids are in memory."""
        self._clock = clock
        self._open = IdRows()
        self._bytes = 0
        self._unwritten: _Unwritten | None = None
        self._written = 0
        """Chunks of it that are in the log."""
        self._runs: list[Run] = []
        self._marks: list[EndingsMark] = []
        self._sealed_end = self._noted_end = 0
        self._cancelled: dict[bytes, tuple[int, int]] = {}
        """Cancelled messages by id, oldest first: the offsets in the log of the index, and the times in ms."""
        self._turn = trio.Lock()
        """Held by the task that writes: nothing comes between the chunks of a run."""

    # --- starting ---

    async def load(self, status_ms: int) -> None:
        """Load the log of the index, and know the records behind its last run. Raises LogCorrupt, StorageError."""
        await self.load_log(status_ms)
        start, end = self.partition.log.bounds()
        offset = max(start, self.kept_from)
        while offset < end:
            batches = await self.partition.log.read(offset, _READ_BYTES)
            for batch in batches:
                self.note(batch)
            await self._seal()
            offset = batches[-1].end_offset

    async def load_log(self, status_ms: int) -> None:
        """Load the log of the index. Raises LogCorrupt, StorageError."""
        at, end = self.log.partition.log.bounds()
        while at < end:
            at = await self._load_at(at, end)
        self._forget(status_ms)

    def begin(self) -> None:
        """Know the records from now on, and the ids in the log: the topic had no `status` before."""
        self._sealed_end = self.partition.log.bounds()[1]
        with suppress(StorageError):  # Without it the next start knows earlier ones as well.
            self._append(_RUN_END + OFFSET.pack(self._sealed_end))

    async def _load_at(self, at: int, end: int) -> int:
        """Read the run or the mark at an offset of the log of the index; returns the offset behind it."""
        batch, kind, body = await self._record(at)
        if kind == _MARK:
            self._marks.append(EndingsMark(at, OFFSET.unpack_from(body)[0], batch.append_time_ms))
            return at + 1
        if kind == _CANCELLED:
            self._know_cancelled(at, body, batch.append_time_ms)
            return at + 1
        if kind == _RUN_END:
            self._sealed_end = max(self._sealed_end, OFFSET.unpack(body)[0])
            return at + 1
        number = body[0]
        last = at + CHUNKS - number
        for left in range(CHUNKS - (last - end), CHUNKS) if end < last else ():
            self._append(_CHUNK + bytes([left]))  # A crash has left a part of a run: the whole one comes behind it.
        if end <= last:
            self._append(_RUN_END + OFFSET.pack(self._sealed_end))
        run_end = OFFSET.unpack((await self._record(last))[2])[0] if last < end else self._sealed_end
        if not number and last < end:
            self._runs.append(Run(at, run_end))
        self._sealed_end = max(self._sealed_end, run_end)
        return last + 1

    async def _record(self, at: int) -> tuple[RecordBatch, bytes, bytes]:
        """The batch, kind and content of a record of the log of the index. Raises LogCorrupt, OffsetOutOfRange."""
        batch, *_ = await self.log.partition.read_log(at, 1)
        value = bytes(batch.value(0) or b"")
        is_torn = value[:1] == _CANCELLED and len(value) % ID_BYTES != 1
        if value[:1] not in _KINDS or len(value) < 2 or is_torn:
            raise LogCorrupt(f"{self.log.partition.id} has a record that no broker can have written")
        return batch, value[:1], value[1:]

    def _append(self, value: bytes) -> int:
        """Append a record to the log of the index; returns its offset. Raises NotLeader, StorageError."""
        return self.log.append(value) - 1

    # --- new records ---

    def note(self, batch: RecordBatch) -> None:
        """Know the records of a stamped batch, at the end of the partition's log."""
        attributes, base = batch.attributes, batch.base_offset
        self._noted_end = batch.end_offset
        if attributes & CONTROL:
            return
        if attributes & TRANSACTIONAL:
            self.writes.set(base, batch.end_offset, Write(batch.producer_id, batch.transaction, base))
        self._open.add(batch)
        self._bytes += batch.size
        if self._is_due() and not self._is_asked and self.on_due is not None:
            self._is_asked = True
            self.on_due()

    def _is_due(self) -> bool:
        return self._open.count >= RUN_ROWS_MAX or self._bytes >= RUN_BYTES_MAX

    # --- finding ---

    async def find(self, ids: Iterable[bytes]) -> dict[bytes, int]:
        """The offsets of the newest records with these ids that are known. Raises LogCorrupt, StorageError."""
        found, left, runs = dict[bytes, int](), dict[int, list[bytes]](), self._runs[::-1]
        parts: list[Sequence[bytes | bytearray]] = [self._open.chunks]
        if self._unwritten is not None:
            parts.append(self._unwritten.chunks)
        for count, id in enumerate(ids):
            if not count % IDS_IN_A_TURN:
                await trio.lowlevel.checkpoint()  # The next run is made of others than these.
            offset = next((at for part in parts if (at := newest_in(part[id[-1]], id)) is not None), None)
            if offset is None:
                left.setdefault(id[-1], []).append(id)
            else:
                found[id] = offset
        for run in runs:
            for number in list(left):
                try:
                    _, _, chunk = await self._record(run.at + number)
                except OffsetOutOfRange:
                    return self._known(found)  # It was dropped meanwhile, and so are those before it.
                rows = chunk[1:]
                places = {id: newest_in(rows, id) for id in left[number]}
                found |= {id: place for id, place in places.items() if place is not None}
                left[number] = [id for id, place in places.items() if place is None]
                if not left[number]:
                    del left[number]
                await trio.lowlevel.checkpoint()
        return self._known(found)

    def _known(self, found: dict[bytes, int]) -> dict[bytes, int]:
        return {id: offset for id, offset in found.items() if offset >= self.known_from}

    async def ending_at(self, offset: int) -> Ending | None:
        """The ending of a settled record below the last mark; None: a consumer settled it. Raises LogCorrupt."""
        place = bisect_right(self._marks, offset, key=lambda mark: mark.end)
        if place == len(self._marks):
            return None
        _, _, body = await self._record(self._marks[place].at)
        rows = _ENDING.iter_unpack(body[OFFSET.size :])
        return next((Ending(ending) for first, end, ending in rows if first <= offset < end), None)

    # --- writing ---

    @property
    def kept_from(self) -> int:
        """The offset from which on the partition's records are kept: their ids are in no run, and not forgotten."""
        return max(self._sealed_end, self.known_from)

    async def tidy(self, queue: PartitionQueue | None, status_ms: int) -> None:
        """Write a run and marks where they are due, and drop old ones.

        Raises NotLeader, StorageError: the next call goes on where this one has stopped.
        """
        async with self._turn:
            await self._seal()
            if queue is None:
                self.known_from = self.partition.start_offset
            else:
                await self._write_marks(queue, status_ms)
                self._forget(status_ms)
            await self._drop(status_ms)

    async def note_cancelled(self, ids: bytes) -> None:
        """Know messages that were cancelled before they came, by their ids. Durable when this returns.

        Raises NotLeader, StorageError: they are known until the next start.
        """
        now_ms = self._clock.now_ms()
        self._know_cancelled(self.log.partition.log.bounds()[1], ids, now_ms)
        async with self._turn:
            if self._unwritten is not None:
                await self._write_run(self._unwritten)
            self._know_cancelled(self._append(_CANCELLED + ids), ids, now_ms)
            await self.log.make_durable()

    def _know_cancelled(self, at: int, ids: bytes, time_ms: int) -> None:
        for place in range(0, len(ids), ID_BYTES):
            id = ids[place : place + ID_BYTES]
            self._cancelled.pop(id, None)
            self._cancelled[id] = at, time_ms

    def was_cancelled(self, id: bytes) -> bool:
        """Whether a message was cancelled before it came."""
        return id in self._cancelled

    def _forget(self, status_ms: int) -> None:
        """Forget ids of records that ended longer ago than `status`."""
        old_ms = self._clock.now_ms() - status_ms
        self.known_from = max([self.known_from, *[mark.end for mark in self._marks if mark.time_ms <= old_ms]])

    async def _seal(self) -> None:
        if self._unwritten is None and self._is_due():
            await self.partition.log.sync()
            self._begin_run(min(self.partition.stable_offset, self.partition.log.durable(), self._noted_end))
        if self._unwritten is not None:
            await self._write_run(self._unwritten)

    def _begin_run(self, end: int) -> None:
        """Begin a run of the ids of records below an offset, if there are any."""
        if end > self._sealed_end:
            hides = self.partition.transactions.hides
            self.writes.take(0, self._sealed_end)  # Those of this run stay until it is written, as their ids do.
            aborted = [(first, stop) for first, stop, write in self.writes.pieces(0, end) if hides(write)]
            self._unwritten, self._written = _Unwritten(self._open.chunks, end, aborted), 0
            self._open, self._bytes, self._is_asked = IdRows(), 0, False

    async def _write_run(self, run: _Unwritten) -> None:
        while self._written < CHUNKS:
            number, chunk = self._written, run.chunks[self._written]
            cut = ROW_BYTES * bisect_left(range(len(chunk) // ROW_BYTES), run.end, key=partial(offset_in, chunk))
            self._append(_CHUNK + bytes([number]) + _without(bytes(chunk[:cut]), run.aborted))
            self._open.chunks[number][:0] = chunk[cut:]
            self._open.count += (len(chunk) - cut) // ROW_BYTES
            self._written += 1
            if not self._written % CHUNKS_IN_A_TURN:
                await trio.lowlevel.checkpoint()
        if self._written == CHUNKS:
            self._append(_RUN_END + OFFSET.pack(run.end))
            self._written += 1
        await self.log.make_durable()
        self._runs.append(Run(self.log.partition.log.bounds()[1] - CHUNKS - 1, run.end))
        self._sealed_end, self._unwritten = run.end, None

    async def _write_marks(self, queue: PartitionQueue, status_ms: int) -> None:
        """Write a mark of the settled records, with the endings that are kept in the state of the queue."""
        last = self._marks[-1] if self._marks else EndingsMark(0, 0, 0)
        low, now_ms = queue.log.settled_durably(), self._clock.now_ms()
        endings = queue.subscription.endings(last.end, low)
        is_due = now_ms - last.time_ms >= status_ms / MARKS_PER_STATUS or len(endings) >= ENDINGS_AT_ONCE
        if low <= last.end or not is_due:
            return
        for at in range(0, max(1, len(endings)), ENDINGS_AT_ONCE):
            some = endings[at : at + ENDINGS_AT_ONCE]
            end = low if at + ENDINGS_AT_ONCE >= len(endings) else some[-1][1]
            rows = b"".join([_ENDING.pack(*row) for row in some])
            self._marks.append(EndingsMark(self._append(_MARK + OFFSET.pack(end) + rows), end, now_ms))
            await trio.lowlevel.checkpoint()
        await self.log.make_durable()
        queue.subscription.forget_endings(low)

    async def _drop(self, status_ms: int) -> None:
        """Drop runs and marks of ids that are forgotten, but for the last ones, from which a start goes on."""
        known_from, old_ms = self.known_from, self._clock.now_ms() - status_ms
        while self._cancelled:
            id, (_, time_ms) = next(iter(self._cancelled.items()))
            if time_ms > old_ms and len(self._cancelled) <= CANCELLED_MAX:
                break
            del self._cancelled[id]
        self._runs = [run for run in self._runs if run.end > known_from or run is self._runs[-1]]
        self._marks = [mark for mark in self._marks if mark.end >= known_from or mark is self._marks[-1]]
        firsts = [each[0].at for each in (self._runs, self._marks) if each]
        firsts += [at for at, _ in islice(self._cancelled.values(), 1)]
        if firsts and min(firsts) > self.log.partition.start_offset:
            if not self._runs:
                self._append(_RUN_END + OFFSET.pack(self._sealed_end))
            await self.log.partition.log.trim(before=min(firsts))


def _without(rows: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    """The rows whose offsets are in none of these spans."""
    if not spans:
        return rows
    gone = OffsetRanges(spans)
    kept = [place * ROW_BYTES for place in range(len(rows) // ROW_BYTES) if offset_in(rows, place) not in gone]
    return b"".join([rows[at : at + ROW_BYTES] for at in kept])
