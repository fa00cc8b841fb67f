"""Randomness from the machine, for brokers and clients under any loop."""

from __future__ import annotations

import os
import random


class RealRng:
    """Random numbers: `bytes` from the operating system, others from a generator seeded by it."""

    def __init__(self) -> None:
        self._random = random.Random()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def integer(self, below: int) -> int:
        return self._random.randrange(below)
