"""The first batch of a run from some time on: the same as a look at each of them, whatever order the times have."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linn.storage_engines.dram.memory import LatestTimes, MemoryRun
from linn.testing.engines import make_batch

LEAST, MOST = -(1 << 63), (1 << 63) - 1
HEIGHTS = {
    "ascending": lambda rng, n: n,
    "descending": lambda rng, n: -n,
    "any": lambda rng, n: rng.randrange(1_000),
    "few": lambda rng, n: rng.choice((LEAST, 0, MOST)) if not rng.randrange(200) else 0,
}


def looked_through(times: list[int], place: int, time_ms: int) -> int | None:
    return next((n for n in range(place, len(times)) if times[n] >= time_ms), None)


def check(found: LatestTimes, times: list[int], rng: random.Random) -> None:
    for _ in range(20):
        place = rng.randint(0, len(times))
        near = rng.choice(times) if times else 0
        for time_ms in (max(LEAST, near - 1), near, min(MOST, near + 1)):
            assert found.first_from(place, time_ms) == looked_through(times, place, time_ms)


@settings(max_examples=150, deadline=None)
@given(
    deeds=st.lists(st.tuples(st.sampled_from(["append", "forget", "cut"]), st.integers(0, 5_000)), max_size=8),
    height=st.sampled_from(sorted(HEIGHTS)),
    seed=st.integers(0, 99),
)
def test_a_search_agrees_with_a_linear_scan(deeds: list[tuple[str, int]], height: str, seed: int) -> None:
    rng, found, times = random.Random(seed), LatestTimes(), list[int]()
    for deed, count in [("append", 70), *deeds]:
        if deed == "append":
            more = [HEIGHTS[height](rng, n) for n in range(len(times), len(times) + count)]
            times += more
            for time_ms in more:
                found.append(time_ms)
        elif deed == "forget":
            count = min(count, len(times))
            found.forget(count)
            del times[:count]
        else:
            count = min(count, len(times))
            found.cut(count)
            del times[count:]
        check(found, times, rng)


@pytest.mark.parametrize("seed", range(10))
async def test_a_run_finds_the_first_remaining_batch_after_any_removals(seed: int) -> None:
    rng, run, kept = random.Random(seed), MemoryRun(0), list[tuple[int, int, int]]()
    for _ in range(400):
        for _ in range(rng.randrange(4)):
            batch = make_batch(rng.randint(1, 3), timestamp_ms=rng.randrange(50))
            batch.stamp(run.end_offset, 1)
            run.append(batch)
            kept.append((batch.base_offset, batch.end_offset, batch.max_timestamp_ms))
        start = kept[0][0] if kept else run.end_offset
        if rng.random() < 0.6:
            start = rng.randint(start, min(run.end_offset, start + 6))
            run.forget(start)
            kept = [batch for batch in kept if batch[1] > start]
        if kept and not rng.randrange(40):
            place = rng.randrange(len(kept))
            await run.cut(kept[place][0])
            del kept[place:]
        for time_ms in (0, 10, 40, 48, 49, 50):
            at = rng.randint(start, run.end_offset + 1)
            expected = next((max(b, at) for b, end, time in kept if time >= time_ms and end > at), None)
            assert await run.offset_at(time_ms, at) == expected
