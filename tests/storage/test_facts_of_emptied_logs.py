"""A log that was emptied keeps its facts, whose only place is then the index of an empty segment."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from engine_cases import segmented_log_in

from linn.core.batch.batch import TRANSACTIONAL
from linn.core.batch.builder import build_marker
from linn.core.env.real.env import RealEnv
from linn.core.log.producers import Numbered, Producers, numbers_of
from linn.core.log.storage import PartitionLog
from linn.storage_engines.segmented_log.checkpoint import Checkpoint, CheckpointFile
from linn.testing.engines import PARTITION, EngineHarness, make_batch

LATER_MS = 1 << 50
NO_BOUND = {"age_ms": None, "bytes_max": None, "before": None}


@pytest.fixture
def harness(tmp_path: Path) -> EngineHarness:
    return segmented_log_in(str(tmp_path), RealEnv())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / PARTITION.topic / str(PARTITION.index)


async def opened(harness: EngineHarness) -> PartitionLog:
    """The log, opened as by a new process; a former one that did not close it has been killed."""
    return await harness.make(harness.env).open(PARTITION)


def publish(log: PartitionLog, producer: int, sequence: int = 0, *, epoch: int = 1, value_bytes: int = 1500) -> None:
    """Append a numbered batch in a transaction, and note it as a partition does."""
    batch = make_batch(1, value_bytes=value_bytes)
    batch.number(producer, 0, sequence, TRANSACTIONAL, 1)
    offset = log.append(batch, epoch)
    log.facts.epochs.note(epoch, offset)
    log.facts.producers.stored(numbers_of(batch), offset, 0.0)
    log.facts.transactions.note(batch)


async def filled(harness: EngineHarness) -> PartitionLog:
    """A log of several segments: four producers, of whose transactions one has ended, in two epochs."""
    log = await opened(harness)
    for producer in (1, 2, 3, 4):
        publish(log, producer, epoch=1 + producer // 3)
    marker = build_marker(1, 0, 1, 0, is_commit=False)
    log.append(marker, 2)
    log.facts.transactions.note(marker)
    return log


async def test_producers_that_the_leader_told_are_known_after_a_kill_and_after_a_cut(harness: EngineHarness) -> None:
    told = Producers()
    told.stored(Numbered(9, 0, 5, 6, scattered=False), 99, 0.0)
    log = await opened(harness)
    publish(log, 1)
    await log.restart_at(100)
    await log.know_producers(Producers.decode(told.encode()))
    log = await opened(harness)
    assert log.facts.producers.encode() == told.encode()
    for producer in (1, 2, 3):
        publish(log, producer)
    await log.trim(after=102)
    await log.know_producers(Producers.decode(told.encode()))
    log = await opened(harness)
    assert log.bounds() == (100, 102)
    assert log.facts.producers.encode() == told.encode()


async def emptied_by_age(log: PartitionLog) -> None:
    await log.enforce_retention(LATER_MS, age_ms=1000, bytes_max=None, before=None)


async def emptied_by_a_trim(log: PartitionLog) -> None:
    await log.trim(before=log.bounds()[1])
    await emptied_by_age(log)


async def emptied_after_its_index_was_written(log: PartitionLog) -> None:
    await log.enforce_retention(0, **NO_BOUND)  # type: ignore[arg-type]
    await emptied_by_age(log)


async def emptied_twice(log: PartitionLog) -> None:
    await emptied_by_age(log)
    publish(log, 5, epoch=3)
    await emptied_by_age(log)


async def emptied_and_published_to(log: PartitionLog) -> None:
    await emptied_by_age(log)
    publish(log, 1, 1, epoch=3)
    await log.sync()


async def emptied_and_filled(log: PartitionLog) -> None:
    await emptied_by_age(log)
    for sequence in range(1, 5):
        publish(log, 1, sequence, epoch=3)
    await log.sync()


async def stopped(log: PartitionLog) -> None:
    await log.close()


async def stopped_after_a_start(log: PartitionLog) -> None:
    await log.close()
    harness = segmented_log_in(log._folder.rsplit("/", 2)[0], RealEnv())  # type: ignore[attr-defined]
    await (await opened(harness)).close()


async def killed(log: PartitionLog) -> None:
    """Leave the log as it is."""


EMPTIED = (
    emptied_by_age,
    emptied_by_a_trim,
    emptied_after_its_index_was_written,
    emptied_twice,
    emptied_and_published_to,
    emptied_and_filled,
)
Step = Callable[[PartitionLog], Awaitable[None]]


@pytest.mark.parametrize("end", [stopped, stopped_after_a_start, killed], ids=lambda step: step.__name__)
@pytest.mark.parametrize("empty", EMPTIED, ids=lambda step: step.__name__)
async def test_a_log_that_was_emptied_knows_its_producers_epochs_and_transactions_after_a_start(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture, empty: Step, end: Step
) -> None:
    log = await filled(harness)
    await empty(log)
    wanted, bounds = log.facts.encode(), log.bounds()
    await end(log)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # The second start finds what the first one has left.
            log = await opened(harness)
            assert (log.facts.encode(), log.bounds()) == (wanted, bounds)
    assert not caplog.records, "nothing is wrong with such a log"


async def test_epochs_are_kept_where_no_producer_is_known(harness: EngineHarness) -> None:
    log = await opened(harness)
    for epoch in (1, 2):
        log.facts.epochs.note(epoch, log.append(make_batch(1), epoch))
    await emptied_by_age(log)
    assert (await opened(harness)).facts.epochs.end_of(1, 2) == 1


async def test_a_log_that_begins_again_behind_its_records_keeps_its_facts(harness: EngineHarness, folder: Path) -> None:
    log = await filled(harness)
    wanted, end = log.facts.encode(), log.bounds()[1]
    await log.close()
    checkpoint = CheckpointFile(harness.env.disk, str(folder))
    await checkpoint.read()
    await checkpoint.write(Checkpoint(end + 3, end))  # As after a power loss that took what was trimmed.
    for _ in range(2):
        log = await opened(harness)
        assert (log.facts.encode(), log.bounds()) == (wanted, (end + 3, end + 3))


async def test_a_cut_of_damage_keeps_the_facts_that_the_index_has(harness: EngineHarness, folder: Path) -> None:
    log = await filled(harness)
    await emptied_by_age(log)
    wanted = log.facts.encode()
    for sequence in range(3):
        publish(log, 6, sequence, value_bytes=100)
    [segment] = folder.glob("*.log")
    segment.write_bytes(b"\xff" * 50 + segment.read_bytes()[50:])
    tail = await harness.make(harness.env).damaged_tail(PARTITION, cut=True)
    assert tail is not None
    assert (await opened(harness)).facts.encode() == wanted
