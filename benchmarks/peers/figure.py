"""A figure: one piece of work of one system, over its repetitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, get_args

from benchmarks.peers.peer import Durability

Work = Literal[
    "publish one at a time",
    "publish to a queue",
    "consume and ack",
    "publish to a stream",
    "read a stream",
    "load tool publishes",
    "load tool consumes",
]
WORKS: tuple[Work, ...] = get_args(Work)
TOOL_WORKS: tuple[Work, ...] = ("load tool publishes", "load tool consumes")


@dataclass(frozen=True)
class Sample:
    """One repetition."""

    records: int
    seconds: float
    server_cpu_s: float
    client_cpu_s: float
    records_per_s: float
    """Of the client: records by seconds. Of a load tool: what it says."""
    p50_us: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True)
class Figure:
    """Medians of the samples."""

    system: str
    work: Work
    durability: Durability
    record_bytes: int
    samples: Sequence[Sample] = field(repr=False)

    def median(self, of: Callable[[Sample], float | None]) -> float | None:
        """Of what the samples have, or None where they do not."""
        values = [value for sample in self.samples if (value := of(sample)) is not None]
        return median(values) if values else None

    @property
    def records_per_s(self) -> float:
        """Median."""
        return median(sample.records_per_s for sample in self.samples)

    def cpu_us(self, of: Callable[[Sample], float]) -> float:
        """CPU time per record, median."""
        return median(of(sample) / sample.records * 1e6 for sample in self.samples)

    def cores(self, of: Callable[[Sample], float]) -> float | None:
        """CPU seconds per second, median. None for load tools: they start and end beside what they measure."""
        if self.work in TOOL_WORKS:
            return None
        return median(of(sample) / sample.seconds for sample in self.samples)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "system": self.system,
            "work": self.work,
            "durability": self.durability,
            "record_bytes": self.record_bytes,
            "records_per_s": self.records_per_s,
            "p50_us": self.median(lambda sample: sample.p50_us),
            "p99_us": self.median(lambda sample: sample.p99_us),
            "server_cpu_us_per_record": self.cpu_us(server_cpu_s),
            "client_cpu_us_per_record": self.cpu_us(client_cpu_s),
            "server_cores": self.cores(server_cpu_s),
            "client_cores": self.cores(client_cpu_s),
            "samples": [vars(sample) for sample in self.samples],
        }


def server_cpu_s(sample: Sample) -> float:
    """For Figure.cpu_us and Figure.cores."""
    return sample.server_cpu_s


def client_cpu_s(sample: Sample) -> float:
    """The same of the other side."""
    return sample.client_cpu_s


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
