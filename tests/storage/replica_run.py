"""The lives of a replica's log: as in `crash_run`, with copies of a leader's batches and restarts at an offset.

A restart that was interrupted has happened, has not, or has left an empty log that begins at 0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from crash_run import CrashRun, template

from linn.core.batch.batch import RecordBatch
from linn.core.errors.replication import CopyMisplaced
from linn.core.errors.tree import BatchCorrupt, DiskFull
from linn.core.log.facts import LogFacts
from linn.testing.sim_env import SimEnv

_TEMPLATES = [template(number, value_bytes) for number, value_bytes in enumerate((0, 90, 333, 700, 1000, 1900) * 3)]


class ReplicaRun(CrashRun):
    """One seed's run."""

    def __init__(self, seed: int | str, env: SimEnv) -> None:
        super().__init__(seed, env)
        self.leader_epoch = 1
        self.restarting: int | None = None

    def choices(self) -> tuple[tuple[Callable[[], Awaitable[None]], int], ...]:
        return (
            (self.append_batches, 8),
            (self.append_during_sync, 3),
            (self.sync, 2),
            (self.give_up_waiting, 1),
            (self.retain, 1),
            (self.trim_before, 2),
            (self.trim_after, 2),
            (self.restart, 2),
            (self.offer_others, 2),
            (self.change_leader, 1),
            (self.open_again, 1),
            (self.fill_the_disk, 1),
            (self.read, 1),
        )

    def copies(self, count: int) -> list[RecordBatch]:
        """The next batches of the leader's log, which were durable there, each when the next one was appended."""
        copies, offset, times_ms = list[RecordBatch](), self.end, [3_000, 3_000, 3_000, 90_000]
        for _ in range(count):
            batch = RecordBatch(bytearray(self.rng.choice(_TEMPLATES)))
            batch.stamp(offset, self.rng.choice(times_ms), offset, self.leader_epoch)
            copies.append(batch)
            offset = batch.end_offset
        return copies

    def append(self, count: int = 1) -> None:
        assert self.log is not None
        self.pending = self.copies(count)
        self.log.append_copy(self.pending)
        self.stored_pending()

    async def append_batches(self) -> None:
        try:
            self.append(self.rng.randint(1, 9))
        except DiskFull:
            self.stored_pending()

    async def change_leader(self) -> None:
        self.leader_epoch += self.rng.randint(1, 3)

    async def offer_others(self) -> None:
        """Batches that do not continue the log, or are damaged, change nothing."""
        assert self.log is not None
        before = self.log.bounds(), self.log.size_bytes(), self.log.facts.encode()
        for what, batches in self.others().items():
            try:
                self.log.append_copy(batches)
            except (CopyMisplaced, BatchCorrupt):
                assert (self.log.bounds(), self.log.size_bytes(), self.log.facts.encode()) == before
            else:
                raise AssertionError(f"{what} is refused")

    def others(self) -> Mapping[str, Sequence[RecordBatch]]:
        behind, damaged, earlier = self.copies(2), self.copies(2), self.copies(2)
        damaged[1].message[-1] ^= 1
        earlier[1].stamp(earlier[1].base_offset, 0, 0, self.leader_epoch - 1)
        return {"a gap": behind[1:], "a damaged copy": damaged, "a copy of an earlier leader": earlier}

    async def restart(self) -> None:
        assert self.log is not None
        self.restarting = self.rng.choice((0, self.start, self.end, self.end + 50))
        await self.log.restart_at(self.restarting)
        self.became_empty(self.restarting)
        assert self.log.bounds() == (self.start, self.start)

    def became_empty(self, start: int) -> None:
        assert self.log is not None
        self.start = self.durable = start
        self.model, self.pending, self.cut, self.restarting = [], [], None, None
        assert self.log.facts.encode() == LogFacts().encode(), "the facts of dropped records are dropped with them"

    async def give_up_waiting(self) -> None:
        with trio.move_on_after(self.rng.random() / 300):
            await self.sync()
        self.note()

    async def check(self, *, lost_power: bool) -> None:
        assert self.log is not None
        bounds = self.log.bounds()
        if self.restarting is not None and bounds in ((0, 0), (self.restarting, self.restarting)):
            self.became_empty(bounds[0])
            return
        self.restarting = None
        await super().check(lost_power=lost_power)
        epochs = self.log.facts.epochs
        for batch in self.model:
            epoch = RecordBatch(batch.message).leader_epoch
            assert batch.base < self.start or epochs.at(batch.base) == epoch, f"offset {batch.base} is of epoch {epoch}"
