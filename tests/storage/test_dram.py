"""Features of dram beyond the port: its bound on memory, spilling in order, and no trace on the disk."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from engine_cases import SMALL_DRAM, dram_in
from trio.testing import MockClock

from linn.core.batch.batch import RecordBatch
from linn.core.config.decoder import check_shape
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import DiskFull, LogCorrupt
from linn.core.log.storage import EngineKind, PartitionId
from linn.core.loop.memory_budget import MemoryShare
from linn.storage_engines.dram.engine import DramEngine
from linn.storage_engines.dram.memory import BATCH_OVERHEAD_BYTES
from linn.storage_engines.dram.plugin import linn_register_engine
from linn.storage_engines.dram.settings import DramSettings
from linn.testing.engines import PARTITION, EngineHarness, append_batches, make_batch, messages_of, read_through
from linn.testing.sim_env import SimEnv


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    return dram_in(str(tmp_path / "dram"), RealEnv())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dram"


def scratch_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0


def test_the_plugin_brings_the_engine() -> None:
    kind = linn_register_engine()
    assert isinstance(kind, EngineKind)
    assert check_shape(kind.settings) is None
    assert not kind.make("nowhere", kind.settings(), SimEnv(0)).capabilities.survives_restart


async def test_batches_that_fit_into_memory_touch_no_disk(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        append_batches(log, 3)
        assert not folder.exists()


async def test_batches_that_do_not_fit_are_spilled_in_order(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        messages = append_batches(log, 30)
        in_memory = log.size_bytes() - scratch_bytes(folder)
        assert 0 < in_memory <= SMALL_DRAM.memory_bytes_max
        assert messages_of(await read_through(log)) == messages
    assert list(folder.iterdir()) == []


async def test_small_batches_are_counted_with_pythons_overhead(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        for _ in range(100):
            log.append(make_batch(1, value_bytes=0))
        spilled = scratch_bytes(folder) // make_batch(1, value_bytes=0).size
        assert len(await read_through(log)) == 100
        assert 0 < 100 - spilled <= SMALL_DRAM.memory_bytes_max // BATCH_OVERHEAD_BYTES


async def test_a_backlog_that_is_worked_off_gives_the_disk_back(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        messages = append_batches(log, 40)
        spilled = scratch_bytes(folder)
        start = 0
        while start < log.bounds()[1]:
            [batch] = await log.read(start, 0)
            assert bytes(batch.message) == messages.pop(0)
            start = batch.end_offset
            await log.trim(before=start)
            assert scratch_bytes(folder) <= spilled
        assert scratch_bytes(folder) == log.size_bytes() == 0
        append_batches(log, 3)
        assert scratch_bytes(folder) == 0


async def test_spilling_continues_until_half_of_memory_is_free(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        append_batches(log, 30)
        first = (await log.read(0, 0))[0]
        await log.trim(before=first.end_offset)
        spilled = scratch_bytes(folder)
        batch = make_batch(1, value_bytes=0)
        log.append(batch)
        assert scratch_bytes(folder) == spilled + batch.size
        found = await read_through(log)
        assert messages_of(found)[-1] == bytes(batch.message)


async def test_a_full_disk_changes_nothing(autojump_clock: MockClock) -> None:
    env = SimEnv(0)
    async with dram_in("dram", env).log() as log:
        messages = append_batches(log, 5)
        env.disk.capacity_bytes = 3000
        with contextlib.suppress(DiskFull):
            while True:
                messages += append_batches(log, 1)
        bounds = log.bounds()
        with pytest.raises(DiskFull):
            log.append(make_batch(1, value_bytes=9000))
        assert log.bounds() == bounds
        assert log.size_bytes() == sum(map(len, messages))
        assert messages_of(await read_through(log)) == messages
        await log.trim(before=bounds[1])
        assert log.append(make_batch(1)) == bounds[1]


async def test_damage_to_a_scratch_file_is_found(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        append_batches(log, 30)
        path = sorted(folder.iterdir())[0]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(LogCorrupt, match=path.name):
            await read_through(log)


async def test_scratch_files_of_an_earlier_process_are_removed(harness: EngineHarness, folder: Path) -> None:
    killed = await harness.make(harness.env).open(PARTITION)
    append_batches(killed, 40)
    assert scratch_bytes(folder) > 0
    async with harness.log() as log:
        assert scratch_bytes(folder) == 0
        assert log.bounds() == (0, 0)


async def test_partitions_spill_into_files_of_their_own(tmp_path: Path) -> None:
    engine = DramEngine(str(tmp_path / "dram"), DramSettings(memory_bytes_max=0), RealEnv())
    logs = [await engine.open(PartitionId("orders", index)) for index in range(3)]
    messages = [append_batches(log, 5 + number) for number, log in enumerate(logs)]
    for log, expected in zip(logs, messages, strict=True):
        assert messages_of(await read_through(log)) == expected
        await log.close()


async def test_a_small_batch_does_not_keep_a_large_buffer_alive(harness: EngineHarness) -> None:
    small = make_batch(1)
    buffer = bytearray(100_000)
    buffer[: small.size] = small.message
    async with harness.log() as log:
        log.append(RecordBatch(memoryview(buffer)[: small.size]))
        [kept] = await log.read(0, 0)
        assert memoryview(kept.message.obj).nbytes == small.size


async def test_all_logs_together_keep_no_more_than_the_brokers_share(tmp_path: Path) -> None:
    folder = tmp_path / "dram"
    engine, share = DramEngine(str(folder), DramSettings(), RealEnv()), MemoryShare("stored", 20_000)
    engine.count_in(share)
    logs = [await engine.open(PartitionId("orders", index)) for index in range(3)]
    messages: list[list[bytes]] = [[], [], []]
    for _ in range(20):
        for log, expected in zip(logs, messages, strict=True):
            expected += append_batches(log, 1)
            assert share.used_bytes <= share.bytes_max
    assert scratch_bytes(folder) > 0
    for log, expected in zip(logs, messages, strict=True):
        assert messages_of(await read_through(log)) == expected
    await logs[0].trim(before=20)
    await logs[1].close()
    assert 0 < share.used_bytes < share.bytes_max / 2
    written = scratch_bytes(folder)
    append_batches(logs[0], 1)
    assert scratch_bytes(folder) == written, "a half is free again"
    await logs[0].close()
    await logs[2].close()
    assert share.used_bytes == 0
