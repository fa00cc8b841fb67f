"""Statistics of rounds. Pure: numbers in, numbers out.

A ratio is of two systems within one round, so that what slows the machine down for longer than a round slows both. The
figure is the median of the ratios; its spread is from the least to the greatest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import TypeVar

STILL = 0.1
"""Spread of rates, as a share of their median, up to which they are called still."""
STILL_TURNS = 3
Item = TypeVar("Item")


@dataclass(frozen=True)
class Ratio:
    """A system's rate as a multiple of another's, over the rounds that have both."""

    median: float
    least: float
    greatest: float
    rounds: int

    @property
    def is_settled(self) -> bool:
        """Whether the same system was the faster one in every round."""
        return self.least > 1 or self.greatest < 1

    @property
    def inverse(self) -> Ratio:
        """The same of the other system."""
        return Ratio(1 / self.median, 1 / self.greatest, 1 / self.least, self.rounds)


def ratio(rates: Mapping[int, float], others: Mapping[int, float]) -> Ratio | None:
    """Ratio of rates by round. None where no round has both."""
    found = [rates[number] / others[number] for number in sorted(rates.keys() & others.keys())]
    return Ratio(median(found), min(found), max(found), len(found)) if found else None


def stands_still(rates: Sequence[float]) -> bool:
    """Whether the last rates lie together."""
    last = rates[-STILL_TURNS:]
    return len(last) == STILL_TURNS and max(last) - min(last) <= STILL * median(last)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def shuffled(items: Sequence[Item], seed: str) -> list[Item]:
    """The items in an order that depends on the seed alone, so that nobody always follows the same neighbour."""
    return Random(seed).sample(items, len(items))
