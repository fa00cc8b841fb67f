"""Outage: the time that a client is without a connection, and what it says of it in the log of its program.

The text of an error names the address already.
"""

from __future__ import annotations

import logging

from linn.core.env.env import Clock
from linn.core.errors.tree import LinnError

TELL_AGAIN_S = 30.0
"""How often a client says that it still has no connection: seldom enough to leave a log readable overnight."""

logger = logging.getLogger("linn.client")


class Outage:
    """Begins when a connection is lost, and logs that; ends when there is another."""

    def __init__(self, address: str, clock: Clock, error: LinnError) -> None:
        self.error = error
        """Why there is no connection, as far as is known."""
        self._address = address
        self._monotonic = clock.monotonic
        self._began_s = self._told_s = clock.monotonic()
        logger.warning(
            "connection lost, connecting again: %(error)s",
            {"broker": address, "error": error.text, "code": error.code},
        )

    def goes_on(self, error: LinnError) -> None:
        """An attempt to connect failed."""
        self.error = error
        now = self._monotonic()
        if now - self._told_s >= TELL_AGAIN_S:
            self._told_s = now
            logger.warning(
                "still no connection after %(seconds).0f s: %(error)s",
                {"broker": self._address, "seconds": now - self._began_s, "error": error.text, "code": error.code},
            )

    def is_over(self) -> None:
        """There is a connection again."""
        seconds = self._monotonic() - self._began_s
        logger.warning(
            "connected to %(broker)s again after %(seconds).1f s", {"broker": self._address, "seconds": seconds}
        )
