"""A broker's open connections: their traffic, and the events of a stop."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import islice
from typing import Any

import trio

from linn.core.batch.steps import Steps
from linn.core.connections.listener_traffic import (
    End,
    ListenerTraffic,
    OpenConnection,
    ReadSubscriptions,
    ReadTraffic,
)
from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import ConnectionClosed, ConnectionUnknown
from linn.core.security.logins import NO_LOGIN, LoginRules
from linn.descriptions import ConnectionDescription

CLIENT_CHARACTERS_MAX = 200
"""Limit of the characters in a client's name."""
SUBSCRIPTIONS_SHOWN_MAX = 100
"""Limit of the subscriptions shown per connection."""


class Connections:
    """The connections of all listeners."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.traffic: dict[str, ListenerTraffic] = {}
        """Traffic by listener."""
        self.draining = trio.Event()
        """Set when the broker begins to stop."""
        self.drained = trio.Event()
        """Set when a stop no longer waits for any client: monitoring connections end now."""
        self._monotonic = monotonic
        self._streams: dict[AcceptedStream, ListenerTraffic] = {}
        self._numbers = itertools.count(1)

    def opened(self, stream: AcceptedStream, traffic: ListenerTraffic) -> None:
        """Record that a listener has accepted a client."""
        traffic.connected(stream, next(self._numbers), self._monotonic())
        self._streams[stream] = traffic

    def closed(self, stream: AcceptedStream, error_code: str | None) -> None:
        """Record the end of a connection; `error_code` is the reason if it was an error."""
        self._streams.pop(stream).left(stream, error_code)

    def report(self, stream: AcceptedStream, read: ReadTraffic) -> None:
        """Register `read`, which returns a connection's traffic; ignored for a stream of no listener."""
        if stream in self._streams:
            self._streams[stream].open[stream].read = read

    def login_rules(self, stream: AcceptedStream) -> LoginRules:
        """The rules of logins on the connection's listener; none are required for a stream of no listener."""
        return self._streams[stream].login if stream in self._streams else NO_LOGIN

    def introduce(self, stream: AcceptedStream, client: str, read: ReadSubscriptions) -> None:
        """Register a client's name and subscriptions, to be shown by `as_json`; ignored for a stream of no listener."""
        if stream in self._streams:
            connection = self._streams[stream].open[stream]
            connection.client, connection.read_subscriptions = client[:CLIENT_CHARACTERS_MAX], read

    def ends_by(self, stream: AcceptedStream, end: End) -> None:
        """Register `end`, which `close` calls for a connection; ignored for a stream of no listener."""
        if stream in self._streams:
            self._streams[stream].open[stream].end = end

    def check(self, number: int) -> OpenConnection:
        """Return the open connection of this number. Raises ConnectionUnknown."""
        for stream, traffic in self._streams.items():
            if traffic.open[stream].number == number:
                return traffic.open[stream]
        raise ConnectionUnknown(f"there is no open connection {number}")

    def close(self, number: int, reason: str) -> None:
        """End a connection, telling its client the reason if the protocol can. Raises ConnectionUnknown."""
        said = "an operator closed the connection" + (f": {reason}" if reason else "")
        self.check(number).end(ConnectionClosed(said))

    def as_json(self) -> Steps[list[ConnectionDescription]]:
        """Describe the open connections, oldest first, one per step; connections that end meanwhile are left out."""
        found: list[ConnectionDescription] = []
        for stream, traffic in list(self._streams.items()):
            if stream in self._streams:
                found.append(self._description(traffic, traffic.open[stream]))
            yield
        return sorted(found, key=lambda connection: connection["number"])

    def _description(self, traffic: ListenerTraffic, connection: OpenConnection) -> Any:
        subscriptions = islice(connection.read_subscriptions(), SUBSCRIPTIONS_SHOWN_MAX)
        return {
            "number": connection.number,
            "peer": connection.peer,
            "client": connection.client,
            "listener": traffic.listener,
            "protocol": traffic.protocol,
            "open_s": round(self._monotonic() - connection.opened_s, 3),
            **connection.read()._asdict(),
            "subscriptions": [subscription._asdict() for subscription in subscriptions],
        }
