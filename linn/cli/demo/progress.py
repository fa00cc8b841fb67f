"""Progress of the demo, written by the story, and read by the view and its thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from linn.cli.demo.ledger import Ledger


@dataclass
class Stretch:
    """Phase that is timed and counted."""

    name: str
    expected: int = 0
    done: int = 0
    started_at: float | None = None
    ended_at: float | None = None

    def start(self) -> None:
        """Start the clock."""
        self.started_at = time.monotonic()

    def end(self) -> None:
        """Stop the clock."""
        self.ended_at = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, or from start to end; 0 before the start."""
        if self.started_at is None:
            return 0.0
        return (self.ended_at or time.monotonic()) - self.started_at

    @property
    def rate(self) -> float:
        """Count per second."""
        return self.done / self.elapsed_s if self.elapsed_s else 0.0


@dataclass
class Progress:
    """Progress of all phases."""

    flights: int
    phase: str = "starting"
    publishing: Stretch = field(init=False)
    working: Stretch = field(default_factory=lambda: Stretch("queue: delivered, worked and acked"))
    first_read: Stretch = field(default_factory=lambda: Stretch("stream: first read"))
    second_read: Stretch = field(default_factory=lambda: Stretch("stream: second read, after the restart"))
    to_parquet: Stretch = field(default_factory=lambda: Stretch("Spark: departures to Parquet"))
    by_hour: Stretch = field(default_factory=lambda: Stretch("Spark: late departures counted by hour"))
    paying: Stretch = field(default_factory=lambda: Stretch("payments: booked exactly once"))
    paying_again: Stretch = field(default_factory=lambda: Stretch("payments: booked at least once"))
    ledger: Ledger = field(default_factory=Ledger)
    workers: dict[str, str] = field(default_factory=dict)
    """State of each worker, in a word or two."""
    pipelines: dict[str, str] = field(default_factory=dict)
    """State and lag of each Spark pipeline while its act is played."""
    has_spark: bool = False
    """Whether the act with Spark is played."""
    recovery_s: float = 0.0
    """Seconds from the restart of the killed broker to its ready line."""

    def __post_init__(self) -> None:
        self.publishing = Stretch("published through the exchange", self.flights)

    @property
    def queue_depth(self) -> int:
        """Late departures published and not yet acked."""
        return max(0, self.working.expected - self.working.done)

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Phases in the order in which they begin."""
        return (
            self.publishing,
            self.working,
            self.first_read,
            self.second_read,
            *((self.to_parquet, self.by_hour) if self.has_spark else ()),
            self.paying,
            self.paying_again,
        )
