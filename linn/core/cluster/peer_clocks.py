"""The wall clocks of the other brokers, compared with this one's by the pings of their links."""

from __future__ import annotations

import logging

from linn.core.env.env import Clock

FRESH_S = 10.0
"""Time for which a comparison counts: links make two each second, and a broker that is gone has no clock."""

AHEAD_S = 600.0
"""Lead over the clocks of all other brokers from which a clock is taken for wrong: far more than clocks that are kept
drift apart, and far less than records are kept."""

logger = logging.getLogger("linn.clock")


class PeerClocks:
    """The last comparison with each broker that is linked, whichever side has dialed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[int, tuple[float, float]] = {}
        """(time of the comparison, seconds ahead), by node: as many as the cluster has."""
        self._is_ahead = False

    def note(self, node: int, ahead_s: float) -> None:
        """Note how far a broker's clock is ahead."""
        self._seen[node] = self._clock.monotonic(), ahead_s

    def ahead_s(self) -> dict[int, float]:
        """Return the lead of the clocks of linked brokers over this one's, by node; negative where they are behind."""
        oldest_s = self._clock.monotonic() - FRESH_S
        return {node: ahead_s for node, (at_s, ahead_s) in sorted(self._seen.items()) if at_s >= oldest_s}

    def is_ahead(self) -> bool:
        """Return whether this broker's clock is `AHEAD_S` ahead of all linked brokers' clocks; a change is logged."""
        leads = self.ahead_s().values()
        was_ahead, self._is_ahead = self._is_ahead, bool(leads) and max(leads) <= -AHEAD_S
        if self._is_ahead and not was_ahead:
            text = "the wall clock is %(ahead_s)d s ahead of all other brokers': no record is dropped for its age"
            logger.warning(text, {"ahead_s": round(-max(leads))})
        elif was_ahead and not self._is_ahead:
            logger.warning("records are dropped for their age again: the wall clock fits the other brokers'")
        return self._is_ahead
