"""The books of the queue: what was delivered to which worker, what was acked, and whether that adds up.

Laws: the effect of a message is entered under its flight once its ack was confirmed. A flight is right if it was acked
exactly once, and nobody was handed it after that. What a worker held when it died must have come again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from linn.cli.demo.tally import Count


@dataclass
class Ledger:
    """Fed with the workers' reports; times are of the machine's monotonic clock, which all processes share."""

    acks: Counter[int] = field(default_factory=Counter)
    """Confirmed acks by flight."""
    acked_at: dict[int, float] = field(default_factory=dict)
    last_delivered_at: dict[int, float] = field(default_factory=dict)
    held: dict[str, set[int]] = field(default_factory=dict)
    """Flights that a worker was handed and has not acked."""
    deliveries: int = 0
    redelivered: set[int] = field(default_factory=set)
    """Flights that were handed out with an attempt above 1."""
    lost_with_worker: set[int] = field(default_factory=set)
    """What workers held when they died."""
    by_worker: Counter[str] = field(default_factory=Counter)

    def received(self, worker: str, numbers: list[int], attempt: int, at_s: float) -> None:
        """A worker was handed these flights."""
        self.deliveries += len(numbers)
        self.last_delivered_at.update(dict.fromkeys(numbers, at_s))
        self.held.setdefault(worker, set()).update(numbers)
        if attempt > 1:
            self.redelivered.update(numbers)

    def acked(self, worker: str, numbers: list[int], at_s: float) -> None:
        """The broker has confirmed a worker's acks."""
        self.acks.update(numbers)
        self.acked_at.update(dict.fromkeys(numbers, at_s))
        self.held.setdefault(worker, set()).difference_update(numbers)
        self.by_worker[worker] += len(numbers)

    def died(self, worker: str) -> int:
        """A worker was killed; how many flights it held."""
        held = self.held.pop(worker, set())
        self.lost_with_worker |= held
        return len(held)

    @property
    def acked_count(self) -> int:
        """Distinct flights acked."""
        return len(self.acks)

    def counts(self, late: set[int]) -> list[Count]:
        """The final lines; `late` are the flights that had to pass through the queue."""
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
