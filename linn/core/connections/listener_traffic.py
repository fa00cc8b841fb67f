"""Traffic of one listener: its open connections, and the totals of closed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from linn.core.connections.places import Places
from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import LinnError
from linn.core.security.logins import NO_LOGIN, LoginRules


class Traffic(NamedTuple):
    """The traffic and the buffers of connections, as counted by their protocol."""

    received_bytes: int = 0
    sent_bytes: int = 0
    inflight_requests: int = 0
    """Unanswered requests."""
    unsent_bytes: int = 0
    """Bytes of output not yet taken by the connection."""
    held_bytes: int = 0
    """Bytes of publishes that wait for room in a topic."""


class SubscriptionOf(NamedTuple):
    """A subscription of a connection."""

    topic: str
    group: str
    """The group; "" if the consumer is not a member of one."""
    shared: str
    """The shared subscription in which the consumer competes; "": none, or a queue."""
    name: str
    """The name of the consumer; "" if it has none."""
    held: int
    """Records leased to the consumer or decided to it."""


ReadTraffic = Callable[[], Traffic]
ReadSubscriptions = Callable[[], Iterable[SubscriptionOf]]
End = Callable[[LinnError], None]
"""A callback that ends a connection soon, telling its client the reason if the protocol can. It does not wait."""


def no_subscriptions() -> Iterable[SubscriptionOf]:
    """Return no subscriptions: the protocol has none, or the connection is not served yet."""
    return ()


class OpenConnection:
    """An open connection. `read` returns the traffic reported by its protocol, or zeros."""

    __slots__ = (
        "client",
        "ending",
        "login",
        "number",
        "on_end",
        "opened_s",
        "peer",
        "read",
        "read_subscriptions",
        "user",
    )

    def __init__(self, number: int, peer: str, opened_s: float) -> None:
        self.number = number
        """A number that is unique in this broker process."""
        self.peer = peer
        self.opened_s = opened_s
        """The monotonic time at which the connection was opened."""
        self.client = ""
        """The client's name as sent by the client."""
        self.user = self.login = ""
        """The user's name, and how it has logged in, as in `Principal`; "" until then."""
        self.read: ReadTraffic = Traffic
        self.read_subscriptions: ReadSubscriptions = no_subscriptions
        self.ending: LinnError | None = None
        """The reason for which it has to end."""
        self.on_end: End | None = None
        """Called with that reason; None: the connection is not served yet, and ends as soon as it is."""

    def end(self, error: LinnError) -> None:
        """End the connection."""
        self.ending = error
        if self.on_end is not None:
            self.on_end(error)


class ListenerTraffic:
    """The traffic of one listener since the broker started."""

    def __init__(self, listener: str, protocol: str, places: Places, login: LoginRules = NO_LOGIN) -> None:
        self.listener = listener
        self.places = places
        self.protocol = protocol
        self.login = login
        self.opened = 0
        self.refused = 0
        """Connections refused because of a limit."""
        self.failed: dict[str, int] = {}
        """Connections that ended with an error, by error code."""
        self.open: dict[AcceptedStream, OpenConnection] = {}
        self._closed = Traffic()

    def connected(self, stream: AcceptedStream, number: int, now_s: float) -> None:
        """Add a connection."""
        self.opened += 1
        self.open[stream] = OpenConnection(number, stream.peer, now_s)

    def left(self, stream: AcceptedStream, error_code: str | None) -> None:
        """Remove a connection; its traffic stays in the totals."""
        carried = self.open.pop(stream).read()
        closed = self._closed
        self._closed = Traffic(closed.received_bytes + carried.received_bytes, closed.sent_bytes + carried.sent_bytes)
        if error_code is not None:
            self.failed[error_code] = self.failed.get(error_code, 0) + 1

    def total(self) -> Traffic:
        """The traffic of all connections, including closed ones."""
        carried = [self._closed, *(connection.read() for connection in self.open.values())]
        return Traffic(*map(sum, zip(*carried, strict=True)))
