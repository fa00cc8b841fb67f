"""Features of segmented-log beyond the port: segments, sealing, its settings, its errors."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from engine_cases import SMALL_SEGMENTS, segmented_log_in
from trio.testing import MockClock

from linn.core.config.decoder import check_shape
from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import DiskFull, DiskReadOnly, LogClosed, LogCorrupt, SyncFailed
from linn.core.log.storage import EngineKind
from linn.storage_engines.segmented_log.engine import SegmentedLogEngine
from linn.storage_engines.segmented_log.index import decode_summary
from linn.storage_engines.segmented_log.plugin import linn_register_engine
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings
from linn.testing.engines import PARTITION, EngineHarness, append_batches, make_batch, messages_of, read_through
from linn.testing.sim_env import SimEnv

NO_BOUND = {"age_ms": None, "bytes_max": None, "before": None}


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    return segmented_log_in(str(tmp_path), RealEnv())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / PARTITION.topic / str(PARTITION.index)


def names(folder: Path, suffix: str) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob(f"*.{suffix}"))


def test_the_plugin_brings_the_engine() -> None:
    kind = linn_register_engine()
    assert isinstance(kind, EngineKind)
    assert check_shape(kind.settings) is None
    engine = kind.make("nowhere", kind.settings(), SimEnv(0))
    assert engine.capabilities.survives_restart


@pytest.mark.parametrize(
    ("fsync", "confirm_after_sync", "flush_interval_s"),
    [("os", False, None), ("interval", False, 0.1), ("always", True, None)],
)
def test_the_fsync_policy_is_data(fsync: str, confirm_after_sync: bool, flush_interval_s: float | None) -> None:
    settings = msgspec.convert({"fsync": fsync}, SegmentedLogSettings)
    capabilities = SegmentedLogEngine("nowhere", settings, SimEnv(0)).capabilities
    assert (capabilities.confirm_after_sync, capabilities.flush_interval_s) == (confirm_after_sync, flush_interval_s)


async def test_a_segment_holds_the_batches_byte_by_byte(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        messages = append_batches(log, 3)
    assert (folder / f"{0:020d}.log").read_bytes() == b"".join(messages)


async def test_segments_are_named_after_their_first_offset_and_bounded(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        for _ in range(4):
            append_batches(log)
        bases = {batch.base_offset for batch in await read_through(log)}
    assert len(names(folder, "log")) > 5
    assert set(names(folder, "log")) <= bases
    assert max(path.stat().st_size for path in folder.glob("*.log")) <= SMALL_SEGMENTS.segment_bytes_max


async def test_sync_seals_finished_segments_and_close_all(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        append_batches(log, 24)
        assert names(folder, "index") == []
        await log.sync()
        assert names(folder, "index") == names(folder, "log")[:-1]
    assert names(folder, "index") == names(folder, "log")


async def test_retention_seals_segments_that_appends_left_unsealed(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        append_batches(log, 24)
        await log.enforce_retention(0, **NO_BOUND)
        assert set(names(folder, "index")) >= set(names(folder, "log")[:-1])
        assert log.durable() == log.bounds()[1]


async def test_the_bytes_read_by_an_opening_after_a_crash_do_not_grow_with_the_segment(tmp_path: Path) -> None:
    engine = SegmentedLogEngine(str(tmp_path), SegmentedLogSettings(), RealEnv())
    log = await engine.open(PARTITION)
    read = []
    for _ in range(2):
        for _ in range(24):
            log.append(make_batch(1, value_bytes=1 << 20))
        await log.enforce_retention(0, **NO_BOUND)
        log.append(make_batch(1, value_bytes=1 << 20))
        before = characters_read()
        again = await engine.open(PARTITION)
        read.append(characters_read() - before)
        assert again.bounds() == log.bounds()
        # It is abandoned, as by a crash.
        log = again
    assert max(read) < 2 << 20
    await log.close()


async def test_an_index_does_not_cover_batches_that_arrived_during_its_sync(
    harness: EngineHarness, folder: Path
) -> None:
    async with harness.log() as log:
        append_batches(log, 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: log.enforce_retention(0, **NO_BOUND))
            await trio.testing.wait_all_tasks_blocked()
            log.append(make_batch(1))
        index = folder / f"{0:020d}.index"
        summary = decode_summary(index.read_bytes())
        assert summary is not None
        assert summary.end_offset == log.durable() < log.bounds()[1]


def characters_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(lines[0].removeprefix("rchar: "))


async def test_a_segment_rolls_at_its_age(autojump_clock: MockClock) -> None:
    env = SimEnv(0)
    settings = SegmentedLogSettings(segment_age_ms=60_000)
    log = await SegmentedLogEngine("storage", settings, env).open(PARTITION)
    folder = f"storage/{PARTITION}"
    counts = []
    for _ in range(4):
        log.append(make_batch(1))
        await env.clock.sleep(35)
        counts.append(sum(name.endswith(".log") for name in env.disk.list_dir(folder)))
    assert counts == [1, 1, 2, 2]
    await env.clock.sleep(100)
    await log.enforce_retention(env.clock.now_ms(), **NO_BOUND)
    assert sum(name.endswith(".log") for name in env.disk.list_dir(folder)) == 3
    await log.close()


@pytest.mark.parametrize(("jump_ms", "segments"), [(-50_000, 1), (-3_600_000, 2)])
async def test_append_times_ascend_in_a_segment_and_a_clock_that_is_set_back_far_begins_another(
    autojump_clock: MockClock, jump_ms: int, segments: int
) -> None:
    env = SimEnv(0)
    harness = segmented_log_in("storage", env)
    async with harness.log() as log:
        append_batches(log, 2)
        env.clock.jump(jump_ms)
        append_batches(log, 2)
    async with harness.log() as log:
        append_batches(log, 2)
        times = [batch.append_time_ms for batch in await read_through(log)]
        statistics = log.statistics()
        assert statistics is not None
        assert statistics.segments == segments
    assert times[:2] == sorted(times[:2])
    assert times[2:] == sorted(times[2:])
    assert (times[2] < times[1]) == (segments == 2)


async def test_opening_does_not_read_sealed_segments(harness: EngineHarness, folder: Path) -> None:
    async with harness.log() as log:
        messages = append_batches(log, 30)
    for path in sorted(folder.glob("*.log")):
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    async with harness.log() as log:
        assert log.bounds()[1] == 60
        assert log.size_bytes() == sum(map(len, messages))
        with pytest.raises(LogCorrupt):
            await read_through(log)


async def test_readers_of_many_segments_keep_few_files_open(harness: EngineHarness) -> None:
    async with harness.log() as log:
        for _ in range(10):
            append_batches(log)
        await log.sync()
        before = len(os.listdir("/proc/self/fd"))
        messages = messages_of(await read_through(log))
        assert messages_of(await read_through(log)) == messages
        assert len(os.listdir("/proc/self/fd")) <= before + 8


async def test_a_full_disk_changes_nothing(autojump_clock: MockClock) -> None:
    env = SimEnv(0)
    async with segmented_log_in("storage", env).log() as log:
        messages = append_batches(log, 20)
        env.disk.capacity_bytes = env.disk.used_bytes + 100
        bounds, size = log.bounds(), log.size_bytes()
        for _ in range(3):
            with pytest.raises(DiskFull):
                log.append(make_batch(1))
        assert (log.bounds(), log.size_bytes()) == (bounds, size)
        assert await log.enforce_retention(0, age_ms=None, bytes_max=5000, before=None) > 0
        assert log.append(make_batch(1)) == bounds[1]
        found = messages_of(await read_through(log))
        assert found[:-1] == messages[-len(found) + 1 :]
        await log.sync()
        assert log.durable() == log.bounds()[1]


async def test_a_read_only_disk_is_named(autojump_clock: MockClock) -> None:
    env = SimEnv(0)
    env.disk.read_only = True
    with pytest.raises(DiskReadOnly, match="storage"):
        await segmented_log_in("storage", env).make(env).open(PARTITION)


async def test_a_failed_sync_ends_the_log(autojump_clock: MockClock) -> None:
    env = SimEnv(0)
    log = await segmented_log_in("storage", env).make(env).open(PARTITION)
    append_batches(log)
    await log.sync()
    durable = log.durable()
    append_batches(log, 1)
    env.disk.fail_next_sync()
    with pytest.raises(SyncFailed):
        await log.sync()
    assert log.durable() == durable
    with pytest.raises(LogClosed, match="sync failed"):
        log.append(make_batch(1))
    with pytest.raises(LogClosed, match="sync failed"):
        await log.read(0, 1)
    await log.close()


async def test_an_interrupted_deletion_leaves_no_old_records(autojump_clock: MockClock) -> None:
    for crash_at in range(200):
        env = SimEnv(crash_at)
        log = await segmented_log_in("storage", env).make(env).open(PARTITION)
        append_batches(log, 20)
        await log.sync()
        env.disk.crash_at = len(env.disk.operations) + crash_at
        died = await env.run_until_death(lambda _, log=log: log.delete())  # type: ignore[misc]
        env = env.restart() if died else env
        env.disk.crash_at = None
        again = await segmented_log_in("storage", env).make(env).open(PARTITION)
        assert again.bounds() in ((0, 0), (0, 39)), f"a part was left by a crash at operation {crash_at}"
        append_batches(again, 2)
        assert len(await read_through(again)) in (2, 22)
        await again.close()
        if not died:
            assert again.bounds() == (0, 3)
            return
    raise AssertionError("deleting takes a bounded number of operations")
