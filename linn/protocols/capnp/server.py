"""The broker's side of the native protocol; `conversation` serves each connection."""

from __future__ import annotations

from linn.api import AcceptedStream, Gateway, TurnSlot
from linn.protocols.capnp.conversation import Conversation
from linn.protocols.capnp.handshake import Handshake
from linn.protocols.capnp.keepalive import Keepalive
from linn.wire.connection import Connection


class CapnpServer:
    """A `ProtocolServer` for one listener."""

    def __init__(self, keepalive_s: float, hello_timeout_s: float) -> None:
        self._keepalive = Keepalive(keepalive_s)
        self._hello_timeout_s = hello_timeout_s

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Serve one client until either side ends the connection. Raises LinnError if the client broke the protocol."""
        connection = Connection(self._keepalive.free_buffers, from_client=True)
        handshake = Handshake(stream, connection, TurnSlot(gateway.turns), self._hello_timeout_s)
        gateway.connections.report(stream, handshake.traffic)
        try:
            await handshake.hello()
            await handshake.log_in(gateway.login(stream, asks=handshake.logs_in))
            await Conversation(handshake, gateway, self._keepalive).run()
        finally:
            connection.close()
