"""PartitionLogMachine: compares a storage engine with a plain list of batches, in random order of operations, by
Hypothesis.

class PaperTape(PartitionLogMachine):
    def make_harness(self) -> EngineHarness:
        return EngineHarness(SimEnv(0), lambda env: PaperTapeEngine("tape", PaperTapeSettings(), env))

TestPaperTape = PaperTape.TestCase
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from linn.core.batch.batch import RecordBatch
from linn.core.log.storage import PartitionLog
from linn.testing.deterministic import VirtualTime
from linn.testing.engines import PARTITION, EngineHarness, make_batch, messages_of, read_through

T = TypeVar("T")


@dataclass(frozen=True)
class Kept:
    """A batch in the model."""

    base: int
    end: int
    message: bytes
    max_timestamp_ms: int


class PartitionLogMachine(RuleBasedStateMachine):
    """Hypothesis machine that compares an engine with a plain list of batches. Subclass it with `make_harness`, and
    `teardown` if needed.

    Each step runs in a trio run of its own, under virtual time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.harness = self.make_harness()
        self.model: list[Kept] = []
        self.start = self.end = 0
        self.log = self.run(self._open)

    def make_harness(self) -> EngineHarness:
        """Make a harness over an empty folder."""
        raise AssertionError("a subclass gives make_harness")

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a step."""
        return trio.run(work, clock=VirtualTime())

    async def _open(self) -> PartitionLog:
        return await self.harness.make(self.harness.env).open(PARTITION)

    def _kept(self) -> list[Kept]:
        return [batch for batch in self.model if batch.end > self.start]

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=6),
        value_bytes=st.integers(0, 1500),
        timestamp_ms=st.integers(0, 50),
    )
    def append(self, counts: list[int], value_bytes: int, timestamp_ms: int) -> None:
        async def step() -> None:
            for count in counts:
                batch = make_batch(
                    count, value_bytes=value_bytes, timestamp_ms=timestamp_ms, fill=len(self.model) % 256
                )
                assert self.log.append(batch) == self.end
                self.model.append(Kept(self.end, self.end + count, bytes(batch.message), timestamp_ms))
                self.end += count

        self.run(step)

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=6), value_bytes=st.integers(0, 1500))
    def append_copies(self, counts: list[int], value_bytes: int) -> None:
        copies, end = list[RecordBatch](), self.end
        for count in counts:
            batch = make_batch(count, value_bytes=value_bytes, fill=len(copies))
            batch.stamp(end, 1_000, end, 1)
            copies.append(batch)
            end = batch.end_offset

        async def step() -> None:
            assert self.log.append_copy(copies) == end

        self.run(step)
        for batch in copies:
            self.model.append(Kept(batch.base_offset, batch.end_offset, bytes(batch.message), batch.max_timestamp_ms))
        self.end = end

    @rule(start=st.integers(0, 100))
    def restart_at(self, start: int) -> None:
        self.run(lambda: self.log.restart_at(start))
        self.model.clear()
        self.start = self.end = start

    @precondition(lambda self: self.start < self.end)
    @rule(where=st.floats(0, 1, exclude_max=True), bytes_max=st.integers(0, 20_000))
    def read(self, where: float, bytes_max: int) -> None:
        offset = self.start + int(where * (self.end - self.start))
        expected: list[bytes] = []
        for batch in self.model:
            if batch.end > offset:
                if expected and sum(map(len, expected)) + len(batch.message) > bytes_max:
                    break
                expected.append(batch.message)
        assert messages_of(self.run(lambda: self.log.read(offset, bytes_max))) == expected

    @rule(bytes_max=st.integers(1, 20_000))
    def read_all(self, bytes_max: int) -> None:
        found = self.run(lambda: read_through(self.log, bytes_max))
        assert messages_of(found) == [batch.message for batch in self._kept()]

    @rule(timestamp_ms=st.integers(0, 51))
    def find_time(self, timestamp_ms: int) -> None:
        found = [max(batch.base, self.start) for batch in self._kept() if batch.max_timestamp_ms >= timestamp_ms]
        expected = found[0] if found else self.end
        assert self.run(lambda: self.log.offset_at(timestamp_ms)) == expected

    @rule()
    def sync(self) -> None:
        self.run(self.log.sync)
        assert self.log.durable() == self.end

    @rule(where=st.floats(0, 1))
    def trim_before(self, where: float) -> None:
        before = self.start + int(where * (self.end - self.start))
        self.run(lambda: self.log.trim(before=before))
        self.start = before

    @precondition(lambda self: self._kept() and self._kept()[-1].base >= self.start)
    @rule(where=st.floats(0, 1, exclude_max=True))
    def trim_after(self, where: float) -> None:
        boundaries = [batch.base for batch in self._kept() if batch.base >= self.start]
        after = boundaries[int(where * len(boundaries))]
        self.run(lambda: self.log.trim(after=after))
        self.model = [batch for batch in self.model if batch.base < after]
        self.end = after

    @rule(share=st.floats(0, 1.5))
    def retain_by_size(self, share: float) -> None:
        size = self.log.size_bytes()
        start = self._retain(bytes_max=int(share * size))
        if share >= 1:
            assert start == self.start
        self.start = start

    @rule(where=st.floats(0, 1))
    def retain_by_offset(self, where: float) -> None:
        before = self.start + int(where * (self.end - self.start))
        start = self._retain(before=before)
        assert start <= before
        self.start = start

    @rule(where=st.floats(0, 1), share=st.floats(0, 1.5))
    def retain_what_is_not_committed(self, where: float, share: float) -> None:
        ends = [self.start, *[batch.end for batch in self._kept()]]
        keep = ends[int(where * (len(ends) - 1))]
        start = self._retain(int(share * self.log.size_bytes()), self.end, keep)
        assert start <= keep
        self.start = start

    def _retain(self, bytes_max: int | None = None, before: int | None = None, keep: int | None = None) -> int:
        bounds = {"age_ms": None, "bytes_max": bytes_max, "before": before, "keep": keep}
        start = self.run(lambda: self.log.enforce_retention(0, **bounds))
        assert start == self.start or start in [batch.end for batch in self._kept()]
        return start

    @rule()
    def open_again(self) -> None:
        self.run(self.log.close)
        self.log = self.run(self._open)
        if not self.log.capabilities.survives_restart:
            self.model.clear()
            self.start = self.end = 0

    @invariant()
    def bounds_and_size_agree(self) -> None:
        assert self.log.bounds() == (self.start, self.end)
        assert self.log.durable() <= self.end
        assert self.log.size_bytes() >= sum(len(batch.message) for batch in self._kept())

    def teardown(self) -> None:
        """Close the log."""
        self.run(self.log.close)
