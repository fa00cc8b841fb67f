"""Rate limiter of publishers."""

from __future__ import annotations

import anyio

BURST_S = 0.05
"""Part of a second's messages that may be sent at once: no message is delayed longer, and batches have several."""


class Pace:
    """Rate limiter; starts with the first message. After a stall there is no burst."""

    def __init__(self, rate_per_s: float | None) -> None:
        """`rate_per_s`: maximum messages a second; None: unlimited."""
        self._rate_per_s = rate_per_s
        self._next_at: float | None = None

    async def room(self, wanted: int) -> int:
        """Wait until a message may be sent, and return the number that may be: from 1 to `wanted`."""
        if self._rate_per_s is None:
            return wanted
        now = anyio.current_time()
        if self._next_at is None or self._next_at < now - BURST_S:
            self._next_at = now
        if self._next_at > now:
            await anyio.sleep(self._next_at - now)
        granted = max(1, min(wanted, int(BURST_S * self._rate_per_s)))
        self._next_at += granted / self._rate_per_s
        return granted
