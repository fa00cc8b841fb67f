"""Damage that no torn write explains is refused and changes nothing; a torn tail is cut off (hostile inputs, 33)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_cases import segmented_log_in

from linn.core.env.real.env import RealEnv
from linn.core.errors.tree import LogCorrupt, StorageError
from linn.core.log.storage import DamagedTail, PartitionId, PartitionLog
from linn.testing.engines import (
    PARTITION,
    EngineHarness,
    append_batches,
    make_batch,
    messages_of,
    read_through,
)

Messages = list[bytes]


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    return segmented_log_in(str(tmp_path), RealEnv())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / PARTITION.topic / str(PARTITION.index)


async def fill(harness: EngineHarness, *, rounds: int = 3) -> Messages:
    """A log of several sealed segments and an active one, closed."""
    messages: Messages = []
    async with harness.log() as log:
        for _ in range(rounds):
            messages += append_batches(log)
            await log.sync()
    return messages


async def kill(harness: EngineHarness, *, syncs: int, unsynced: int = 6) -> Messages:
    """A log whose process dies without closing it: some rounds that were synced, and some batches that were not."""
    log = await harness.make(harness.env).open(PARTITION)
    messages: Messages = []
    for _ in range(syncs):
        messages += append_batches(log)
        await log.sync()
    return messages + append_batches(log, unsynced)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def swap(first: Path, second: Path) -> None:
    between = first.with_suffix(".between")
    first.rename(between)
    second.rename(first)
    between.rename(second)


async def refusal(harness: EngineHarness, folder: Path) -> str:
    """The text of the error that opening raises, or reading the log through, having changed nothing."""
    before = snapshot(folder)
    with pytest.raises(LogCorrupt) as raised:
        await use(harness)
    after = snapshot(folder)
    assert {name: data for name, data in after.items() if name in before} == before
    return raised.value.text


async def use(harness: EngineHarness) -> Messages:
    """Open the log and read it through, as a process that never writes."""
    log = await harness.make(harness.env).open(PARTITION)
    return messages_of(await read_through(log))


async def tail_of(harness: EngineHarness, *, cut: bool) -> DamagedTail | None:
    """The damage that keeps the log from being opened."""
    return await harness.make(harness.env).damaged_tail(PARTITION, cut=cut)


async def opened(harness: EngineHarness) -> tuple[PartitionLog, Messages]:
    log = await harness.make(harness.env).open(PARTITION)
    return log, messages_of(await read_through(log))


# --- before the tail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0.0, 0.1, 0.5, 0.999])
async def test_a_flipped_byte_in_a_sealed_segment_is_found(harness: EngineHarness, folder: Path, place: float) -> None:
    await fill(harness)
    for path in segments(folder)[:3]:
        position = int(place * path.stat().st_size)
        flip(path, position)
        assert str(path) in await refusal(harness, folder)
        flip(path, position)
    assert len(await use(harness)) == 36


async def test_any_flipped_byte_of_a_closed_log_is_found_or_harmless(harness: EngineHarness, folder: Path) -> None:
    messages = await fill(harness, rounds=1)
    for path in sorted(folder.iterdir()):
        for position in range(0, path.stat().st_size, 97):
            original = path.read_bytes()
            flip(path, position)
            try:
                assert await use(harness) == messages
            except LogCorrupt:
                assert path.suffix == ".log"
            finally:
                path.write_bytes(original)


async def test_a_cut_sealed_segment_is_refused(harness: EngineHarness, folder: Path) -> None:
    await fill(harness)
    last_batch = 8 * (len(segments(folder)[1].read_bytes()) // 16)
    for count in (1, 8, last_batch):
        path = segments(folder)[1]
        original = path.read_bytes()
        cut(path, count)
        assert str(path) in await refusal(harness, folder)
        path.write_bytes(original)


async def test_a_missing_segment_is_refused(harness: EngineHarness, folder: Path) -> None:
    await fill(harness)
    for path in segments(folder):
        original = path.read_bytes()
        path.unlink()
        assert "nothing was deleted" in await refusal(harness, folder)
        path.write_bytes(original)
    assert len(await use(harness)) == 36


async def test_a_log_without_any_segment_is_refused(harness: EngineHarness, folder: Path) -> None:
    await fill(harness)
    for path in [*folder.glob("*.log"), *folder.glob("*.index")]:
        path.unlink()
    await refusal(harness, folder)


async def test_swapped_segments_are_refused(harness: EngineHarness, folder: Path) -> None:
    await fill(harness)
    paths = segments(folder)
    swap(paths[0], paths[1])
    await refusal(harness, folder)
    swap(paths[0], paths[1])
    swap(paths[-1], paths[-2])
    await refusal(harness, folder)


async def test_a_closed_log_that_became_shorter_is_refused(harness: EngineHarness, folder: Path) -> None:
    messages = await fill(harness)
    path = segments(folder)[-1]
    for count in (1, len(messages[-1])):
        original = path.read_bytes()
        cut(path, count)
        assert "was on stable storage" in await refusal(harness, folder)
        path.write_bytes(original)


async def test_damage_to_batches_that_a_later_batch_recorded_as_durable_is_refused(
    harness: EngineHarness, folder: Path
) -> None:
    log = await harness.make(harness.env).open(PARTITION)
    sizes = []
    for _ in range(4):
        batch = make_batch(2, value_bytes=150)
        log.append(batch)
        sizes.append(batch.size)
        await log.sync()
    [path] = segments(folder)
    flip(path, sizes[0] + 100)
    text = await refusal(harness, folder)
    assert str(path) in text
    assert f"byte {sizes[0]}" in text
    assert "stable storage" in text


async def test_a_damaged_checkpoint_is_refused_and_a_missing_one_is_made_again(
    harness: EngineHarness, folder: Path
) -> None:
    messages = await fill(harness)
    path = folder / "checkpoint"
    original = path.read_bytes()
    for damaged in (b"", original[:10], bytes(len(original))):
        path.write_bytes(damaged)
        assert str(path) in await refusal(harness, folder)
    path.unlink()
    assert await use(harness) == messages


# --- indexes ---------------------------------------------------------------------------------------------------------


DAMAGE_TO_AN_INDEX: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: cut(path, 5),
    "header": lambda path: flip(path, 20),
    "entries": lambda path: flip(path, 90),
    "garbage": lambda path: path.write_bytes(b"\xff" * 500),
}


@pytest.mark.parametrize("damage", DAMAGE_TO_AN_INDEX.values(), ids=DAMAGE_TO_AN_INDEX)
async def test_indexes_are_rebuilt(harness: EngineHarness, folder: Path, damage: Callable[[Path], None]) -> None:
    messages = await fill(harness)
    for path in sorted(folder.glob("*.index")):
        damage(path)
    log, found = await opened(harness)
    assert found == messages
    for offset in range(*log.bounds()):
        assert (await log.read(offset, 1))[0].base_offset <= offset
    assert await log.offset_at(12_001) == log.bounds()[1]
    await log.close()
    assert await use(harness) == messages


async def test_a_damaged_index_of_a_segment_that_grew_does_not_keep_a_torn_tail_from_being_cut_off(
    harness: EngineHarness, folder: Path
) -> None:
    log = await harness.make(harness.env).open(PARTITION)
    append_batches(log, 5)
    await log.enforce_retention(0, age_ms=None, bytes_max=None, before=None)
    durable = log.durable()
    log.append(make_batch(1))
    [index], [segment] = folder.glob("*.index"), segments(folder)
    flip(index, 90)
    cut(segment, 5)
    log, _ = await opened(harness)
    assert log.bounds() == (0, durable)
    await log.close()


async def test_swapped_indexes_are_rebuilt(harness: EngineHarness, folder: Path) -> None:
    messages = await fill(harness)
    paths = sorted(folder.glob("*.index"))
    swap(paths[0], paths[1])
    swap(paths[-1], paths[-2])
    assert await use(harness) == messages


async def test_the_index_of_another_log_does_no_harm(harness: EngineHarness, folder: Path, tmp_path: Path) -> None:
    messages = await fill(harness)
    other = segmented_log_in(str(tmp_path / "other"), RealEnv())
    async with other.log() as log:
        log.append(make_batch(7, value_bytes=33))
    [foreign] = (tmp_path / "other").rglob("*.index")
    shutil.copy(foreign, sorted(folder.glob("*.index"))[0])
    assert await use(harness) == messages


# --- the tail --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 100, 300])
async def test_a_torn_tail_is_cut_off(
    harness: EngineHarness, folder: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    messages = await kill(harness, syncs=1, unsynced=2)
    whole, last = messages[:-1], segments(folder)[-1]
    cut(last, count)
    torn_bytes = len(messages[-1]) - count
    log, found = await opened(harness)
    assert found == whole
    assert log.durable() == log.bounds()[1]
    assert f"{folder}: cut off a torn tail of {torn_bytes} bytes" in caplog.text
    assert [(line.args["folder"], line.args["bytes"]) for line in caplog.records] == [(str(folder), torn_bytes)]
    log.append(make_batch(1))
    await log.close()
    assert len(await use(harness)) == len(whole) + 1


@pytest.mark.parametrize("garbage", [b"\0" * 3000, b"\xff" * 3000, b"\0\0\0\0\xff\xff\xff\xff" * 40, b"\0" * 3])
async def test_garbage_behind_the_end_is_cut_off(harness: EngineHarness, folder: Path, garbage: bytes) -> None:
    messages = await kill(harness, syncs=1)
    with segments(folder)[-1].open("ab") as file:
        file.write(garbage)
    assert await use(harness) == messages


async def test_remains_of_a_failed_write_in_a_finished_segment_are_dropped(
    harness: EngineHarness, folder: Path
) -> None:
    messages = await fill(harness)
    before, left = snapshot(folder), messages[-1][:100]
    paths = segments(folder)[:-1]
    for path in paths:
        path.write_bytes(path.read_bytes() + left)
    assert await use(harness) == messages
    after = snapshot(folder)
    assert {name: data for name, data in after.items() if not name.endswith(".cut")} == before
    assert [data for name, data in after.items() if name.endswith(".cut")] == [left] * len(paths)


async def test_damage_before_a_whole_batch_is_refused_and_cut_only_on_request(
    harness: EngineHarness, folder: Path
) -> None:
    messages = await kill(harness, syncs=0, unsynced=9)
    flip(segments(folder)[0], len(messages[0]) + 70)
    assert "linn recover orders/0" in await refusal(harness, folder)
    tail = await tail_of(harness, cut=False)
    assert tail is not None
    assert (tail.offset, tail.batches, tail.records) == (1, 7, 15)
    assert await refusal(harness, folder)
    everything = b"".join(path.read_bytes() for path in segments(folder))
    assert await tail_of(harness, cut=True) == tail
    assert await tail_of(harness, cut=True) is None
    assert await use(harness) == messages[:1]
    aside = b"".join(path.read_bytes() for path in sorted(folder.glob("*.cut")))
    assert messages[0] + aside == everything
    assert tail.bytes == len(aside)


async def test_a_torn_tail_is_set_aside(harness: EngineHarness, folder: Path) -> None:
    messages = await kill(harness, syncs=0, unsynced=3)
    flip(segments(folder)[-1], len(messages[0]) + len(messages[1]) + 70)
    torn = segments(folder)[-1].read_bytes()[-len(messages[2]) :]
    assert await use(harness) == messages[:-1]
    assert [path.read_bytes() for path in folder.glob("*.cut")] == [torn]


async def test_a_log_that_was_opened_once_is_known_to_be_durable(harness: EngineHarness, folder: Path) -> None:
    messages = await kill(harness, syncs=0, unsynced=3)
    assert await use(harness) == messages
    cut(segments(folder)[-1], len(messages[-1]))
    assert "was on stable storage" in await refusal(harness, folder)


async def test_a_missing_first_segment_of_a_killed_log_is_refused(harness: EngineHarness, folder: Path) -> None:
    await kill(harness, syncs=0, unsynced=40)
    paths = segments(folder)
    assert len(paths) > 3
    paths[0].unlink()
    assert "the first segment is missing" in await refusal(harness, folder)


async def test_first_segments_of_two_killed_logs_that_are_swapped_are_refused_and_nothing_is_lost(
    harness: EngineHarness, folder: Path, tmp_path: Path
) -> None:
    await kill(harness, syncs=0, unsynced=40)
    other = await harness.make(harness.env).open(PartitionId(PARTITION.topic, 1))
    for _ in range(60):
        other.append(make_batch(7, value_bytes=30))
    swap(segments(folder)[0], segments(folder.parent / "1")[0])
    before = [snapshot(folder), snapshot(folder.parent / "1")]
    for index in (0, 1):
        with pytest.raises(LogCorrupt):
            await harness.make(harness.env).open(PartitionId(PARTITION.topic, index))
    assert [snapshot(folder), snapshot(folder.parent / "1")] == before


DAMAGES: dict[str, Callable[[Path, int], None]] = {
    "flip": flip,
    "zeros": lambda path, at: overwrite(path, at, bytes(512)),
    "ones": lambda path, at: overwrite(path, at, b"\xff" * 64),
    "cut": lambda path, at: path.write_bytes(path.read_bytes()[:at]),
    "missing": lambda path, at: path.unlink(),
}


def overwrite(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data[: len(content) - at]
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_no_damage_to_a_killed_log_loses_a_record_without_a_line(
    harness: EngineHarness, folder: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path, int], None]
) -> None:
    """A start after any damage gives everything, or refuses and changes nothing, or reports what it has cut off."""
    messages = await kill(harness, syncs=1, unsynced=16)
    before = snapshot(folder)
    last = segments(folder)[-1]
    for name in before:
        for place in (0.0, 0.4, 0.97):
            shutil.rmtree(folder)
            folder.mkdir()
            for other, data in before.items():
                (folder / other).write_bytes(data)
            at = int(place * max(0, len(before[name]) - 1))
            damage(folder / name, at)
            damaged = snapshot(folder)
            caplog.clear()
            try:
                log = await harness.make(harness.env).open(PARTITION)
            except LogCorrupt:
                assert snapshot(folder) == damaged, f"{name} at {at}: refused, and changed all the same"
                continue
            try:
                found = messages_of(await read_through(log))
            except LogCorrupt:
                continue
            if found != messages:
                # What was never synced may end early, and nothing can tell where it once ended.
                assert found == messages[: len(found)]
                assert folder / name == last
                assert caplog.records or damage in (DAMAGES["cut"], DAMAGES["missing"])


LOSSES: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("syncs", [1, 2, 9, 10, 11, 12, 30])
async def test_the_loss_of_a_file_of_a_killed_log_is_found_once_the_file_was_synced(
    harness: EngineHarness, folder: Path, syncs: int, loss: Callable[[Path], None]
) -> None:
    log = await harness.make(harness.env).open(PARTITION)
    messages: Messages = []
    for _ in range(syncs):
        messages += append_batches(log, 1)
        log.append(make_batch(1, value_bytes=300))
        messages.append(messages_of(await read_through(log))[-1])
        await log.sync()
    before = snapshot(folder)
    for name in before:
        shutil.rmtree(folder)
        folder.mkdir()
        for other, data in before.items():
            (folder / other).write_bytes(data)
        loss(folder / name)
        if name.endswith(".log") or (name == "checkpoint" and loss is LOSSES["empty"]):
            assert await refusal(harness, folder), name
        else:
            assert await use(harness) == messages, name


async def test_what_an_idle_log_loses_at_its_end_is_found_whatever_the_policy(
    harness: EngineHarness, folder: Path
) -> None:
    log = await harness.make(harness.env).open(PARTITION)
    messages = append_batches(log, 3)
    for _ in range(2):
        await log.enforce_retention(0, age_ms=None, bytes_max=None, before=None)
    cut(segments(folder)[-1], len(messages[-1]))
    assert "was on stable storage" in await refusal(harness, folder)


async def test_an_empty_segment_that_gets_its_first_batch_is_missed_when_it_is_lost(
    harness: EngineHarness, folder: Path
) -> None:
    log = await harness.make(harness.env).open(PARTITION)
    append_batches(log, 3)
    await log.enforce_retention(1 << 50, age_ms=1000, bytes_max=None, before=None)
    assert log.bounds() == (6, 6)
    log.append(make_batch(1))
    await log.sync()
    segments(folder)[-1].write_bytes(b"")
    assert "was on stable storage" in await refusal(harness, folder)


async def test_a_process_that_was_killed_loses_nothing(harness: EngineHarness) -> None:
    messages = await kill(harness, syncs=0, unsynced=30)
    assert await use(harness) == messages
    assert await use(harness) == messages


async def test_folders_are_not_made_outside_the_engines(harness: EngineHarness) -> None:
    engine = harness.make(harness.env)
    for topic in ("", ".", "..", "../x", "a/b", "a\0b"):
        with pytest.raises(StorageError):
            await engine.open(type(PARTITION)(topic, 0))
