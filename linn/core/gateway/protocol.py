"""The port for wire protocols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from linn.core.env.env import AcceptedStream
from linn.core.errors.tree import LinnError
from linn.core.gateway.gateway import Gateway


class ProtocolServer(Protocol):
    """Speaks with the clients of one listener. Made once per listener."""

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Speak with one client until either side ends it. The caller closes the stream.

        `gateway.connections.report` takes what the connection carries, for the metrics, and
        `gateway.connections.introduce` what the client calls itself and subscribes to.

        Raises:
            LinnError: the connection ended for a reason worth a log line. Others are not disturbed.
        Cancellation: the connection is dropped; what it held in leases is returned.
        """


@dataclass(frozen=True, slots=True)
class ProtocolKind:
    """What a plugin registers."""

    name: str
    """The value of `protocol =` in a `[listeners.*]` table."""
    settings: type[Any]
    """A frozen msgspec.Struct for the other keys of that table, each with a default and a help text."""
    make: Callable[[Any], ProtocolServer]
    """(settings) -> server. Does no I/O. Raises PluginError where something that it needs is not installed."""
    watches: bool = False
    """Whether its connections only look: they are served while the broker recovers and until its clients are gone,
    don't count as clients, and don't hold up a stop. See `Listening`."""
    refusal: Callable[[LinnError], bytes] | None = None
    """What a client is sent that is not let in, BrokerFull being why; None: it is closed without a word."""
    url_scheme: str = "linn"
    """Of the URLs that `linn serve` prints for its listeners."""
