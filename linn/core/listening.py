"""Who comes in: listeners, connections, and the one error boundary around each.

Law: whatever one connection does ends at most that connection. No connection outlives the broker.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from linn.core.env import AcceptedStream
from linn.core.env import Listener as BoundListener
from linn.core.errors import ConnectionLost, LinnError
from linn.core.protocol import ProtocolServer

if TYPE_CHECKING:
    from linn.core.broker import Broker

logger = logging.getLogger("linn.listening")


class Listening:
    """All listeners and connections of a broker."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self.addresses: dict[str, str] = {}
        self.connections = 0
        self.refused = 0
        """Connections that were over `connections_max`."""
        self._broker = broker
        self._nursery = nursery
        self._bound: list[BoundListener] = []
        self._scope = trio.CancelScope()
        self._draining = trio.Event()
        self._idle = trio.Event()

    async def start(self) -> None:
        """Bind all listeners, then accept. Raises AddressInUse, AddressInvalid: nothing is bound then."""
        broker = self._broker
        accepting: list[tuple[str, BoundListener, ProtocolServer]] = []
        try:
            for name, listener in broker.config.listeners.items():
                kind = broker.plugins.protocols[listener.protocol]
                bound = await broker.env.net.listen(listener.address)
                self._bound.append(bound)
                self.addresses[name] = bound.address
                accepting.append((listener.protocol, bound, kind.make(listener.settings)))
        except BaseException:
            await self._unbind()
            raise
        for protocol, bound, server in accepting:
            self._nursery.start_soon(self._accept, protocol, bound, server)

    async def _unbind(self) -> None:
        with trio.CancelScope(shield=True):
            for bound in self._bound:
                await bound.aclose()

    async def _accept(self, protocol: str, bound: BoundListener, server: ProtocolServer) -> None:
        connections_max = self._broker.config.broker.connections_max
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    while True:
                        try:
                            stream = await bound.accept()
                        except ConnectionLost:
                            break
                        if self.connections >= connections_max:
                            self.refused += 1
                            logger.warning("connection from %s refused: there are %d", stream.peer, connections_max)
                            await stream.aclose()
                            continue
                        self.connections += 1
                        nursery.start_soon(self._serve, protocol, stream, server)
        finally:
            await self._unbind()

    async def _serve(self, protocol: str, stream: AcceptedStream, server: ProtocolServer) -> None:
        observers = self._broker.plugins.observers
        observers.connection_opened(protocol, stream.peer)
        reason = ""
        try:
            await server.serve(stream, self._broker)
        except LinnError as error:
            reason = str(error)
            logger.info("%s: %s", stream.peer, reason)
        except BaseExceptionGroup as group:
            # Beside errors it may hold the broker's own end, which goes on.
            failed, rest = group.split(Exception)
            if failed is not None:
                reason = str(failed)
                logger.error("%s: the protocol %s failed", stream.peer, protocol, exc_info=failed)
            if rest is not None:
                raise rest from None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            logger.exception("%s: the protocol %s failed", stream.peer, protocol)
        finally:
            self.connections -= 1
            with trio.CancelScope(shield=True):
                await stream.aclose()
            observers.connection_closed(protocol, stream.peer, reason)
            if self.connections == 0 and self._draining.is_set():
                self._idle.set()

    async def wait_draining(self) -> None:
        """For a protocol's connections: wait until the broker begins to stop."""
        await self._draining.wait()

    async def drain(self, timeout_s: float) -> None:
        """Take no new connections; give those that are there `timeout_s` to end by themselves."""
        self._draining.set()
        for bound in self._bound:
            await bound.aclose()
        if self.connections:
            with trio.move_on_after(timeout_s):
                await self._idle.wait()
        self._scope.cancel()
