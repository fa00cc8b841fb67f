"""A life, or several, of a segmented log on a simulated disk, and what must be true after each death.

What is promised (linn.storage_engines.segmented_log): after power loss the log holds a prefix of what was appended, at
least up to `durable()`; after the death of the process alone, all of it. Opening can itself be interrupted.
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import pick_batch
from linn.core.errors.tree import DiskFull, LogClosed, LogCorrupt, SyncFailed
from linn.core.log.storage import PartitionId
from linn.storage_engines.segmented_log.engine import SegmentedLogEngine
from linn.storage_engines.segmented_log.log import SegmentedLog
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings
from linn.testing.engines import make_batch, read_through
from linn.testing.sim_device import LOST_POWER
from linn.testing.sim_env import SimEnv

PARTITION = PartitionId("orders", 0)


def template(number: int, value_bytes: int) -> bytes:
    """A batch to append, every fifth with gaps before, between and behind its records."""
    batch = make_batch(1 + number % 3, value_bytes=value_bytes, timestamp_ms=number * 7 % 20, fill=number)
    if number % 5 == 4:
        batch = pick_batch(batch, range(batch.count), range(-(number % 3), batch.count + number % 4 + 1))
    return bytes(batch.message)


_TEMPLATES = [
    template(number, value_bytes)
    for number, value_bytes in enumerate((0, 10, 90, 200, 333, 460, 500, 700, 1000, 1700, 2500) * 3)
]


@dataclass(frozen=True)
class Appended:
    base: int
    end: int
    message: bytes
    timestamp_ms: int


def appended(batch: RecordBatch) -> Appended:
    """A stamped batch of the log."""
    return Appended(batch.base_offset, batch.end_offset, bytes(batch.message), batch.max_timestamp_ms)


class CrashRun:
    """One seed's run."""

    def __init__(self, seed: int | str, env: SimEnv) -> None:
        self.rng = random.Random(seed)
        self.env = env
        self.settings = SegmentedLogSettings(
            segment_bytes_max=self.rng.choice((4096, 4096, 6000, 9000)),
            segment_age_ms=self.rng.choice((5, 10_000)),
            index_interval_bytes=self.rng.choice((512, 1500)),
        )
        self.log: SegmentedLog | None = None
        self.model: list[Appended] = []
        self.start = self.durable = 0
        self.pending: list[RecordBatch] = []
        """Batches of which it is unknown how many are stored, in order."""
        self.cut: int | None = None

    async def make_data_folder(self) -> None:
        """Make the folder as the broker does before it opens an engine."""
        self.env.disk.make_dir("data")
        await self.env.disk.sync_dir(".")

    async def open(self, env: SimEnv) -> SegmentedLog:
        return await SegmentedLogEngine("data/segmented-log", self.settings, env).open(PARTITION)

    async def open_or_cut(self, env: SimEnv, *, lost_power: bool) -> SegmentedLog:
        """Open the log as an operator does, who has it cut where it is refused: only power loss may lead to that."""
        try:
            return await self.open(env)
        except LogCorrupt as error:
            assert lost_power, "the death of a process alone damages nothing"
            claimed = re.search(r"when offset (\d+) was on stable storage", error.text)
            true = max(self.durable, self.log.durable() if self.log is not None else 0)
            assert claimed is None or int(claimed[1]) <= true, "a stamp claims only what was durable"
        engine = SegmentedLogEngine("data/segmented-log", self.settings, env)
        tail = await engine.damaged_tail(PARTITION, cut=True)
        assert tail is not None
        assert tail.offset >= self.durable, f"{self.durable} was durable, but the log ends at {tail.offset}"
        assert tail.batches, "nothing whole lies behind the damage: it is a torn tail, and no reason to refuse"
        return await self.open(env)

    @property
    def end(self) -> int:
        return max(self.model[-1].end, self.start) if self.model else self.start

    # --- a life ------------------------------------------------------------------------------------------------------

    async def live(self, steps: int, crash_at: int | None, kill_after_s: float | None = None) -> bool:
        """Take random steps; whether the machine or the process died in one of them."""
        if crash_at is not None:
            self.env.disk.crash_at = len(self.env.disk.operations) + crash_at

        async def process(env: SimEnv) -> None:
            async with trio.open_nursery() as nursery:
                if kill_after_s is not None:
                    nursery.start_soon(self.kill_later, kill_after_s)
                self.log = await self.open(env)
                for _ in range(steps):
                    await self.step(env)
                nursery.cancel_scope.cancel()

        return await self.env.run_until_death(process)

    async def kill_later(self, delay_s: float) -> None:
        await self.env.clock.sleep(delay_s)
        self.env.kill()

    @property
    def lost_power(self) -> bool:
        return self.env.disk.death == LOST_POWER

    def choices(self) -> tuple[tuple[Callable[[], Awaitable[None]], int], ...]:
        """The steps of a life, and how often each is taken."""
        return (
            (self.append_batches, 8),
            (self.append_during_sync, 3),
            (self.sync, 2),
            (self.give_up_waiting, 2),
            (self.retain, 2),
            (self.trim_before, 2),
            (self.trim_after, 2),
            (self.open_again, 1),
            (self.fill_the_disk, 1),
            (self.read, 1),
            (self.find_time, 1),
        )

    async def step(self, env: SimEnv) -> None:
        choices = self.choices()
        chosen = self.rng.choices([step for step, _ in choices], [weight for _, weight in choices])[0]
        await chosen()
        if self.rng.random() < 0.3:
            await env.clock.sleep(self.rng.random() / 100)

    def append(self) -> None:
        assert self.log is not None
        batch = RecordBatch(bytearray(self.rng.choice(_TEMPLATES)))
        self.pending = [batch]
        self.log.append(batch)
        self.stored_pending()

    def stored_pending(self) -> None:
        """Take over the pending batches that are stored."""
        assert self.log is not None
        self.model += [appended(batch) for batch in self.pending if batch.end_offset <= self.log.bounds()[1]]
        self.pending = []
        self.note()

    def note(self) -> None:
        """Remember what the log has promised so far."""
        if self.log is not None:
            self.start = max(self.start, self.log.bounds()[0])
            self.durable = max(self.durable, self.log.durable())

    async def append_batches(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.append()

    async def append_during_sync(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sync)
            for _ in range(self.rng.randint(1, 5)):
                self.append()
                await self.env.clock.sleep(self.rng.random() / 1000)

    async def sync(self) -> None:
        assert self.log is not None
        end = self.log.bounds()[1]
        await self.log.sync()
        assert self.log.durable() >= end
        self.note()

    async def give_up_waiting(self) -> None:
        """Cancel a sync or retention somewhere on its way."""
        with trio.move_on_after(self.rng.random() / 300):
            await self.rng.choice((self.sync, self.retain))()
        self.note()

    async def retain(self) -> None:
        assert self.log is not None
        bytes_max = self.rng.choice((None, 5000, 10_000))
        before = self.rng.choice((None, self.end))
        age_ms = self.rng.choice((None, None, 20))
        now_ms, size_bytes = self.env.clock.now_ms(), self.log.size_bytes()
        await self.log.enforce_retention(now_ms, age_ms=age_ms, bytes_max=bytes_max, before=before)
        if bytes_max is not None and age_ms is before is None and size_bytes <= bytes_max:
            start = self.log.bounds()[0]
            assert start == self.start, (
                f"{size_bytes} bytes are no more than {bytes_max}, but the start moved to {start}"
            )
        self.note()

    async def trim_before(self) -> None:
        assert self.log is not None
        await self.log.trim(before=self.rng.randint(self.start, self.end))
        self.note()

    async def trim_after(self) -> None:
        assert self.log is not None
        boundaries = [batch.base for batch in self.model[-6:] if batch.base >= self.start]
        if boundaries:
            self.cut = self.rng.choice(boundaries)
            self.durable = min(self.durable, self.cut)
            await self.log.trim(after=self.cut)
            self.model = [batch for batch in self.model if batch.base < self.cut]
            self.cut = None
            self.note()

    async def open_again(self) -> None:
        assert self.log is not None
        await self.log.close()
        self.note()
        self.log = await self.open(self.env)
        assert self.log.bounds() == (self.start, self.end)

    async def fill_the_disk(self) -> None:
        assert self.log is not None
        disk = self.env.disk
        capacity, disk.capacity_bytes = disk.capacity_bytes, disk.used_bytes + self.rng.randint(0, 3000)
        bounds, size = self.log.bounds(), self.log.size_bytes()
        try:
            while True:
                self.append()
                bounds, size = self.log.bounds(), self.log.size_bytes()
        except DiskFull:
            self.pending = []
        assert (self.log.bounds(), self.log.size_bytes()) == (bounds, size)
        try:
            await self.sync()
        except DiskFull:
            assert self.log.durable() == 0, "only a log that was never synced needs room for more than its records"
        disk.capacity_bytes = capacity

    async def read(self) -> None:
        assert self.log is not None
        self.agree(await read_through(self.log, 3000), [batch for batch in self.model if batch.end > self.start])

    def agree(self, found: Sequence[RecordBatch], expected: Sequence[Appended]) -> None:
        """Check that what was read is what was appended."""
        assert [bytes(batch.message) for batch in found] == [batch.message for batch in expected], (
            f"{expected} is not what was read"
        )

    async def find_time(self) -> None:
        assert self.log is not None
        timestamp_ms = self.rng.randrange(21)
        later = (max(b.base, self.start) for b in self.model if b.end > self.start and b.timestamp_ms >= timestamp_ms)
        expected, found = next(later, self.end), await self.log.offset_at(timestamp_ms)
        assert found == expected, f"reading from {timestamp_ms} ms on begins at {expected}, not at {found}"

    # --- a death -----------------------------------------------------------------------------------------------------

    async def fail_a_sync(self) -> None:
        """A sync fails: nothing more is promised, and the log takes no more work."""
        assert self.log is not None
        self.env.disk.crash_at = None
        self.append()
        self.env.disk.fail_next_sync()
        durable = self.log.durable()
        try:
            await self.log.sync()
        except SyncFailed:
            assert self.log.durable() == durable
        else:
            raise AssertionError("a failed sync is reported")
        try:
            self.log.append(make_batch(1))
        except LogClosed:
            return
        raise AssertionError("a log whose sync failed takes no more work")

    async def rise(self) -> None:
        """Open the log in the next process, perhaps after more deaths, and check what is in it."""
        lost_power = self.lost_power
        if self.log is not None:
            self.note_at_death()
        log: SegmentedLog | None = None
        for attempt in range(4):
            self.env = self.env.restart()
            self.env.disk.capacity_bytes = 1 << 30
            # The last attempt is left alone. The others may die in any operation of the recovery, or none.
            self.env.disk.crash_at = self.rng.randrange(20) if attempt < 3 and self.rng.random() < 0.5 else None

            async def process(env: SimEnv, *, lost_power: bool = lost_power) -> None:
                nonlocal log
                log = await self.open_or_cut(env, lost_power=lost_power)

            if not await self.env.run_until_death(process):
                break
            lost_power = True
        assert log is not None
        self.env.disk.crash_at = None
        self.log = log
        await self.check(lost_power=lost_power)

    def note_at_death(self) -> None:
        assert self.log is not None
        self.start = max(self.start, self.log.bounds()[0])
        durable = self.log.durable()
        self.durable = max(self.durable, durable if self.cut is None else min(durable, self.cut))

    async def check(self, *, lost_power: bool) -> None:
        assert self.log is not None
        start, end = self.log.bounds()
        known = list(self.model)
        if self.pending and self.pending[0].base_offset == self.end:
            known += map(appended, self.pending)
        assert start <= self.start, f"the start moved from {self.start} to {start}"
        assert end >= self.durable, f"{self.durable} was durable, but the log ends at {end}"
        kept = self.end if self.cut is None else min(self.end, self.cut)
        assert lost_power or end >= kept, f"the process died, and the log ends at {end} instead of {kept}"
        assert self.log.durable() == end
        expected = [batch for batch in known if batch.end > start and batch.end <= end]
        self.agree(await read_through(self.log, 3000), expected)
        assert end in {start, *(batch.end for batch in known)}
        self.model = [batch for batch in known if batch.end <= end]
        self.start, self.durable = start, end
        self.pending, self.cut = [], None

    async def open_twice(self) -> None:
        """Opening changes nothing the second time, also after a clean close."""
        assert self.log is not None
        bounds = self.log.bounds()
        for _ in range(2):
            await self.log.close()
            self.log = await self.open(self.env)
            assert self.log.bounds() == bounds
