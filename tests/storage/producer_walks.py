"""Runs of the producers of one partition: their state beside a model, and a log that loses power again and again."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import Any

import trio

from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.errors.tree import ProducerDuplicate, ProducerError, ProducerOutOfOrder
from linn.core.log.producers import WINDOW, Numbered, Producers, numbers_of
from linn.core.log.storage import PartitionId, PartitionLog
from linn.storage_engines.segmented_log.engine import SegmentedLogEngine
from linn.storage_engines.segmented_log.settings import SegmentedLogSettings
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

REMEMBERED = 8
"""Batches that a partition remembers of a producer, as clients rely on it."""


def outcome(producers: Producers, batch: Numbered) -> Any:
    """Outcome of a check: None, an offset, or the code of a refusal."""
    try:
        return producers.check(batch)
    except ProducerError as error:
        return error.code


def expected(log: list[Numbered], batch: Numbered) -> Any:
    """The same from all that was ever stored; the offset of a batch is its place."""
    mine = [(offset, each) for offset, each in enumerate(log) if each.producer_id == batch.producer_id]
    epoch = max((each.epoch for _, each in mine), default=-1)
    if batch.epoch < epoch:
        return "producer.fenced"
    mine = [(offset, each) for offset, each in mine if each.epoch == batch.epoch]
    next_first = max((each.end for _, each in mine), default=0)
    if batch.first >= next_first:
        return None if batch.first == next_first or batch.scattered else "producer.out_of_order"
    found = [offset for offset, each in mine[-REMEMBERED:] if each.first == batch.first]
    if found:
        return found[-1]
    is_older = len(mine) >= REMEMBERED and batch.first < min(each.first for _, each in mine[-REMEMBERED:])
    return None if batch.scattered and not is_older else "producer.duplicate"


def walk(seed: int) -> None:
    """Send numbered batches at random; the state says of each what a search of the whole log says."""
    rng = random.Random(seed)
    producers, log = Producers(), list[Numbered]()
    for at in range(300):
        first, epoch = rng.randrange(14), rng.choice([0, 0, 0, 1])
        batch = Numbered(rng.choice([1, 2, -3]), epoch, first, first + rng.randint(1, 2), scattered=rng.random() < 0.3)
        found, wanted = outcome(producers, batch), expected(log, batch)
        assert found == wanted, f"{batch} is {found}, and by the log {wanted}"
        if found is None:
            producers.stored(batch, len(log), now_s=at)
            log.append(batch)


def live_and_lose_power(seed: int) -> None:
    """Append, sync and drop segments, and lose power; an opening knows what is in the log, and nothing else."""
    run_simulation(seed, lambda env: _lives(env, random.Random(seed)))


async def _lives(env: SimEnv, rng: random.Random) -> None:
    sent = Counter[int]()
    for epoch in range(1, 5):
        env.disk.sync_delay_s_max = rng.choice([0.0, 0.01])
        env.disk.crash_at = len(env.disk.operations) + rng.randint(5, 120)
        await env.run_until_death(partial(_live, rng=rng, sent=sent, epoch=epoch))
        env = env.restart()
        await _check(env, sent)


async def _open(env: SimEnv) -> PartitionLog:
    settings = SegmentedLogSettings(segment_bytes_max=4096, fsync="always")
    engine = SegmentedLogEngine("logs", settings, env)
    await engine.damaged_tail(PartitionId("t", 0), cut=True)  # A power loss may leave a later batch without an earlier.
    return await engine.open(PartitionId("t", 0))


async def _live(env: SimEnv, rng: random.Random, sent: Counter[int], epoch: int) -> None:
    log = await _open(env)
    async with trio.open_nursery() as nursery:
        while True:
            producer_id = rng.randint(1, 3)
            batch = build_from_records([Record(value=b"x" * rng.randrange(900))], base_id=1)
            batch.number(producer_id, 0, sent[producer_id], 0)
            offset = log.append(batch, epoch)
            log.facts.epochs.note(epoch, offset)
            log.facts.producers.stored(numbers_of(batch), offset, 0.0)
            sent[producer_id] += 1
            if rng.random() < 0.2:
                nursery.start_soon(log.sync)
            if rng.random() < 0.02:
                nursery.start_soon(_keep_house, log, env.clock.now_ms())
            await trio.sleep(rng.choice([0, 0, 0.004]))


async def _keep_house(log: PartitionLog, now_ms: int) -> None:
    await log.enforce_retention(now_ms, age_ms=None, bytes_max=None, before=None)


async def _check(env: SimEnv, sent: Counter[int]) -> None:
    log = await _open(env)
    there: dict[int, list[tuple[int, int]]] = {1: [], 2: [], 3: []}
    firsts: dict[int, int] = {}
    offset, end = log.bounds()
    while offset < end:
        for batch in await log.read(offset, 1 << 20):
            firsts.setdefault(batch.leader_epoch, batch.base_offset)
            there[batch.producer_id].append((batch.first_sequence, batch.base_offset))
            offset = batch.end_offset
    for producer_id, batches in there.items():
        known = []
        for first in range(sent[producer_id] + 1):  # The last one may have been stored while power was lost.
            try:
                found = log.facts.producers.check(Numbered(producer_id, 0, first, first + 1, scattered=False))
            except (ProducerDuplicate, ProducerOutOfOrder):
                continue
            known += [(first, found)] if found is not None else []
        assert known == batches[-WINDOW:], f"of producer {producer_id} {known} is known, and {batches} is in the log"
        sent[producer_id] = batches[-1][0] + 1 if batches else 0
    for epoch, first in firsts.items():
        assert log.facts.epochs.at(first) == epoch
        wanted = min([first for later, first in firsts.items() if later > epoch], default=end)
        assert log.facts.epochs.end_of(epoch, end) == wanted, f"epoch {epoch} ends at {wanted} in the log"
    await log.close()
