"""The decision whether a worker that has ended is started again, and when. Does no I/O.

Laws: a worker whose end follows from its configuration or its storage is not started again, as it would end again; nor
is one that was never ready. Others are started after a pause that grows with each end, up to a limit of ends in a row.
A worker that was ready for long enough begins anew.
"""

from __future__ import annotations

import math

from linn.cli.exit_code import ExitCode

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 5.0
ENDS_MAX = 10
"""Ends in a row, each after a shorter life than `STEADY_S`: with the pauses between them about half a minute."""
STEADY_S = 60.0
FINAL = (ExitCode.USAGE, ExitCode.CONFIGURATION, ExitCode.STORAGE)
"""Exit codes of what does not get better by itself. After a failed sync the machine must be restarted first."""


class Restarts:
    """The ends of one worker."""

    def __init__(self) -> None:
        self._ends = 0
        self._ready_s = math.inf
        self._was_ready = False

    def ready(self, now_s: float) -> None:
        """Note that it serves."""
        self._ready_s = now_s
        self._was_ready = True

    def ended(self, now_s: float, code: int) -> float | None:
        """Return the pause before its next start, in seconds; None: there is none. `code`: see `Program.wait`."""
        if now_s - self._ready_s >= STEADY_S:
            self._ends = 0
        self._ready_s = math.inf
        self._ends += 1
        if code in FINAL or not self._was_ready or self._ends >= ENDS_MAX:
            return None
        return float(min(PAUSE_S_MIN * 2 ** (self._ends - 1), PAUSE_S_MAX))
