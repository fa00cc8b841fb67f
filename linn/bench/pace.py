"""A rate: how many messages may go now, so that no more than so many go in a second."""

from __future__ import annotations

import re

import anyio
import typer

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(?:/(s|m|h))?")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
BURST_S = 0.05
"""So much of a second's worth may go at once: a message is no later than that, and a batch holds a few."""


def rate_of(text: str, option: str = "--rate") -> float:
    """Messages a second: "100", "100/s", "6000/m" or "5/h". Raises BadParameter."""
    found = _RATE.fullmatch(text)
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"{text!r} is not a rate like 100/s, 6000/m or 5/h", param_hint=option)
    return float(found[1]) / _UNITS_S[found[2] or "s"]


class Pace:
    """Made when the first message may go. A stall is not made up for by a burst."""

    def __init__(self, rate: float | None) -> None:
        """`rate`: messages a second; None: as many as there are."""
        self._rate = rate
        self._next_at: float | None = None

    async def room(self, wanted: int) -> int:
        """Wait until something may go, and return how much of `wanted` (at least 1) does."""
        if self._rate is None:
            return wanted
        now = anyio.current_time()
        if self._next_at is None or self._next_at < now - BURST_S:
            self._next_at = now
        if self._next_at > now:
            await anyio.sleep(self._next_at - now)
        granted = max(1, min(wanted, int(BURST_S * self._rate)))
        self._next_at += granted / self._rate
        return granted
