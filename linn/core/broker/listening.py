"""Who comes in: listeners, connections, and the one error boundary around each.

Laws: whatever one connection does ends at most that connection. No connection outlives the broker. Who only watches is
let in before the broker recovers and until its clients are gone, and takes no client's place.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from linn.core.env.env import AcceptedStream
from linn.core.env.env import Listener as BoundListener
from linn.core.env.log_fields import log_fields
from linn.core.errors.tree import BrokerFull, ConnectionLost, InternalError, LimitExceeded, LinnError
from linn.core.loop.turnstile import Turnstile
from linn.core.metrics.listener_traffic import ListenerTraffic, ReadTraffic
from linn.core.ports.protocol import ProtocolServer

if TYPE_CHECKING:
    from linn.core.broker.broker import Broker

logger = logging.getLogger("linn.listening")

WATCHERS_MAX = 100
"""Connections of protocols that only watch: a few monitoring systems, and no more work than they ask for."""
LAST_WORD_S = 0.1
"""How long a new connection may take to hear why it is not let in: its socket has room for that at once."""
WATCHERS_LEAVE_S = 1.0
"""How long a watcher may take to read its last answer once all clients are gone."""


class Door:
    """One listener that is bound."""

    def __init__(
        self,
        bound: BoundListener,
        server: ProtocolServer,
        refusal: Callable[[LinnError], bytes] | None,
        traffic: ListenerTraffic,
        crowd: Crowd,
    ) -> None:
        self.bound = bound
        self.server = server
        self.refusal = refusal
        self.traffic = traffic
        self.crowd = crowd
        self.scope = trio.CancelScope()
        """Around its connections."""


class Crowd:
    """Connections that share a limit, and that a stop waits for together."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.count = 0
        self._gone = trio.Event()

    def leave(self) -> None:
        """One is gone."""
        self.count -= 1
        if self.count == 0:
            self._gone.set()

    async def wait_gone(self, timeout_s: float) -> None:
        """Wait until nobody is left, but not for longer. Nobody may come any more."""
        if self.count:
            self._gone = trio.Event()
            with trio.move_on_after(timeout_s):
                await self._gone.wait()


class Listening:
    """All listeners and connections of a broker."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self.addresses: dict[str, str] = {}
        """As bound, by listener; those for clients come first."""
        self.traffic: dict[str, ListenerTraffic] = {}
        """By listener."""
        self._broker = broker
        self._nursery = nursery
        self._clients = Crowd(broker.config.broker.connections_max)
        self._watchers = Crowd(WATCHERS_MAX)
        self._doors: list[Door] = []
        self._streams: dict[AcceptedStream, ListenerTraffic] = {}
        self._numbers = itertools.count(1)
        self.way_out: Turnstile = Turnstile(broker.env.clock.monotonic)
        self._draining = trio.Event()
        self._drained = trio.Event()

    @property
    def connections(self) -> int:
        """Clients that are connected."""
        return self._clients.count

    async def start(self, *, watching: bool) -> None:
        """Bind the listeners for clients, or those of protocols that only watch; then accept.

        Raises AddressInUse, AddressInvalid, PluginError: nothing is bound then.
        """
        try:
            doors = await self._bind(watching)
        except BaseException:
            await self._close(self._doors)
            raise
        for door in doors:
            self._nursery.start_soon(self._accept, door)

    async def _bind(self, watching: bool) -> list[Door]:
        broker, addresses = self._broker, {}
        doors: list[Door] = []
        for name, listener in broker.config.listeners.items():
            kind = broker.plugins.protocols[listener.protocol]
            if kind.watches == watching:
                server = broker.plugins.make(kind, listener.settings)
                bound = await broker.env.net.listen(listener.address)
                traffic = self.traffic[name] = ListenerTraffic(name, kind.name)
                crowd = self._watchers if watching else self._clients
                doors.append(Door(bound, server, kind.refusal, traffic, crowd))
                self._doors.append(doors[-1])
                addresses[name] = bound.address
        self.addresses = {**self.addresses, **addresses} if watching else {**addresses, **self.addresses}
        return doors

    @staticmethod
    async def _close(doors: list[Door]) -> None:
        with trio.CancelScope(shield=True):
            for door in doors:
                await door.bound.aclose()

    async def _accept(self, door: Door) -> None:
        try:
            with door.scope:
                async with trio.open_nursery() as nursery:
                    while True:
                        if self.way_out.is_crowded and door.crowd is self._clients:
                            await self.way_out.give_turns()  # One comes where four leave.
                        try:
                            stream = await door.bound.accept()
                        except ConnectionLost:
                            break
                        except LimitExceeded as error:
                            self._note_refused(door, "connection refused: %(error)s", log_fields(error))
                            continue
                        if await self._let_in(door, stream):
                            nursery.start_soon(self._serve, door, stream)
        finally:
            await self._close([door])

    async def _let_in(self, door: Door, stream: AcceptedStream) -> bool:
        """Count a connection; False: there are too many, and it is closed."""
        crowd, traffic = door.crowd, door.traffic
        if crowd.count < crowd.connections_max:
            crowd.count += 1
            traffic.connected(stream, next(self._numbers))
            self._streams[stream] = traffic
            return True
        about = {"connection": stream.peer, "count": crowd.count}
        self._note_refused(door, "connection from %(connection)s refused: there are %(count)d", about)
        if door.refusal is not None:
            why = BrokerFull(f"{self._broker.name} has {crowd.count} connections, as many as connections_max lets in")
            with contextlib.suppress(ConnectionLost), trio.move_on_after(LAST_WORD_S):
                await stream.send([door.refusal(why)])
        await stream.aclose()
        return False

    @staticmethod
    def _note_refused(door: Door, text: str, about: Mapping[str, object]) -> None:
        door.traffic.refused += 1
        logger.warning(text, {**about, "listener": door.traffic.listener})

    async def _serve(self, door: Door, stream: AcceptedStream) -> None:
        observers, protocol = self._broker.plugins.observers, door.traffic.protocol
        observers.connection_opened(protocol, stream.peer)
        reason, code = "", None
        try:
            await self._serve_until_out(door, stream)
        except LinnError as error:
            reason, code = str(error), error.code
            logger.info("%(connection)s: %(error)s", self._about(door, stream) | log_fields(error))
        except BaseExceptionGroup as group:
            # Beside errors it may hold the broker's own end, which goes on.
            failed, rest = group.split(Exception)
            if failed is not None:
                reason, code = str(failed), InternalError.code
                about = self._about(door, stream) | self._blame(failed)
                logger.error("%(connection)s: %(blamed)s failed", about, exc_info=failed)
            if rest is not None:
                raise rest from None
        except Exception as error:
            reason, code = f"{type(error).__name__}: {error}", InternalError.code
            logger.exception("%(connection)s: %(blamed)s failed", self._about(door, stream) | self._blame(error))
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
                observers.connection_closed(protocol, stream.peer, reason)
                del self._streams[stream]
                door.traffic.left(stream, code)
                door.crowd.leave()

    async def _serve_until_out(self, door: Door, stream: AcceptedStream) -> None:
        """Serve a connection, and come back when it is its turn to leave."""
        try:
            await door.server.serve(stream, self._broker)
        finally:
            with trio.CancelScope(shield=True):
                await self.way_out.pass_through(stream)
                self.way_out.is_out(stream)

    @staticmethod
    def _about(door: Door, stream: AcceptedStream) -> dict[str, str]:
        """What the log says of every connection."""
        return {"connection": stream.peer, "listener": door.traffic.listener, "protocol": door.traffic.protocol}

    def _blame(self, error: BaseException) -> dict[str, str]:
        """What the log says of an error that is no LinnError."""
        blamed = self._broker.plugins.blamed(error, "the protocol")
        return {"blamed": blamed, "code": InternalError.code}

    def report(self, stream: AcceptedStream, read: ReadTraffic) -> None:
        """For a protocol's connections: have the metrics ask `read` what this one carries.

        A stream that did not come through a listener is passed over.
        """
        if stream in self._streams:
            self._streams[stream].open[stream].read = read

    async def wait_draining(self) -> None:
        """For a protocol's connections: wait until the broker begins to stop."""
        await self._draining.wait()

    async def wait_drained(self) -> None:
        """For those of a protocol that only watches: wait until the stop has nobody else to wait for."""
        await self._drained.wait()

    async def drain(self, timeout_s: float) -> None:
        """Take no new clients; give those that are there `timeout_s` to end by themselves. Watchers come last."""
        self._draining.set()
        self.way_out.open_wide()
        await self._empty(self._clients, timeout_s)
        self._drained.set()
        await self._empty(self._watchers, WATCHERS_LEAVE_S)

    async def _empty(self, crowd: Crowd, timeout_s: float) -> None:
        doors = [door for door in self._doors if door.crowd is crowd]
        await self._close(doors)
        await crowd.wait_gone(timeout_s)
        for door in doors:
            door.scope.cancel()
