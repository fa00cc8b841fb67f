"""The producers of a log as they were at an earlier end, for a replica that lacks the records."""

from __future__ import annotations

from random import Random

import pytest

from linn.core.log.producers import WINDOW, Numbered, Producers

NEVER = float("inf")


def batches(rng: Random, *, scattered: bool) -> list[tuple[Numbered, int]]:
    """Some numbered batches of three producers, with their offsets; epochs rise sometimes."""
    found, ends, epochs, offset = [], [0, 0, 0], [0, 0, 0], 0
    for _ in range(rng.randrange(40)):
        who, count = rng.randrange(3), rng.randint(1, 4)
        if rng.random() < 0.05:
            epochs[who], ends[who] = epochs[who] + 1, 0
        first = ends[who] + (rng.randrange(3) if scattered else 0)
        found.append((Numbered(who + 1, epochs[who], first, first + count, scattered), offset))
        ends[who], offset = first + count, offset + count
    return found


def known(found: list[tuple[Numbered, int]]) -> Producers:
    producers = Producers()
    for numbered, offset in found:
        producers.stored(numbered, offset, NEVER)
    return producers


@pytest.mark.parametrize("seed", range(40))
def test_at_its_end_a_log_has_the_producers_that_it_has(seed: int) -> None:
    found = batches(Random(seed), scattered=bool(seed % 2))
    producers = known(found)
    assert producers.before(1 << 40).encode() == producers.encode()


@pytest.mark.parametrize("seed", range(40))
def test_a_replica_that_was_told_of_earlier_producers_knows_repeated_batches_and_gaps(
    seed: int,
) -> None:
    rng = Random(seed)
    found = batches(rng, scattered=False)
    cut = rng.randrange(len(found) + 1)
    at = found[cut][1] if cut < len(found) else 1 << 40
    told = Producers.decode(known(found).before(at).encode())
    for numbered, offset in found[cut:]:
        told.stored(numbered, offset, NEVER)
    leading = known(found)
    for numbered, offset in found[-WINDOW:]:
        if numbered.epoch == max(each.epoch for each, _ in found if each.producer_id == numbered.producer_id):
            assert told.check(numbered) == leading.check(numbered) == offset
    for who in (1, 2, 3):
        last = [numbered for numbered, _ in found if numbered.producer_id == who]
        if last:
            following = Numbered(who, last[-1].epoch, last[-1].end, last[-1].end + 1, False)
            assert told.check(following) is leading.check(following) is None
