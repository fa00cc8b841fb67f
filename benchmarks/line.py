"""A line of the result: a measured figure, its comparison, and whether the target was met."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

Unit = Literal["x floor", "x", "records/s", "s", "ms", "us", "MB"]


@dataclass(frozen=True)
class Bound:
    """A target: a least, or a greatest, value."""

    value: float
    at_most: bool = False

    def is_met(self, value: float) -> bool:
        """Whether `value` is on the right side."""
        return value <= self.value if self.at_most else value >= self.value

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.value:,}"


@dataclass(frozen=True)
class Pair:
    """The floor's run and linn's run after it, in any common unit."""

    floor: float
    linn: float
    floor_cpu_us: float | None = None
    linn_cpu_us: float | None = None
    """CPU time of the server per batch."""


class Mark(NamedTuple):
    """The place of a line's figures in a chart: chart, series, and position on the x axis."""

    chart: str
    series: str
    at: float | str


@dataclass
class Line:
    """One measurement over all rounds. `bound` None: for information."""

    group: str
    name: str
    unit: Unit
    bound: Bound | None
    values: list[float]
    """One value per round, in `unit`."""
    cpu_ratios: list[float] = field(default_factory=list)
    """The floor's CPU time per batch to linn's: more is better, as with `values`."""
    floor: float | None = None
    linn: float | None = None
    """Medians, in `detail_unit`."""
    floor_cpu_us: float | None = None
    linn_cpu_us: float | None = None
    detail_unit: str = ""
    mark: Mark | None = None

    @property
    def value(self) -> float:
        """The median, which is compared with the target."""
        return median(self.values)

    @property
    def best(self) -> float:
        """The best round, which noise has disturbed least."""
        return min(self.values) if self.bound is not None and self.bound.at_most else max(self.values)

    @property
    def cpu_ratio(self) -> float | None:
        """The median of the CPU ratios."""
        return median(self.cpu_ratios) if self.cpu_ratios else None

    @property
    def is_met(self) -> bool | None:
        """Whether the target was met; None without a target."""
        return self.bound.is_met(self.value) if self.bound is not None else None

    def data(self) -> dict[str, Any]:
        """The line as JSON data."""
        return {
            "group": self.group,
            "name": self.name,
            "unit": self.unit,
            "value": self.value,
            "best": self.best,
            "target": str(self.bound) if self.bound is not None else None,
            "met": self.is_met,
            "rounds": self.values,
            "cpu_ratio": self.cpu_ratio,
            "cpu_ratios": self.cpu_ratios,
            "floor": self.floor,
            "linn": self.linn,
            "floor_cpu_us_per_batch": self.floor_cpu_us,
            "linn_cpu_us_per_batch": self.linn_cpu_us,
            "detail_unit": self.detail_unit or None,
        } | (self.mark._asdict() if self.mark is not None else {})


def line_of_pairs(group: str, name: str, bound: Bound | None, pairs: list[Pair], detail_unit: str) -> Line:
    """A line of ratios, each of two runs that followed one another: linn's figure by the floor's."""
    line = Line(group, name, "x floor", bound, [pair.linn / pair.floor for pair in pairs], detail_unit=detail_unit)
    line.floor, line.linn = median(pair.floor for pair in pairs), median(pair.linn for pair in pairs)
    cpu = [(pair.floor_cpu_us, pair.linn_cpu_us) for pair in pairs if pair.floor_cpu_us and pair.linn_cpu_us]
    if cpu:
        line.floor_cpu_us, line.linn_cpu_us = median(a for a, _ in cpu), median(b for _, b in cpu)
        line.cpu_ratios = [a / b for a, b in cpu]
    return line
