"""The broker's side of the native protocol; `session` is the part that runs for each connection."""

from __future__ import annotations

from linn.core.env.env import AcceptedStream
from linn.core.gateway.gateway import Gateway
from linn.protocols.capnp.keepalive import Keepalive
from linn.protocols.capnp.session import Session


class CapnpServer:
    """A `ProtocolServer` for one listener."""

    def __init__(self, keepalive_s: float, hello_timeout_s: float) -> None:
        self._keepalive = Keepalive(keepalive_s)
        self._hello_timeout_s = hello_timeout_s

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Serve one client until either side ends the connection. Raises LinnError if the client broke the protocol."""
        await Session(stream, gateway, self._keepalive, self._hello_timeout_s).run()
