"""The index of ids against a plain dict: whatever is published, written as a run, cut by a crash, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from test_message_status import small_runs

from linn.core.batch.batch import ID_MASK, RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import LogCorrupt
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId
from linn.core.log.storage_stats import StorageStats
from linn.core.topics import message_index
from linn.core.topics.message_index import CHUNKS, MessageIndex, index_topic
from linn.storage_engines.dram.engine import DramEngine
from linn.storage_engines.dram.settings import DramSettings
from linn.testing.sim_env import SimEnv

STATUS_MS = 1_000_000
IDS = st.one_of(st.binary(min_size=16, max_size=16), st.sampled_from([bytes(16), b"\xff" * 16, bytes(15) + b"\1"]))
ACTIONS = st.one_of(
    st.tuples(st.just("ids"), st.lists(IDS, min_size=1, max_size=5)),
    st.tuples(st.just("base"), IDS),
    st.tuples(st.sampled_from(["tidy", "open again", "crash"]), st.none()),
)


def counted_up(id: bytes, by: int) -> bytes:
    return (int.from_bytes(id) + by & ID_MASK).to_bytes(16)


class IndexRun:
    """An index in memory, and the offsets that it has to find."""

    def __init__(self, env: SimEnv) -> None:
        self._env = env
        self._engine = DramEngine("scratch", DramSettings(), env)
        self.model: dict[bytes, int] = {}

    async def log(self, id: PartitionId) -> Partition:
        clock = self._env.clock
        return Partition(id, await self._engine.open(id), StorageStats("t"), clock, lambda task: None)

    async def begin(self) -> None:
        self.partition, self.own = await self.log(PartitionId("t", 0)), await self.log(PartitionId(index_topic("t"), 0))
        await self.open()

    async def open(self) -> None:
        self.index = MessageIndex(self.partition, StateLog(self.own, self._env.clock), self._env.clock)
        await self.index.load(STATUS_MS)

    def publish(self, batch: RecordBatch, ids: Sequence[bytes]) -> None:
        base = self.partition.append(batch)
        self.index.note(batch)
        self.model |= {id: base + at for at, id in enumerate(ids)}

    async def act(self, action: str, content: list[bytes] | bytes | None) -> None:
        if isinstance(content, list):
            made = [Record(value=b"v", id=UUID(bytes=id)) for id in content]
            self.publish(build_from_records(made, base_id=0), content)
        elif isinstance(content, bytes):
            batch = build_from_records([Record(value=b"v")] * 4, base_id=int.from_bytes(content))
            self.publish(batch, [counted_up(content, by) for by in range(4)])
        elif action == "tidy":
            await self.index.tidy(None, STATUS_MS)
        else:
            if action == "crash" and self.own.log.bounds()[1] > self.own.start_offset:
                await self.own.log.trim(after=max(self.own.start_offset, self.own.log.bounds()[1] - 100))
            await self.open()

    async def check(self) -> None:
        wanted = list(self.model)
        assert await self.index.find(wanted) == self.model
        others = [id for known in wanted[:9] for id in (known[1:] + known[:1], counted_up(known, 5))]
        others = [id for id in others if id not in self.model]
        assert await self.index.find(others) == {}


@given(st.lists(ACTIONS, max_size=12))
def test_the_index_finds_the_newest_record_of_each_id_and_no_other(
    actions: list[tuple[str, list[bytes] | bytes | None]],
) -> None:
    async def run() -> None:
        world = IndexRun(SimEnv(0))
        await world.begin()
        for action, content in actions:
            await world.act(action, content)
            await world.check()

    with small_runs(rows=4):
        trio.run(run)


@pytest.mark.parametrize("left", [1, 2, 100, CHUNKS - 1, CHUNKS])
def test_a_run_that_a_crash_has_cut_short_is_made_again(left: int) -> None:
    async def run() -> None:
        world = IndexRun(SimEnv(0))
        await world.begin()
        ids = [bytes(15) + bytes([number]) for number in range(10)]
        await world.act("ids", ids)
        await world.act("tidy", None)
        await world.own.log.trim(after=left)
        for _ in range(2):
            await world.open()
            await world.check()
            assert world.own.log.bounds()[1] == 2 * (CHUNKS + 1)
        await world.act("base", bytes(16))
        await world.act("tidy", None)
        await world.open()
        await world.check()

    with small_runs(rows=4):
        trio.run(run)


@pytest.mark.parametrize("value", [b"", b"\0", b"\3abc", b"x" * 100])
def test_a_record_that_no_broker_has_written_is_refused(value: bytes) -> None:
    async def run() -> None:
        world = IndexRun(SimEnv(0))
        await world.begin()
        StateLog(world.own, world._env.clock).append(value)
        with pytest.raises(LogCorrupt, match="no broker can have written"):
            await world.open()

    trio.run(run)


def test_an_id_is_not_found_across_two_rows() -> None:
    async def run() -> None:
        world = IndexRun(SimEnv(0))
        await world.begin()
        ids = [bytes(15) + b"\7", bytes(14) + b"\1\7"]
        await world.act("ids", ids)
        rows = b"".join(id + at.to_bytes(8) for at, id in enumerate(ids))
        between = [rows[at : at + 16] for at in range(1, len(rows) - 16) if at % 24]
        assert await world.index.find([id for id in between if id not in ids]) == {}
        await world.check()

    trio.run(run)


def test_a_start_that_reads_the_log_in_parts_leaves_no_record_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = IndexRun(SimEnv(0))
        await world.begin()
        for number in range(30):
            await world.act("ids", [bytes(15) + bytes([number])])
        await world.own.log.restart_at(0)
        for _ in range(2):
            await world.open()
            await world.check()

    monkeypatch.setattr(message_index, "_READ_BYTES", 1)
    with small_runs(rows=4):
        trio.run(run)
