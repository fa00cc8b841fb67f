"""Progress of the demo, written by the story, and read by the view and its thread."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from linn.cli.demo.tally import Count


@dataclass
class Ledger:
    """Ledger of the workers' reports; times are of the monotonic clock, which all processes share.

    Laws: a message is entered under its flight once its ack is confirmed. A flight is right if it was acked exactly
    once and not delivered after that. Flights that a worker had not acked when it died must be delivered again.
    """

    acks: Counter[int] = field(default_factory=Counter)
    """Confirmed acks by flight."""
    acked_at: dict[int, float] = field(default_factory=dict)
    last_delivered_at: dict[int, float] = field(default_factory=dict)
    held: dict[str, set[int]] = field(default_factory=dict)
    """Flights delivered to each worker that it has not acked."""
    deliveries: int = 0
    redelivered: set[int] = field(default_factory=set)
    """Flights delivered with an attempt above 1."""
    lost_with_worker: set[int] = field(default_factory=set)
    """Flights that killed workers had not acked."""
    by_worker: Counter[str] = field(default_factory=Counter)

    def received(self, worker: str, numbers: list[int], attempt: int, at_s: float) -> None:
        """Enter a delivery to a worker."""
        self.deliveries += len(numbers)
        self.last_delivered_at.update(dict.fromkeys(numbers, at_s))
        self.held.setdefault(worker, set()).update(numbers)
        if attempt > 1:
            self.redelivered.update(numbers)

    def acked(self, worker: str, numbers: list[int], at_s: float) -> None:
        """Enter confirmed acks of a worker."""
        self.acks.update(numbers)
        self.acked_at.update(dict.fromkeys(numbers, at_s))
        self.held.setdefault(worker, set()).difference_update(numbers)
        self.by_worker[worker] += len(numbers)

    def died(self, worker: str) -> int:
        """Enter the death of a worker, and return the number of flights it had not acked."""
        held = self.held.pop(worker, set())
        self.lost_with_worker |= held
        return len(held)

    @property
    def acked_count(self) -> int:
        """Number of distinct flights acked."""
        return len(self.acks)

    def counts(self, late: set[int]) -> list[Count]:
        """Return the counts of the final table; `late` are the flights that the queue must deliver."""
        twice = sum(1 for count in self.acks.values() if count != 1)
        after = sum(1 for number, at_s in self.acked_at.items() if self.last_delivered_at.get(number, at_s) > at_s)
        again = self.lost_with_worker & self.redelivered
        return [
            Count("queue: late departures acked", len(late), len(late & self.acks.keys())),
            Count("queue: acked more than once", 0, twice),
            Count("queue: acked, but not late", 0, len(self.acks.keys() - late)),
            Count("queue: delivered after its ack", 0, after),
            Count("queue: a worker died with deliveries in hand", 1, int(bool(self.lost_with_worker))),
            Count("queue: held by the killed worker, came again", len(self.lost_with_worker), len(again)),
        ]


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
    replicating: Stretch = field(default_factory=lambda: Stretch("three brokers: published, acks = all"))
    replicated_work: Stretch = field(default_factory=lambda: Stretch("three brokers: delivered as a queue"))
    replicated_read: Stretch = field(default_factory=lambda: Stretch("three brokers: read as a stream"))
    ledger: Ledger = field(default_factory=Ledger)
    workers: dict[str, str] = field(default_factory=dict)
    """State of each worker, in a word or two."""
    pipelines: dict[str, str] = field(default_factory=dict)
    """State and lag of each Spark pipeline while its act is played."""
    brokers: str = ""
    """State of the three brokers while their act is played."""
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
            self.replicating,
            self.replicated_work,
            self.replicated_read,
        )
