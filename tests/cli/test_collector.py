"""The settings of Python's garbage collector in `linn serve`."""

from __future__ import annotations

import gc
import logging
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from linn.cli.server.collector import GROWTH_BYTES_MIN, Collector
from linn.cli.server.log import Log
from linn.cli.server.server import THREAD_SWITCH_S, Server


class Memory:
    """A simulated size of the process."""

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


def test_surviving_objects_are_not_examined_again(memory: Memory) -> None:
    kept = [Cycle() for _ in range(1_000)]
    gc.collect()
    assert len(gc.get_objects()) < 1_000
    assert gc.get_freeze_count() > len(kept)


def test_garbage_made_before_the_first_look_is_found(memory: Memory) -> None:
    left = weakref.ref(Cycle())
    gc.collect()
    assert left() is None


def test_garbage_made_later_is_found_when_the_process_has_doubled(memory: Memory) -> None:
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


def test_a_broker_sets_a_short_switch_interval_and_freezes_loaded_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, bool]] = []
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    server = Server(None, data_dir=str(tmp_path), listen=(), log=Log(sys.stderr))
    monkeypatch.setattr(trio, "run", lambda *_: seen.append((sys.getswitchinterval(), gc.get_freeze_count() > 10_000)))
    before = sys.getswitchinterval()
    try:
        server.run(with_parent=False)
    finally:
        sys.setswitchinterval(before)
    assert seen == [(pytest.approx(THREAD_SWITCH_S), True)]
