"""What came through one listener: its connections, and what those that are gone carried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import LinnError


class Traffic(NamedTuple):
    """What connections carried and hold, as their protocol counts it."""

    received_bytes: int = 0
    sent_bytes: int = 0
    inflight_requests: int = 0
    """Requests that wait for their answers."""
    unsent_bytes: int = 0
    """Output that the connection has not taken yet."""
    held_bytes: int = 0
    """Publishes that wait for room in a topic."""


class SubscriptionOf(NamedTuple):
    """A subscription of a connection."""

    topic: str
    group: str
    """Empty where it is none of a group's members."""
    held: int
    """Records that are leased to it."""


ReadTraffic = Callable[[], Traffic]
ReadSubscriptions = Callable[[], Iterable[SubscriptionOf]]
End = Callable[[LinnError], None]
"""Ends a connection soon, and tells its client why where the protocol can. Does not wait."""


def no_subscriptions() -> Iterable[SubscriptionOf]:
    """None: the protocol has none, or the connection is not served yet."""
    return ()


def no_end(error: LinnError) -> None:
    """Do nothing: the connection is not served yet."""


class OpenConnection:
    """A connection while it is open. `read` is what its protocol reports, or nothing."""

    __slots__ = ("client", "end", "number", "opened_s", "peer", "read", "read_subscriptions")

    def __init__(self, number: int, peer: str, opened_s: float) -> None:
        self.number = number
        """No two connections of one broker's life have the same."""
        self.peer = peer
        self.opened_s = opened_s
        """By the monotonic clock."""
        self.client = ""
        """What the client calls itself."""
        self.read: ReadTraffic = Traffic
        self.read_subscriptions: ReadSubscriptions = no_subscriptions
        self.end: End = no_end


class ListenerTraffic:
    """One listener since the broker started."""

    def __init__(self, listener: str, protocol: str) -> None:
        self.listener = listener
        self.protocol = protocol
        self.opened = 0
        self.refused = 0
        """Connections that were over the limit."""
        self.failed: dict[str, int] = {}
        """Connections that an error ended, by its code."""
        self.open: dict[AcceptedStream, OpenConnection] = {}
        self._closed = Traffic()

    def connected(self, stream: AcceptedStream, number: int, now_s: float) -> None:
        """A client has come."""
        self.opened += 1
        self.open[stream] = OpenConnection(number, stream.peer, now_s)

    def left(self, stream: AcceptedStream, error_code: str | None) -> None:
        """A client is gone; what it carried stays in the totals."""
        carried = self.open.pop(stream).read()
        closed = self._closed
        self._closed = Traffic(closed.received_bytes + carried.received_bytes, closed.sent_bytes + carried.sent_bytes)
        if error_code is not None:
            self.failed[error_code] = self.failed.get(error_code, 0) + 1

    def total(self) -> Traffic:
        """All connections together; what was carried by those that are gone is among it."""
        everybody = [self._closed, *(connection.read() for connection in self.open.values())]
        return Traffic(*map(sum, zip(*everybody, strict=True)))
