"""SteadyClock: wall time that neither jumps nor goes back while a process runs."""

from __future__ import annotations

from linn.core.env.env import Clock


class SteadyClock:
    """A `Clock` whose `monotonic` gives seconds since 1970: the wall time at its making, and the time passed since.

    For deadlines that are stored: they mean the same after a restart and at another broker, and a jump of the wall
    clock moves none of them while the process runs.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now_ms() / 1000 - clock.monotonic()

    def now_ms(self) -> int:
        """See `Clock.now_ms`: the wall clock, with its jumps."""
        return self._clock.now_ms()

    def monotonic(self) -> float:
        """Seconds since 1970 by the wall clock of the time when this was made; never goes back."""
        return self._began + self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await self._clock.sleep(seconds)
