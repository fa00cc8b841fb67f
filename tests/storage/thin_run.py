"""A life of a segmented log that is thinned: records that are needed stay at their offsets, whatever dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio
from crash_run import Appended, CrashRun

from linn.core.batch.batch import RecordBatch
from linn.testing.engine_harness import values_by_offset
from linn.testing.sim_env import SimEnv


class ThinRun(CrashRun):
    """A log of which few records are needed in the end."""

    def __init__(self, seed: int | str, env: SimEnv) -> None:
        super().__init__(seed, env)
        self.unneeded: set[int] = set()
        self.thinned_before = 0
        """No record before it is cut off: it was committed."""
        self.thinned = 0
        """Calls that made the log smaller."""

    def choices(self) -> tuple[tuple[Callable[[], Awaitable[None]], int], ...]:
        left = [(step, weight) for step, weight in super().choices() if step.__name__ != "find_time"]
        return (*left, (self.thin, 3), (self.thin_beside_others, 2))

    def needed(self, first: int, end: int) -> Sequence[tuple[int, int]]:
        return [(offset, offset + 1) for offset in range(first, end) if offset not in self.unneeded]

    async def thin(self) -> None:
        assert self.log is not None
        durable, share = self.log.durable(), self.rng.choice((0.5, 0.95, 1))
        self.unneeded.update(offset for offset in range(durable) if self.rng.random() < share)
        self.thinned_before = max(self.thinned_before, durable)
        size = self.log.size_bytes()
        await self.log.thin(self.needed, durable, trio.lowlevel.checkpoint)
        self.thinned += self.log.size_bytes() < size
        self.note()

    async def thin_beside_others(self) -> None:
        """Read, append and trim meanwhile; or give up."""
        if self.rng.random() < 0.3:
            with trio.move_on_after(self.rng.random() / 300):
                await self.thin()
            self.note()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.thin)
            for _ in range(self.rng.randint(1, 6)):
                await self.rng.choice((self.append_batches, self.sync, self.read, self.retain))()

    async def trim_after(self) -> None:
        if len(self.model) > 6 and self.model[-6].base >= self.thinned_before:
            await super().trim_after()

    async def read(self) -> None:
        assert self.log is not None
        if self.log.bounds()[0] == self.start:  # Another task may be about to note it.
            await super().read()

    def agree(self, found: Sequence[RecordBatch], expected: Sequence[Appended]) -> None:
        there = values_by_offset(found)
        appended = values_by_offset([RecordBatch(batch.message) for batch in expected])
        assert there.items() <= appended.items(), "no offset moves"
        lost = [offset for offset in appended if offset not in there and offset not in self.unneeded]
        assert not lost, f"records that are needed stay: {lost}"
