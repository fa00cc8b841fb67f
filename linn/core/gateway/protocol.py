"""The port for wire protocols."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import LinnError
from linn.core.gateway.gateway import BrokerLinks, Gateway


class ProtocolServer(Protocol):
    """A server that talks to the clients of one listener. Made once per listener."""

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Serve one client until either side ends the connection. The caller closes the stream.

        `gateway.connections.report` registers the connection's traffic for the metrics, and
        `gateway.connections.introduce` the session's principal and its subscriptions, once the client has logged in.
        Until then the connection may end to make a place for a new one, the one that was accepted or `refresh`ed first.

        Raises:
            LinnError: the connection ended for a reason worth a log line. Other connections go on.
        Cancellation: the connection is dropped; its leases are returned.
        """


@dataclass(frozen=True, slots=True)
class ProtocolKind:
    """A wire protocol, as a plugin registers it."""

    name: str
    """The value of `protocol =` in a `[listeners.*]` table."""
    settings: type[Any]
    """A frozen msgspec.Struct for the other keys of that table, each with a default and a help text."""
    make: Callable[[Any], ProtocolServer]
    """(settings) -> server. Does no I/O. Raises PluginError if something that it needs is not installed."""
    watches: bool = False
    """Whether its connections only monitor: they are served while the broker recovers and until its clients are gone,
    are not counted as clients, and do not delay a stop. See `Listening`."""
    refusal: Callable[[LinnError], bytes] | None = None
    """Encodes the answer to a client refused with BrokerFull; None: the connection is closed without an answer."""
    login_methods: Collection[str] = ()
    """The `methods` by which it lets clients log in, by `Gateway.login`; none: `login = "required"` is refused.

    By default a listener takes all of them, but "plain" only where there is no "scram"."""
    links: Callable[[Gateway], BrokerLinks] | None = None
    """Makes the links to the other brokers of a cluster, if it is a protocol between brokers. Does no I/O."""
    url_scheme: str = "linn"
    """Scheme of the URLs that `linn serve` prints for its listeners."""
