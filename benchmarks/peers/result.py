"""The result of a run, as it is written to peers.json: every turn of every system, with the facts to judge it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.peers.peer import Durability, Facts, Work


@dataclass(frozen=True)
class Sample:
    """One system's turn at one work, in one round."""

    system: str
    work: Work
    durability: Durability
    record_bytes: int
    round: int
    records: int
    seconds: float
    records_per_s: float
    """Records by seconds; of a load tool, what it says."""
    server_cpu_s: float
    client_cpu_s: float
    p50_us: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True)
class WarmUp:
    """The rates of one system before anything was measured, turn by turn, and whether the last ones lay together."""

    system: str
    durability: Durability
    work: Work
    rates: Sequence[float]
    is_still: bool


@dataclass(frozen=True)
class Result:
    """A run of some systems. Without samples: nothing was measured yet."""

    facts: Sequence[Facts] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """By the system's name."""
    samples: Sequence[Sample] = ()
    warm_ups: Sequence[WarmUp] = ()
    idle_cores: Mapping[Durability, float] = field(default_factory=dict)
    """Processor time of all servers together while none of them has work."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Systems that were not measured, and why."""
    measured_at: str = ""
    minutes: float = 0.0
    is_quick: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)

    def rates(self, system: str, work: Work, durability: Durability, record_bytes: int) -> dict[int, float]:
        """By round."""
        return {sample.round: sample.records_per_s for sample in self.of(system, work, durability, record_bytes)}

    def of(self, system: str, work: Work, durability: Durability, record_bytes: int) -> list[Sample]:
        """The samples of one row of a table."""
        wanted = (system, work, durability, record_bytes)
        return [each for each in self.samples if (each.system, each.work, each.durability, each.record_bytes) == wanted]


def write(path: Path, result: Result) -> None:
    """Write it as JSON, with a line for each sample, each warm-up and each system."""
    parts = (f"{json.dumps(name)}: {_lines(value)}" for name, value in msgspec.to_builtins(result).items())
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _lines(value: object) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def read(path: Path) -> Result:
    """Read what `write` wrote. Raises msgspec.ValidationError."""
    return msgspec.json.decode(path.read_bytes(), type=Result)
