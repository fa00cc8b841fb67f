"""Listeners, connections, and the one error boundary around each connection.

Laws: an error in one connection ends at most that connection. No connection outlives the broker. Monitoring connections
are accepted before the broker recovers and until its clients are gone, and do not count against the limit of clients.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping

import trio

from linn.core.config.config import Config
from linn.core.connections.certificates import Certificates
from linn.core.connections.connections import Connections
from linn.core.connections.listener_traffic import ListenerTraffic
from linn.core.connections.places import Places
from linn.core.env.env import AcceptedStream, Listener
from linn.core.env.log_fields import log_fields
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.tls import TlsRequired
from linn.core.errors.tree import BrokerFull, ConnectionLost, InternalError, LimitExceeded, LinnError, RequestTimeout
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.protocol import ProtocolServer
from linn.core.plugins.manager import PluginManager

logger = logging.getLogger("linn.listening")

WATCHERS_MAX = 100
"""Limit of connections of protocols that only monitor: a few monitoring systems."""
LAST_WORD_S = 0.1
"""Time that a refused connection has to take the reason; its socket can take it at once."""
NOTE_INTERVAL_S = 1.0
WATCHERS_LEAVE_S = 1.0
"""Time that a monitoring connection has to read its last answer after all clients are gone."""


class BoundListener:
    """A bound listener."""

    def __init__(
        self,
        bound: Listener,
        server: ProtocolServer,
        refusal: Callable[[LinnError], bytes] | None,
        traffic: ListenerTraffic,
        tls: str | None,
    ) -> None:
        self.bound = bound
        self.server = server
        self.refusal = refusal
        self.traffic = traffic
        self.tls = tls
        """The name of its TLS table; None: plain."""
        self.noted_s = -math.inf
        """When the log was last told of a refused connection."""
        self.scope = trio.CancelScope()
        """Cancel scope around its connections."""


class Listening:
    """All listeners and connections of a broker."""

    def __init__(
        self,
        config: Config,
        plugins: PluginManager,
        gateway: Gateway,
        certificates: Certificates,
        nursery: trio.Nursery,
    ) -> None:
        self.addresses: dict[str, str] = {}
        """Bound address by listener; client listeners come first."""
        self._own: dict[str, str] = {}
        """By listener whose port several workers share, an address that is this one's alone."""
        self._config = config
        self._plugins = plugins
        self._gateway = gateway
        self._connections: Connections = gateway.connections
        self._certificates = certificates
        self._nursery = nursery
        limits = config.broker
        self._clients = Places(limits.connections_max, limits.address_connections_max, limits.handshakes_max)
        self._watchers = Places(WATCHERS_MAX, None, WATCHERS_MAX, "monitoring may have")
        self._listeners: list[BoundListener] = []

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return self._clients.count

    @property
    def advertised(self) -> Mapping[str, str]:
        """Address by listener, as others reach it."""
        found = {}
        for name, bound in self.addresses.items():
            found[name] = self._config.listeners[name].advertise or bound
            if name in self._own:
                found[name] = f"{found[name].rpartition(':')[0]}:{self._own[name].rpartition(':')[2]}"
        return found

    async def start(self, *, watching: bool) -> None:
        """Bind the listeners for clients, or with `watching` the listeners of monitoring protocols; then accept.

        Raises AddressInUse, AddressInvalid, PluginError: nothing is bound then.
        """
        try:
            listeners = await self._bind(watching)
        except BaseException:
            await self._close(self._listeners)
            raise
        for listener in listeners:
            self._nursery.start_soon(self._accept, listener)

    async def _bind(self, watching: bool) -> list[BoundListener]:
        addresses: dict[str, str] = {}
        listeners: list[BoundListener] = []
        for name, listener in self._config.listeners.items():
            kind = self._plugins.protocols[listener.protocol]
            if kind.watches == watching:
                server = self._plugins.make(kind, listener.settings)
                mode, shares = listener.socket_mode, listener.shares_port
                bound = await self._gateway.env.net.listen(listener.address, socket_mode=mode, shares_port=shares)
                places = self._watchers if watching else self._clients
                traffic = self._connections.traffic[name] = ListenerTraffic(name, kind.name, places, listener.login)
                listeners.append(BoundListener(bound, server, kind.refusal, traffic, listener.tls))
                self._listeners.append(listeners[-1])
                addresses[name] = bound.address
                if shares:
                    bound = await self._gateway.env.net.listen(f"{bound.address.rpartition(':')[0]}:0")
                    listeners.append(BoundListener(bound, server, kind.refusal, traffic, listener.tls))
                    self._listeners.append(listeners[-1])
                    self._own[name] = bound.address
        self.addresses = {**self.addresses, **addresses} if watching else {**addresses, **self.addresses}
        return listeners

    @staticmethod
    async def _close(listeners: list[BoundListener]) -> None:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.bound.aclose()

    async def _accept(self, listener: BoundListener) -> None:
        try:
            with listener.scope:
                async with trio.open_nursery() as nursery:
                    while True:
                        try:
                            stream = await listener.bound.accept()
                        except ConnectionLost:
                            break
                        except LimitExceeded as error:
                            self._note_refused(listener, "connection refused: %(error)s", log_fields(error))
                            continue
                        if listener.tls is not None:
                            stream = self._certificates.wrap(listener.tls, stream)
                        if await self._admit(listener, stream):
                            nursery.start_soon(self._serve, listener, stream)
        finally:
            await self._close([listener])

    async def _admit(self, listener: BoundListener, stream: AcceptedStream) -> bool:
        """Give a connection a place, perhaps that of another. If there is none, close it and return False."""
        try:
            loser = listener.traffic.places.take(stream)
        except BrokerFull as error:
            about = {"connection": stream.peer} | log_fields(error)
            self._note_refused(listener, "connection from %(connection)s refused: %(error)s", about)
            await self._tell(listener, stream, error)
            await stream.aclose()
            return False
        if loser is not None:
            self._connections.make_way(loser, listener.traffic.places.full())
        self._connections.opened(stream, listener.traffic)
        return True

    @staticmethod
    async def _tell(listener: BoundListener, stream: AcceptedStream, error: LinnError) -> None:
        """Tell a client that is not logged in why its connection ends, if that takes no time."""
        # In TLS the reason would take a handshake, while others wait to be accepted.
        if listener.refusal is not None and listener.tls is None:
            with contextlib.suppress(ConnectionLost), trio.move_on_after(LAST_WORD_S):
                await stream.send([listener.refusal(error)])

    def _note_refused(self, listener: BoundListener, text: str, about: Mapping[str, object]) -> None:
        """Count a refused connection. The log has one a second: who is refused may try again without end."""
        listener.traffic.refused += 1
        now_s = self._gateway.env.clock.monotonic()
        if now_s - listener.noted_s >= NOTE_INTERVAL_S:
            listener.noted_s = now_s
            logger.warning(text, {**about, "listener": listener.traffic.listener})

    async def _serve(self, listener: BoundListener, stream: AcceptedStream) -> None:
        observers, protocol = self._plugins.observers, listener.traffic.protocol
        observers.connection_opened(protocol, stream.peer)
        reason, code = "", None
        ended: list[LinnError] = []

        def end(error: LinnError) -> None:
            ended.append(error)
            scope.cancel()

        try:
            with trio.CancelScope() as scope:
                self._connections.ends_by(stream, end)
                if isinstance(stream, TlsStream):
                    await self._shake_hands(listener, stream)
                await listener.server.serve(stream, self._gateway)
            if scope.cancelled_caught:
                await self._tell(listener, stream, ended[0])
                raise ended[0]
        except LinnError as error:
            reason, code = str(error), error.code
            logger.info("%(connection)s: %(error)s", self._about(listener, stream) | log_fields(error))
        except BaseExceptionGroup as group:
            # The group may also contain the broker's own cancellation, which goes on.
            failed, rest = group.split(Exception)
            if failed is not None:
                reason, code = str(failed), InternalError.code
                about = self._about(listener, stream) | self._blame(failed)
                logger.error("%(connection)s: %(blamed)s failed", about, exc_info=failed)
            if rest is not None:
                raise rest from None
        except Exception as error:
            reason, code = f"{type(error).__name__}: {error}", InternalError.code
            logger.exception("%(connection)s: %(blamed)s failed", self._about(listener, stream) | self._blame(error))
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
                observers.connection_closed(protocol, stream.peer, reason)
                self._connections.closed(stream, code)

    async def _shake_hands(self, listener: BoundListener, stream: TlsStream) -> None:
        """Begin TLS. Raises TlsFailed, TlsRequired, ConnectionLost, RequestTimeout."""
        assert listener.tls is not None, "a TLS stream is of a listener with TLS"
        places = listener.traffic.places

        async def run(work: Callable[[], None]) -> None:
            places.end_waiting(stream)
            try:
                await self._gateway.env.threads.run(work)
            finally:
                places.begin_waiting(stream)

        try:
            with trio.fail_after(self._certificates.handshake_timeout_s(listener.tls)):
                await stream.handshake(run)
        except trio.TooSlowError:
            raise RequestTimeout(f"{stream.peer} did not finish the TLS handshake in time") from None
        except TlsRequired as error:
            if listener.refusal is not None:
                with contextlib.suppress(ConnectionLost), trio.move_on_after(LAST_WORD_S):
                    await stream.send_plain(listener.refusal(error))
            raise

    @staticmethod
    def _about(listener: BoundListener, stream: AcceptedStream) -> dict[str, str]:
        """The fields of every log record about a connection."""
        return {"connection": stream.peer, "listener": listener.traffic.listener, "protocol": listener.traffic.protocol}

    def _blame(self, error: BaseException) -> dict[str, str]:
        """The fields of a log record about an error other than a LinnError."""
        blamed = self._plugins.blamed(error, "the protocol")
        return {"blamed": blamed, "code": InternalError.code}

    async def drain(self, timeout_s: float) -> None:
        """Accept no new clients, and give connected ones `timeout_s` to end. Monitoring connections end last."""
        self._connections.draining.set()
        await self._empty(self._clients, timeout_s)
        self._connections.drained.set()
        await self._empty(self._watchers, WATCHERS_LEAVE_S)

    async def _empty(self, places: Places, timeout_s: float) -> None:
        listeners = [listener for listener in self._listeners if listener.traffic.places is places]
        await self._close(listeners)
        await places.wait_until_empty(timeout_s)
        for listener in listeners:
            listener.scope.cancel()
