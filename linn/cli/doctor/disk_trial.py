"""Checks of the disk under a data folder: free space, time of a sync, and cut logs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from linn.cli.doctor.finding import Finding
from linn.cli.doctor.machine import disk_space, existing_part
from linn.core.errors.texts import counted

FREE_BYTES_MIN = 1 << 30
FREE_SHARE_MIN = 0.05
"""Free share of the disk below which many file systems become slow, and a growing topic soon fills it."""
SLOW_SYNC_MS = 20.0
"""Time of a sync from which `fsync = "always"` is felt; disks take 1 to 5 ms, network volumes 10."""
_SYNCS = 20
_WRITE_BYTES = 4096


def disk_findings(data_dir: str) -> Iterator[Finding]:
    """Run the checks. Writes a small file beside the data, and removes it."""
    yield _room(data_dir)
    yield _speed(data_dir)
    yield from _cut_logs(data_dir)


def _cut_logs(data_dir: str) -> Iterator[Finding]:
    """Warn of logs that recoveries have cut off and set aside."""
    found = sorted(Path(data_dir).glob("*/*/*/*.cut*"))
    if found:
        size = sum(path.stat().st_size for path in found)
        text = f"{counted(size, 'byte')} cut off damaged logs, in {counted(len(found), 'file')}, such as {found[0]}"
        yield Finding("cut logs", "warning", text, "look at what they hold, then delete them")


def _room(data_dir: str) -> Finding:
    space = disk_space(data_dir)
    if space is None:
        return Finding("disk space", "error", f"the disk of {data_dir} can't be asked", "check broker.data_dir")
    free = f"{space.free_bytes / (1 << 30):,.1f} GiB of {space.total_bytes / (1 << 30):,.1f} GiB free for {data_dir}"
    if space.free_bytes < max(FREE_BYTES_MIN, FREE_SHARE_MIN * space.total_bytes):
        advice = "make room, or give topics bytes_max, retention or retention_bytes"
        return Finding("disk space", "warning", free, advice)
    return Finding("disk space", "ok", free)


def _speed(data_dir: str) -> Finding:
    place = existing_part(data_dir)
    try:
        took_ms = sorted(_sync_ms(str(place)))
    except OSError as error:
        found = f"{place} can't be written: {error.strerror}"
        return Finding("disk sync", "error", found, f"give the user that runs the broker the folder {data_dir}")
    median, slowest = took_ms[len(took_ms) // 2], took_ms[-1]
    found = f"a sync takes {median:.2f} ms, at most {slowest:.2f} ms, in {place}"
    if median > SLOW_SYNC_MS:
        advice = 'fsync = "always" waits so long for each group of publishes: take a faster disk, or fsync = "interval"'
        return Finding("disk sync", "warning", found, advice)
    return Finding("disk sync", "ok", found)


def _sync_ms(folder: str) -> list[float]:
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            file.write(b"\0" * _WRITE_BYTES)
            file.flush()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return took
