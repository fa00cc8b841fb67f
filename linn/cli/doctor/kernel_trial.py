"""Checks of the operating system: listen backlog, page cache and clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from linn.cli.doctor.finding import Finding
from linn.core.env.real.net import BACKLOG

PAGE_CACHE_BYTES_MIN = 256 << 20
"""Readers that lag by more than the page cache read from the disk; below this size nearly all do."""
_SOMAXCONN = Path("/proc/sys/net/core/somaxconn")
_MEMINFO = Path("/proc/meminfo")


def kernel_findings(data_dir: str) -> Iterator[Finding]:
    """Run the checks, leaving out those that this system does not support."""
    with contextlib.suppress(OSError, ValueError):
        yield _backlog(int(_SOMAXCONN.read_text()))
    with contextlib.suppress(OSError, ValueError, IndexError):
        yield _page_cache(int(_MEMINFO.read_text().split("MemAvailable:")[1].split()[0]) << 10)
    yield _clock(data_dir, time.time())


def _backlog(somaxconn: int) -> Finding:
    found = f"{min(somaxconn, BACKLOG):,} connections may wait to be let in"
    if somaxconn < BACKLOG:
        return Finding("backlog", "warning", found, f"sysctl net.core.somaxconn={BACKLOG}: a fleet comes back at once")
    return Finding("backlog", "ok", found)


def _page_cache(available_bytes: int) -> Finding:
    found = f"{available_bytes >> 20:,} MiB: readers that are behind by less read from memory"
    if available_bytes < PAGE_CACHE_BYTES_MIN:
        return Finding("page cache", "warning", found, "end other programs, or give the machine more memory")
    return Finding("page cache", "ok", found)


def _clock(data_dir: str, now_s: float) -> Finding:
    """Warn of a clock that is behind the newest file, as retention and delays depend on it."""
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    newest_s = max((_modified_s(place) for place in Path(data_dir).glob("*")), default=0.0)
    if newest_s > now_s + 1:
        found = f"{text}, {newest_s - now_s:,.0f} s behind what is in {data_dir}"
        return Finding("clock", "warning", found, "set it, and keep it with NTP: retention and delays go by it")
    return Finding("clock", "ok", text)


def _modified_s(place: Path) -> float:
    with contextlib.suppress(OSError):
        return place.stat().st_mtime
    return 0.0
