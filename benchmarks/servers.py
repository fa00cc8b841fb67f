"""The measured processes, and the folder that they write to.

Law: a process is ended by the code that started it, by its id, on every way out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.load import PUBLISHED_BYTES, Target
from benchmarks.plan import RING_BYTES
from linn.testing.process import BrokerProcess

Bare = AbstractContextManager[Target]
FREE_BYTES_MIN = 4 << 30
END_TIMEOUT_S = 10.0

CONFIG = f"""
[storage.dram]
memory_bytes_max = {1 << 30}

[topics.ring]
kind = "stream"
storage = "dram"
bytes_max = {RING_BYTES}
overflow = "drop-head"

[topics.memory]
kind = "stream"
storage = "dram"

[topics.log]
kind = "stream"

[topics.queue]
kind = "queue"
"""


class DiskTooFull(Exception):
    """Raised if the disk has too little room to measure anything that writes."""


def check_room(folder: Path) -> None:
    """Check the room on the disk. Raises DiskTooFull."""
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES_MIN:
        raise DiskTooFull(
            f"{folder} has {free / 2**30:.1f} GiB free and {FREE_BYTES_MIN >> 30} GiB are needed: make room, or name "
            "another folder with --folder"
        )


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """Make a temporary folder inside `folder`, removed afterwards. Raises DiskTooFull."""
    check_room(folder)
    with TemporaryDirectory(prefix="linn-bench-", dir=folder) as name:
        yield Path(name)


def set_apart(pid: int) -> None:
    """Give a server a processor of its own, and the load the others, if there is more than one.

    Left to the kernel, the two processes of the floor often share one and those of linn seldom do; that alone changes a
    latency by a factor of three, and a rate by two.
    """
    *others, last = _PROCESSORS
    if others:
        os.sched_setaffinity(pid, {last})
        os.sched_setaffinity(0, others)


def share_processors() -> None:
    """Give the load all processors again; servers that run already keep theirs."""
    os.sched_setaffinity(0, _PROCESSORS)


_PROCESSORS = sorted(os.sched_getaffinity(0))


def floor(mode: str, *, file: Path | None = None, keep: int = 0, options: Sequence[str] = ()) -> Bare:
    """Run the floor in a process of its own; see its options."""
    found = ["--mode", mode, "--reply-bytes", str(PUBLISHED_BYTES), "--keep", str(keep)]
    if file is not None:
        found += ["--file", str(file)]
    return bare("benchmarks.floor", [*found, *options])


def relay() -> Bare:
    """Run the floor of a queue."""
    return bare("benchmarks.relay", ["--reply-bytes", str(PUBLISHED_BYTES)])


@contextmanager
def bare(module: str, options: Sequence[str]) -> Iterator[Target]:
    """Run a bare server in a process of its own; it prints its port and ends with its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the floor ended with {process.wait(END_TIMEOUT_S)}")
        set_apart(process.pid)
        yield Target(int(line), process.pid, is_linn=False)
    finally:
        process.kill()
        process.communicate(timeout=END_TIMEOUT_S)


@contextmanager
def broker(folder: Path, config: str = CONFIG, options: Sequence[str] = ()) -> Iterator[BrokerProcess]:
    """Run `linn serve` in a process of its own, with its data in `folder`. Raises BrokerNotReady."""
    with BrokerProcess(folder, config, options=options) as process:
        set_apart(process.pid)
        yield process


def target_of(process: BrokerProcess) -> Target:
    """The target of the load."""
    return Target(int(process.address.rpartition(":")[2]), process.pid, is_linn=True)
