"""A watchdog that names the plugin whose code blocks the loop, while it is still blocking.

The loop counts its steps (`LoopSteps`, an instrument of trio's); an observer, a thread in the real world, polls the
count (`Watchdog.look`). An unchanged count means that a step takes too long, and the stack of the loop's thread shows
whose code it runs.

Laws: a step costs one call and does not read the clock. A step is reported once while it lasts, and again when it ends.
A plugin is reported every `REPORT_INTERVAL_S` at most; `held` counts every step.
"""

from __future__ import annotations

import logging
from types import FrameType

import trio

from linn.core.env.code_owner import CodeOwners, place_of

REPORT_INTERVAL_S = 10.0
"""Minimum time between reports about one plugin: a plugin that blocks with every message would fill the log."""
LOOKS_PER_STEP = 4
"""Polls that must find the same step before it is reported: on an overloaded machine the polls are delayed as well,
which is not a plugin's fault."""
NO_PLUGIN = "linn itself"

logger = logging.getLogger("linn.watchdog")


class LoopSteps(trio.abc.Instrument):
    """A counter of one loop's steps. Install it with `trio.lowlevel.add_instrument`."""

    def __init__(self) -> None:
        self.count = 0
        self.is_waiting = True
        """Whether the loop is idle."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        self.is_waiting = False

    def before_io_wait(self, timeout: float) -> None:
        self.is_waiting = timeout > 0


class Watchdog:
    """The decision what to report after each poll. It uses no thread and no clock."""

    def __init__(self, steps: LoopSteps, owners: CodeOwners, limit_s: float) -> None:
        """Report steps that take longer than `limit_s`; call `look` every `interval_s`."""
        self.interval_s = limit_s / LOOKS_PER_STEP
        self.held: dict[str, int] = {}
        """Steps that took too long, by plugin."""
        self._steps = steps
        self._owners = owners
        self._seen = -1
        self._since_s = 0.0
        self._looks = 0
        self._reported: str | None = None
        self._quiet_until_s: dict[str, float] = {}

    def look(self, now_s: float, innermost: FrameType | None) -> None:
        """Poll once. `innermost` is the present frame of the loop's thread, if available."""
        steps = self._steps
        if steps.is_waiting or steps.count != self._seen:
            if self._reported is not None:
                about = {"plugin": self._reported, "held_s": round(now_s - self._since_s, 2)}
                logger.warning("%(plugin)s held up the loop for %(held_s).2f s", about)
            self._seen, self._since_s, self._looks, self._reported = steps.count, now_s, 0, None
            return
        self._looks += 1
        if self._looks == LOOKS_PER_STEP and innermost is not None:
            self._report(now_s, innermost)

    def _report(self, now_s: float, innermost: FrameType) -> None:
        culprit = self._owners.in_stack(innermost)
        plugin = culprit.plugin if culprit is not None else NO_PLUGIN
        place = culprit.place if culprit is not None else place_of(innermost, innermost.f_lineno)
        self.held[plugin] = self.held.get(plugin, 0) + 1
        if now_s < self._quiet_until_s.get(plugin, now_s):
            return
        self._quiet_until_s[plugin] = now_s + REPORT_INTERVAL_S
        self._reported = plugin
        about = {
            "plugin": plugin,
            "held_s": round(now_s - self._since_s, 2),
            "place": place,
            "times": self.held[plugin],
        }
        text = "%(plugin)s holds up the loop, and all connections with it, for %(held_s).2f s so far, in %(place)s"
        logger.warning(text + " (%(times)d times by now)", about)
