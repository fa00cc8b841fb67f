"""Ids for idempotent producers: each connection gets some, and no id is given out twice.

An id is made of the number of the broker's start, that of the connection, and that of the producer, so that giving one
out writes nothing.
"""

from __future__ import annotations

PER_CONNECTION = 256
"""Ids of one connection: a client with more producers at a time needs another connection."""
_PRODUCER_BITS = 8
_CONNECTION_BITS = 24
assert 1 << _PRODUCER_BITS == PER_CONNECTION


class ProducerIds:
    """The ids of one start."""

    def __init__(self) -> None:
        self.start = 0
        """See `StartCounter`; set before the first connection comes. When connections have used up their
        numbers, the next start's are used: a start is a second, and that one has passed by then.
        """
        self._connections = 0

    def take(self) -> int:
        """The first of PER_CONNECTION ids for a new connection."""
        number = (self.start << _CONNECTION_BITS) + self._connections
        self._connections += 1
        return number << _PRODUCER_BITS
