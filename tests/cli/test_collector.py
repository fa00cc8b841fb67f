"""What `linn serve` has Python's collector look at."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from linn.cli.collector import GROWTH_BYTES_MIN, Collector


class Memory:
    """What the process is said to take."""

    def __init__(self) -> None:
        self.size = 100 << 20


class Cycle:
    """An object that only the collector finds, once nobody has it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory()
    gc.collect()
    with Collector(lambda: memory.size):
        yield memory
    gc.unfreeze()


def test_what_was_looked_at_and_stayed_is_not_looked_at_again(memory: Memory) -> None:
    kept = [Cycle() for _ in range(1_000)]
    gc.collect()
    assert len(gc.get_objects()) < 1_000
    assert gc.get_freeze_count() > len(kept)


def test_what_was_left_before_it_was_looked_at_is_found(memory: Memory) -> None:
    left = weakref.ref(Cycle())
    gc.collect()
    assert left() is None


def test_what_is_left_later_is_found_when_the_process_has_doubled(memory: Memory) -> None:
    cycle = Cycle()
    gc.collect()
    left = weakref.ref(cycle)
    del cycle
    memory.size = 2 * memory.size - 1
    gc.collect()
    assert left() is not None
    memory.size += 1
    gc.collect()
    assert left() is None
    later = weakref.ref(kept := Cycle())
    gc.collect()
    del kept
    memory.size += GROWTH_BYTES_MIN
    gc.collect()
    assert later() is not None, "it is twice the size of the last time that counts"


def test_a_small_process_may_double(memory: Memory) -> None:
    memory.size = 1
    with Collector(lambda: memory.size) as collector:
        cycle = Cycle()
        collector.keep()
        left = weakref.ref(cycle)
        del cycle
        memory.size = GROWTH_BYTES_MIN
        gc.collect()
        assert left() is not None
        memory.size += 1
        gc.collect()
        assert left() is None


def test_young_objects_are_looked_at_as_ever(memory: Memory) -> None:
    left = weakref.ref(Cycle())
    frozen = gc.get_freeze_count()
    gc.collect(0)
    assert left() is None
    assert gc.get_freeze_count() <= frozen


def test_afterwards_pythons_own_rules_hold() -> None:
    with Collector(lambda: 0):
        pass
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert gc.get_freeze_count() == 0
