"""Saturation of processors, memory, disk and descriptors during a load, and the resource that is saturated first.

Law: utilization is a share of the capacity, up to 1.0; None if it is not known, as on another machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SATURATED = 0.9
"""Utilization from which a resource counts as saturated: queues in front of it grow without bound."""
REACHED = 0.99
"""Share of the target rate from which the target counts as reached."""
TEXTS: Mapping[str, str] = {
    "broker_processor": "the broker's processor: it works on one at a time",
    "load_processor": "the load's own processor: the broker may hold more; take more --processes, or another machine",
    "machine_processors": "the machine's processors: broker, load and whatever else works there",
    "broker_memory": "the broker's memory",
    "broker_descriptors": "the broker's descriptors",
    "disk": "the disk: something waited for it nearly all the time",
}
WAITING = "nothing: producers waited for their confirmations (latency), while no resource was full"
NOTHING = "nothing: the target was reached"

_METRICS = {
    "processor_s": "linn_process_processor_seconds_total",
    "memory_bytes": "linn_process_memory_bytes",
    "descriptors": "linn_process_descriptors",
    "descriptors_max": "linn_process_descriptors_max",
}
METRICS: Sequence[str] = tuple(_METRICS.values())
"""Metrics to request from the broker."""


class Sample(NamedTuple):
    """Usage of resources at one moment."""

    at_s: float
    broker: Mapping[str, float]
    """Usage by the names of `_METRICS`; seconds are cumulative. Empty where the broker was not asked."""
    load_processor_s: float
    """Processor time of the busiest process of the load."""
    machine_busy_s: float | None
    disk_waited_s: float | None


def broker_use(report: Sequence[Mapping[str, object]]) -> dict[str, float]:
    """Extract the usage of the broker's process from an answer to `metrics.show`."""
    values: dict[str, float] = {}
    for family in report:
        samples = family["samples"]
        assert isinstance(samples, list)
        for short, name in _METRICS.items():
            if name == family["name"] and samples:
                values[short] = float(samples[0][1])
    return values


def machine_busy_s() -> float | None:
    """Return the total busy time of all processors of this machine."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
        return (user + nice + system + sum(rest[:2])) / os.sysconf("SC_CLK_TCK")
    return None


def disk_waited_s() -> float | None:
    """Return the time in which any task on this machine waited for I/O (pressure stall information)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/pressure/io").read_text().split("total=")[1].split()[0]) / 1_000_000
    return None


def utilization(before: Sample, now: Sample, memory_bytes: int | None) -> dict[str, float | None]:
    """Return utilization between two samples by the names of `TEXTS`. `memory_bytes`: of the broker's machine."""
    seconds = max(now.at_s - before.at_s, 1e-9)

    def part(used: float | None, used_before: float | None, of: float) -> float | None:
        return None if used is None or used_before is None else round((used - used_before) / seconds / of, 3)

    broker, memory = now.broker, now.broker.get("memory_bytes")
    open_files, files_max = broker.get("descriptors"), broker.get("descriptors_max")
    return {
        "broker_processor": part(broker.get("processor_s"), before.broker.get("processor_s"), 1),
        "load_processor": part(now.load_processor_s, before.load_processor_s, 1),
        "machine_processors": part(now.machine_busy_s, before.machine_busy_s, os.cpu_count() or 1),
        "broker_memory": None if memory is None or not memory_bytes else round(memory / memory_bytes, 3),
        "broker_descriptors": None if not files_max or open_files is None else round(open_files / files_max, 3),
        "disk": part(now.disk_waited_s, before.disk_waited_s, 1),
    }


def first_saturated(series: Sequence[Sequence[Sample]], memory_bytes: int | None) -> tuple[str, float] | None:
    """Return the resource saturated first, and the seconds since the first sample of its series."""
    found: list[tuple[float, int, str]] = []
    for samples in series:
        for before, now in pairwise(samples):
            found += [
                (round(now.at_s - samples[0].at_s, 1), place, name)
                for place, (name, share) in enumerate(utilization(before, now, memory_bytes).items())
                if share is not None and share >= SATURATED
            ]
    if not found:
        return None
    after_s, _, name = min(found)
    return name, after_s
