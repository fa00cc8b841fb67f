"""A broker's open connections: their traffic, and the events of a stop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any

import trio

from linn.core.batch.steps import Steps
from linn.core.connections.inboxes import Inboxes
from linn.core.connections.listener_traffic import (
    End,
    ListenerTraffic,
    OpenConnection,
    ReadSubscriptions,
    ReadTraffic,
)
from linn.core.env.env import AcceptedStream, Rng
from linn.core.errors.texts import counted
from linn.core.errors.tree import BrokerFull, ConnectionClosed, ConnectionUnknown, LinnError
from linn.core.ports.principal import NOT_LOGGED_IN, Principal
from linn.core.security.logins import NO_LOGIN, LoginRules
from linn.descriptions import ConnectionDescription

CLIENT_CHARACTERS_MAX = 200
"""Limit of the characters in a client's name."""
SUBSCRIPTIONS_SHOWN_MAX = 100
"""Limit of the subscriptions shown per connection."""


class Connections:
    """The connections of all listeners."""

    def __init__(self, monotonic: Callable[[], float], user_connections_max: int, rng: Rng) -> None:
        """`user_connections_max`: limit of the connections of a user that has logged in and has no limit of its own."""
        self.traffic: dict[str, ListenerTraffic] = {}
        """Traffic by listener."""
        self.draining = trio.Event()
        """Set when the broker begins to stop."""
        self.drained = trio.Event()
        """Set when a stop no longer waits for any client: monitoring connections end now."""
        self.inboxes = Inboxes(rng)
        """The addresses of those connections that have asked for one."""
        self._monotonic = monotonic
        self._user_connections_max = user_connections_max
        self._streams: dict[AcceptedStream, ListenerTraffic] = {}
        self._of_user: dict[str, dict[AcceptedStream, OpenConnection]] = {}
        self._numbers = itertools.count(1)

    def opened(self, stream: AcceptedStream, traffic: ListenerTraffic) -> None:
        """Record that a listener has accepted a client."""
        traffic.connected(stream, next(self._numbers), self._monotonic())
        self._streams[stream] = traffic

    def closed(self, stream: AcceptedStream, error_code: str | None) -> None:
        """Record the end of a connection; `error_code` is the reason if it was an error."""
        traffic = self._streams.pop(stream)
        user = traffic.open[stream].user
        if user:
            del self._of_user[user][stream]
            if not self._of_user[user]:
                del self._of_user[user]
        traffic.places.leave(stream)
        traffic.left(stream, error_code)

    def report(self, stream: AcceptedStream, read: ReadTraffic) -> None:
        """Register `read`, which returns a connection's traffic; ignored for a stream of no listener."""
        if stream in self._streams:
            self._streams[stream].open[stream].read = read

    def listener_of(self, stream: AcceptedStream) -> str:
        """The name of the listener that accepted a connection; "" for a stream of no listener."""
        return self._streams[stream].listener if stream in self._streams else ""

    def login_rules(self, stream: AcceptedStream) -> LoginRules:
        """The rules of logins on the connection's listener; none are required for a stream of no listener."""
        return self._streams[stream].login if stream in self._streams else NO_LOGIN

    def introduce(self, stream: AcceptedStream, caller: Principal, read: ReadSubscriptions) -> None:
        """Register who a session's client is, once it has logged in; ignored for a stream of no listener.

        Until then it has one of the few places of unknown clients. `read`: returns its subscriptions, to be
        shown by `as_json`. Raises BrokerFull: the user has as many connections as it may.
        """
        if stream not in self._streams:
            return
        user, there = caller.name, len(self._of_user.get(caller.name, ()))
        limit, setting = caller.access.quota.limits.connections_max, "limits.connections_max"
        if limit is None and caller.login != NOT_LOGGED_IN:
            limit, setting = self._user_connections_max, "user_connections_max"
        if limit is not None and there >= limit:
            raise BrokerFull(f'user "{user[:80]}" has {counted(there, "connection")}, as many as {setting} allows')
        traffic = self._streams[stream]
        connection = self._of_user.setdefault(user, {})[stream] = traffic.open[stream]
        connection.client, connection.read_subscriptions = caller.client[:CLIENT_CHARACTERS_MAX], read
        connection.user, connection.login = user, caller.login
        traffic.places.know(stream)

    def refresh(self, stream: AcceptedStream) -> None:
        """Note that a client is alive that is not introduced: others lose their places first. Ignored as above."""
        if stream in self._streams:
            self._streams[stream].places.begin_waiting(stream)

    def end_of_user(self, user: str, ways: Collection[str], error: LinnError) -> Steps[None]:
        """End a user's connections with one of these logins, telling their clients why; one per step.

        `ways`: values of `Principal.login`; none stands for every login.
        """
        for connection in list(self._of_user.get(user, {}).values()):
            if connection.login in ways or not (ways or connection.login == NOT_LOGGED_IN):
                connection.end(error)
            yield

    def make_way(self, stream: AcceptedStream, full: BrokerFull) -> None:
        """End a connection whose place another one has got. `full`: the limit that left no other place."""
        error = BrokerFull(f"closed for a new connection, because this one was not logged in yet: {full.text}")
        self._streams[stream].open[stream].end(error)

    def ends_by(self, stream: AcceptedStream, end: End) -> None:
        """Register `end`, which `close` calls for a connection; ignored for a stream of no listener."""
        if stream in self._streams:
            connection = self._streams[stream].open[stream]
            connection.on_end = end
            if connection.ending is not None:
                end(connection.ending)

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
            "user": connection.user,
            "login": connection.login,
            "listener": traffic.listener,
            "protocol": traffic.protocol,
            "open_s": round(self._monotonic() - connection.opened_s, 3),
            **connection.read()._asdict(),
            "subscriptions": [subscription._asdict() for subscription in subscriptions],
        }
