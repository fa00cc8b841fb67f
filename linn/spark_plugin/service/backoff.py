"""Exponential backoff between the starts of a driver that fails."""

from __future__ import annotations

from collections.abc import Callable

FIRST_S = 1.0
LONGEST_S = 60.0
STEADY_S = 60.0
"""A driver that has run for so long has not failed to start: the count begins again."""
FAILURES_MAX = 10
"""Failures in a row after which nothing is tried any more: about four minutes, and each costs the start of a JVM."""
_JITTER = 0.2
"""Part of a delay that is random, so that drivers which failed together don't start together."""


class Backoff:
    """The failures in a row of one driver, and the delay after each."""

    def __init__(self, uniform: Callable[[float, float], float]) -> None:
        """`uniform(low, high)`: a random number."""
        self._uniform = uniform
        self.failures = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether there were as many failures in a row as are borne."""
        return self.failures >= FAILURES_MAX

    def reset(self) -> None:
        """Forget the failures."""
        self.failures = 0

    def failed(self, ran_s: float) -> float:
        """Count a failure after the driver ran for `ran_s`; returns the delay before the next start, in seconds."""
        if ran_s >= STEADY_S:
            self.failures = 0
        self.failures += 1
        delay_s = min(LONGEST_S, FIRST_S * 2.0 ** (self.failures - 1))
        return delay_s * self._uniform(1 - _JITTER, 1)
