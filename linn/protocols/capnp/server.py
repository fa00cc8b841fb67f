"""The broker's side of the native protocol; `session` is what runs for each connection."""

from __future__ import annotations

from linn.core.broker.broker import Broker
from linn.core.env.env import AcceptedStream
from linn.protocols.capnp.caretaker import Caretaker
from linn.protocols.capnp.session import Session


class CapnpServer:
    """A `ProtocolServer` for one listener."""

    def __init__(self, keepalive_s: float, hello_timeout_s: float) -> None:
        self._caretaker = Caretaker(keepalive_s)
        self._hello_timeout_s = hello_timeout_s

    async def serve(self, stream: AcceptedStream, broker: Broker) -> None:
        """Speak with one client until either side ends it. Raises LinnError where the client did something wrong."""
        await Session(stream, broker, self._caretaker, self._hello_timeout_s).run()
