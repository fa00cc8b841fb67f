"""DramLog: a partition's log in memory, spilling to scratch files. See also `memory` and `scratch`.

Laws: the log is a list of runs in order of their offsets, each in memory or in one scratch file; an append goes to the
last run or begins a new one, so that spilling never changes the order. Once the log's memory, or the broker's share for
all such logs, is full, new batches are spilled until half of it is free again, so that runs are long. No record
outlives the process, so none waits to become durable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from linn.api import (
    READ_BATCHES_MAX,
    Capabilities,
    Env,
    LogClosed,
    LogFacts,
    MemoryShare,
    OffsetOutOfRange,
    PartitionLog,
    RecordBatch,
    check_copies,
)
from linn.storage_engines.dram.memory import BATCH_OVERHEAD_BYTES, Bound, MemoryRun
from linn.storage_engines.dram.scratch import ScratchFolder, ScratchRun
from linn.storage_engines.dram.settings import DramSettings

_REREAD_BYTES = 1 << 20

Run = MemoryRun | ScratchRun


class DramLog(PartitionLog):
    """One partition's log. See `linn.core.log.storage.PartitionLog` for the promises of each method."""

    def __init__(
        self,
        name: str,
        settings: DramSettings,
        env: Env,
        scratch: ScratchFolder,
        memory: MemoryShare,
        capabilities: Capabilities,
    ) -> None:
        self.capabilities = capabilities
        self.facts = LogFacts()
        self._memory = memory
        self._name = name
        self._settings = settings
        self._clock = env.clock
        self._scratch = scratch
        self._runs: list[Run] = []
        self._start = self._end = 0
        self._size_bytes = self._held_bytes = 0
        self._append_time_ms = 0
        self._spilling = False
        self._refusal: str | None = None

    # --- appending ---------------------------------------------------------------------------------------------------

    def append(self, batch: RecordBatch, leader_epoch: int = 0) -> int:
        """Append as the port says. Keeps the batch's buffer, or a copy if the buffer is more than twice its size."""
        if self._refusal is not None:
            self._check_usable()
        now_ms = max(self._clock.now_ms(), self._append_time_ms)
        offset = self._end
        batch.stamp(offset, now_ms, offset, leader_epoch)
        self._store(batch)
        return offset

    def append_copy(self, batches: Sequence[RecordBatch]) -> int:
        """Append as the port says."""
        self._check_usable()
        check_copies(self, batches)
        for batch in batches:
            batch.stamp(batch.base_offset, batch.append_time_ms, batch.base_offset, batch.leader_epoch)
            self._store(batch)
            self.facts.note(batch)
        return self._end

    def _store(self, batch: RecordBatch) -> None:
        """Store a stamped batch. Raises DiskFull, StorageError: nothing has changed."""
        held = batch.size + BATCH_OVERHEAD_BYTES
        if self._must_spill(held):
            self._spill(batch)
        else:
            self._memory_run().append(batch)
            self._held_bytes += held
            self._memory.used_bytes += held
        self._append_time_ms = batch.append_time_ms
        self._size_bytes += batch.size
        self._end = batch.end_offset

    def _check_usable(self) -> None:
        if self._refusal is not None:
            raise LogClosed(f"{self._name}: {self._refusal}")

    def _must_spill(self, held: int) -> bool:
        own_bytes, memory = self._settings.memory_bytes_max, self._memory
        room = own_bytes - self._held_bytes
        if self._spilling and 2 * room >= own_bytes and 2 * memory.used_bytes <= memory.bytes_max:
            self._spilling = False
        if held > room or held + memory.used_bytes > memory.bytes_max:
            self._spilling = True
        return self._spilling

    def _memory_run(self) -> MemoryRun:
        last = self._runs[-1] if self._runs else None
        if not isinstance(last, MemoryRun):
            last = MemoryRun(self._end)
            self._runs.append(last)
        return last

    def _spill(self, batch: RecordBatch) -> None:
        """Append to a scratch file. Raises DiskFull, StorageError: nothing has changed."""
        last = self._runs[-1] if self._runs else None
        if isinstance(last, ScratchRun) and last.size_bytes + batch.size <= self._settings.scratch_bytes_max:
            last.append(batch)
            return
        run = self._scratch.begin(self._end)
        try:
            run.append(batch)
        except BaseException:
            run.drop()
            raise
        self._runs.append(run)

    # --- durability --------------------------------------------------------------------------------------------------

    def durable(self) -> int:
        """The end: this engine has no stable storage."""
        return self._end

    async def sync(self) -> None:
        """Do nothing but a checkpoint: this engine has no stable storage."""
        self._check_usable()

    # --- reading -----------------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[int, int]:
        """(start, end)."""
        return self._start, self._end

    def size_bytes(self) -> int:
        """Bytes of the batches in memory and in scratch files."""
        return self._size_bytes

    async def read(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Read as the port says. Batches in memory are returned unchanged, without waiting; those on disk are
        checked.
        """
        self._check_usable()
        self._check_range(offset)
        end = self._end
        batches: list[RecordBatch] = []
        while self._start <= offset < end:
            run = self._runs[self._place(offset)]
            more = await run.read(offset, bytes_max, at_least_one=not batches)
            if not more:
                break
            batches += more
            offset = more[-1].end_offset
            bytes_max -= sum([batch.size for batch in more])
            if offset != run.end_offset or bytes_max <= 0 or len(batches) >= READ_BATCHES_MAX:
                break
        return batches[:READ_BATCHES_MAX]

    def read_nowait(self, offset: int, bytes_max: int) -> Sequence[RecordBatch]:
        """Read as the port says, from one run in memory."""
        self._check_usable()
        if not self._start <= offset < self._end:
            return ()
        run = self._runs[self._place(offset)]
        return run.read_nowait(offset, bytes_max) if isinstance(run, MemoryRun) else ()

    def _place(self, offset: int) -> int:
        return bisect_right(self._runs, offset, key=lambda run: run.base_offset) - 1

    def _check_range(self, offset: int) -> None:
        if not self._start <= offset <= self._end:
            raise OffsetOutOfRange(f"{self._name} begins at offset {self._start} and ends at {self._end}, not {offset}")

    async def offset_at(self, timestamp_ms: int) -> int:
        """See the port. A run in memory takes a few hundred steps at most, whatever the timestamps."""
        self._check_usable()
        for run in tuple(self._runs):
            if run.end_offset > self._start:
                found = await run.offset_at(timestamp_ms, self._start)
                if found is not None:
                    return found
        return self._end

    # --- forgetting --------------------------------------------------------------------------------------------------

    async def trim(self, *, before: int | None = None, after: int | None = None) -> None:
        """Trim as the port says. `before` frees memory at once, and disk space by whole scratch files."""
        self._check_usable()
        if before is not None:
            if before > self._end:
                raise OffsetOutOfRange(f"{self._name} ends at offset {self._end}, before {before}")
            self._forget_before(before)
        if after is not None:
            self._check_range(after)
            await self._forget_after(after)

    def _forget_before(self, start: int) -> None:
        self._start = max(self._start, start)
        while self._runs and self._runs[0].end_offset <= self._start:
            self._drop(0)
        if self._runs:
            first = self._runs[0]
            size, held = first.size_bytes, first.held_bytes
            first.forget(self._start)
            self._size_bytes += first.size_bytes - size
            self._count_held(first.held_bytes - held)

    def _count_held(self, more: int) -> None:
        self._held_bytes += more
        self._memory.used_bytes += more

    def _drop(self, place: int) -> None:
        run = self._runs.pop(place)
        self._size_bytes -= run.size_bytes
        self._count_held(-run.held_bytes)
        run.drop()

    async def _forget_after(self, after: int) -> None:
        """Drop batches from an offset on; appends are refused meanwhile. Cancellation: the log takes no more work."""
        if after == self._end:
            return
        place = self._place(after)
        run = self._runs[place]
        size, held = run.size_bytes, run.held_bytes
        self._refusal = "it was being cut"
        try:
            if run.base_offset != after:
                await run.cut(after)
        except OffsetOutOfRange:
            self._refusal = None
            raise
        self._size_bytes += run.size_bytes - size
        self._count_held(run.held_bytes - held)
        while self._runs and self._runs[-1].base_offset >= after:
            self._drop(len(self._runs) - 1)
        self._end = after
        self._refusal = None
        await self._find_facts()

    async def restart_at(self, start: int) -> None:
        """Drop everything as the port says."""
        self._check_usable()
        while self._runs:
            self._drop(len(self._runs) - 1)
        self.facts, self._start, self._end = LogFacts(), start, start

    async def _find_facts(self) -> None:
        """Rebuild the facts from the remaining batches."""
        self.facts, offset = LogFacts(), self._start
        while offset < self._end:
            for batch in await self.read(offset, _REREAD_BYTES):
                self.facts.note(batch)
                offset = batch.end_offset

    async def enforce_retention(
        self, now_ms: int, *, age_ms: int | None, bytes_max: int | None, before: int | None, keep: int | None = None
    ) -> int:
        """Drop batches as the port says: individually in memory, and by whole scratch files."""
        self._check_usable()
        bound = Bound(now_ms - age_ms if age_ms is not None else None, before, keep)
        excess = self._size_bytes - bytes_max if bytes_max is not None else 0
        start = self._start
        for run in self._runs:
            end = run.droppable(bound, excess, newest=run is self._runs[-1])
            start = max(start, end)
            if end != run.end_offset:
                break
            excess -= run.size_bytes
        self._forget_before(start)
        return self._start

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Drop all batches and delete the scratch files. Idempotent."""
        self._refusal = self._refusal or "it is closed"
        while self._runs:
            self._drop(len(self._runs) - 1)

    async def delete(self) -> None:
        """Close, which deletes everything."""
        await self.close()
