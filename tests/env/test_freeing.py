"""Deleting large files: their space is freed off the loop, by one thread, and nothing waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linn.core.env.real.disk import FREED_AT_ONCE_BYTES_MAX, FreeingThread, RealDisk

ENDS_WITH_ONE_THAT_IS_READ = """
import sys
from linn.core.env.real.disk import RealDisk
disk = RealDisk()
for path in sys.argv[1:]:
    file = disk.open(path)
    cycle = [file.region(0, 100)]
    cycle.append(cycle)
    disk.unlink(path)
    file.close()
    del file, cycle
"""


class Closings:
    """The thread that closes each file; each close waits until it may continue."""

    def __init__(self) -> None:
        self.threads: dict[int, int] = {}
        self.begun = threading.Semaphore(0)
        self.may_go_on = threading.Event()

    def close(self, number: int, close: Callable[[int], None] = os.close) -> None:
        inode = os.fstat(number).st_ino
        if inode in self.threads:
            self.threads[inode] = threading.get_ident()
            self.begun.release()
            assert self.may_go_on.wait(10)
        close(number)

    def expect(self, path: Path, size_bytes: int) -> str:
        """Make a file, and watch it."""
        path.write_bytes(bytes(size_bytes))
        self.threads[path.stat().st_ino] = 0
        return str(path)


@pytest.fixture
def closings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Closings]:
    closings = Closings()
    monkeypatch.setattr(os, "close", closings.close)
    yield closings
    closings.may_go_on.set()


def test_large_files_and_small_ones_behind_them_are_freed_by_one_thread(tmp_path: Path, closings: Closings) -> None:
    large = [closings.expect(tmp_path / f"large {number}", FREED_AT_ONCE_BYTES_MAX) for number in range(3)]
    small = closings.expect(tmp_path / "small", 1)
    disk = RealDisk()
    disk.unlink(large[0])
    assert closings.begun.acquire(timeout=300)
    for path in (*large[1:], small):
        disk.unlink(path)
    assert list(tmp_path.iterdir()) == []
    closings.may_go_on.set()
    for _ in range(3):
        assert closings.begun.acquire(timeout=300)
    (thread,) = set(closings.threads.values())
    assert thread not in (0, threading.get_ident())


def test_a_large_file_that_is_still_read_is_freed_there_as_well(tmp_path: Path, closings: Closings) -> None:
    path = closings.expect(tmp_path / "large", FREED_AT_ONCE_BYTES_MAX)
    closings.may_go_on.set()
    disk = RealDisk()
    file = disk.open(path)
    region = file.region(0, 1)
    disk.unlink(path)
    file.close()
    assert closings.begun.acquire(timeout=300)
    del region
    assert closings.begun.acquire(timeout=300)
    assert threading.get_ident() not in closings.threads.values()


def test_without_a_thread_files_are_closed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    freeing = FreeingThread()
    assert not freeing.wants(FREED_AT_ONCE_BYTES_MAX)
    descriptor = os.open("/dev/null", os.O_RDONLY)
    freeing.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_small_files_start_no_thread() -> None:
    assert not FreeingThread().wants(FREED_AT_ONCE_BYTES_MAX - 1)


def test_a_process_ends_while_deleted_files_are_held(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(20)]
    for path in paths:
        path.write_bytes(bytes(FREED_AT_ONCE_BYTES_MAX))
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_WITH_ONE_THAT_IS_READ, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
