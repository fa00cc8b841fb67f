"""The broker's side of the protocol "metrics": HTTP/1.1 by h11, on linn's own connections.

Laws: all input and output goes through Env. A page is made and sent in pieces, and the broker's other tasks run between
them; one piece is made at a time over all requests. A request's body is discarded, and its connection closed. A client
that does not read its answer is dropped after `SEND_S_MAX`. When
there is no place left for a new client, one that has been silent for long loses its connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.utils import formatdate
from urllib.parse import unquote

import h11
import trio

from linn.api import AcceptedStream, AuthFailed, ConnectionLost, Family, Forbidden, Gateway, Principal, Traffic
from linn.protocols.http.exposition import CONTENT_TYPE, exposed
from linn.protocols.http.login import RequestLogins

HEAD_BYTES_MAX = 16 << 10
"""Limit of a request's head, and the size of one receive: requests of monitoring systems are far smaller."""
SEND_S_MAX = 10.0
"""Time that a client has to read one piece of an answer; a scraper has given up by then."""
PIECE_BYTES_MIN = 64 << 10
"""Smaller pieces are sent together."""
_LEFT_UNREAD_TRIES = 8
_PLAIN = "text/plain; charset=utf-8"
Header = tuple[str, str]


class MetricsServer:
    """A `ProtocolServer` for one listener."""

    def __init__(self, *, per_connection: bool, idle_timeout_s: float, connection_age_max_s: float) -> None:
        self.per_connection = per_connection
        self.idle_timeout_s = idle_timeout_s
        self.making = trio.Lock()
        self._connection_age_max_s = connection_age_max_s

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Answer requests until the client is gone, idle or too old, or the broker has drained."""
        conversation = Conversation(self, stream, gateway)
        gateway.connections.report(stream, conversation.traffic)
        with trio.move_on_after(self._connection_age_max_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(conversation.leave_when_drained)
                await conversation.run()
                nursery.cancel_scope.cancel()


class Conversation:
    """The requests of one connection, and their answers."""

    def __init__(self, server: MetricsServer, stream: AcceptedStream, gateway: Gateway) -> None:
        self._server = server
        self._stream = stream
        self._gateway = gateway
        self._logins = RequestLogins(stream, gateway)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._buffer = memoryview(bytearray(HEAD_BYTES_MAX))
        self._waiting = trio.CancelScope()
        self._received_bytes = 0
        self._sent_bytes = 0

    def traffic(self) -> Traffic:
        """Report the connection's traffic for the metrics."""
        return Traffic(self._received_bytes, self._sent_bytes)

    async def leave_when_drained(self) -> None:
        """End an idle connection at once, and a busy one after its answer."""
        await self._gateway.connections.drained.wait()
        self._waiting.cancel()

    async def run(self) -> None:
        """Answer requests one after the other."""
        try:
            while (request := await self._next_request()) is not None:
                await self._answer(request)
                if not self._is_reusable():
                    break
                self._http.start_next_cycle()
            self._discard_input()
        except h11.RemoteProtocolError as error:
            await self._refuse(error)
        except ConnectionLost:
            pass

    async def _next_request(self) -> h11.Request | None:
        """Wait for a request; None: the client has finished or stays silent, or the broker has drained.

        Raises:
            ConnectionLost: the client is gone.
            h11.RemoteProtocolError: the input is not HTTP.
        """
        self._waiting = trio.CancelScope(deadline=trio.current_time() + self._server.idle_timeout_s)
        if self._gateway.connections.drained.is_set():
            self._waiting.cancel()
        with self._waiting:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                count = await self._stream.receive_into(self._buffer)
                self._received_bytes += count
                self._http.receive_data(self._buffer[:count].tobytes())
            return event if isinstance(event, h11.Request) else None
        return None

    def _is_reusable(self) -> bool:
        """Whether another request may follow: this one has arrived completely, and both sides keep the connection."""
        while self._http.their_state is h11.SEND_BODY and self._http.next_event() is not h11.NEED_DATA:
            pass
        return self._http.our_state is self._http.their_state is h11.DONE

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Answer an invalid request, if no answer has begun."""
        try:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._say(error.error_status_hint, "not an HTTP request that linn reads")
            self._discard_input()
        except ConnectionLost:
            pass

    def _discard_input(self) -> None:
        """Read the input received so far: closing with unread input would lose the last output."""
        for _ in range(_LEFT_UNREAD_TRIES):
            if not self._stream.receive_nowait([self._buffer]):
                break

    # --- answers -----------------------------------------------------------------------------------------------------

    async def _answer(self, request: h11.Request) -> None:
        path = unquote(request.target.partition(b"?")[0].decode("ascii"))
        is_head = request.method == b"HEAD"
        if path not in ("/metrics", "/health", "/ready"):
            await self._say(404, "there is /metrics, /health and /ready", is_head=is_head)
        elif request.method not in (b"GET", b"HEAD"):
            await self._say(405, "GET or HEAD", [("allow", "GET, HEAD")])
        elif path == "/health":
            await self._say(200, "alive", is_head=is_head)
        elif path == "/ready":
            is_ready = self._gateway.state == "ready"
            await self._say(200 if is_ready else 503, "ready" if is_ready else "not ready", is_head=is_head)
        else:
            await self._answer_metrics(request, is_head=is_head)

    async def _answer_metrics(self, request: h11.Request, *, is_head: bool) -> None:
        """Answer with the metrics, if the client's user may see them."""
        try:
            caller = await self._logins.identity(request.headers)
        except AuthFailed as error:
            challenges = [("www-authenticate", challenge) for challenge in self._logins.challenges]
            await self._say(401, error.text, [*challenges, ("connection", "close")], is_head=is_head)
            return
        if caller is None:
            challenges = [("www-authenticate", challenge) for challenge in self._logins.challenges]
            await self._say(401, "log in", challenges, is_head=is_head)
            return
        principal = Principal(self._stream.peer, name=caller.user, login=caller.how, roles=caller.roles)
        session, per_connection = self._gateway.session(principal), self._server.per_connection
        try:
            families = await session.collect_metrics(per_connection=per_connection)
        except Forbidden as error:
            await self._say(403, error.text, is_head=is_head)
            return
        if is_head:
            await self._send(self._begun(200, CONTENT_TYPE, []), h11.EndOfMessage())
        else:
            await self._send_metrics(families)

    async def _say(self, status: int, text: str, headers: Sequence[Header] = (), *, is_head: bool = False) -> None:
        body = f"{text}\n".encode()
        head = self._begun(status, _PLAIN, [("content-length", str(len(body))), *headers])
        await self._send(head, *([] if is_head else [h11.Data(data=body)]), h11.EndOfMessage())

    async def _send_metrics(self, families: Iterator[Family]) -> None:
        await self._send(self._begun(200, CONTENT_TYPE, []))
        pieces = (piece for family in families for piece in exposed(family))
        made = bytearray()
        while True:
            async with self._server.making:
                piece = next(pieces, None)
                if piece is None:
                    break
                made += piece
                await self._gateway.env.clock.sleep(0)
            if len(made) >= PIECE_BYTES_MIN:
                await self._send(h11.Data(data=bytes(made)))
                made.clear()
        await self._send(h11.Data(data=bytes(made)), h11.EndOfMessage())

    def _begun(self, status: int, content_type: str, headers: Sequence[Header]) -> h11.Response:
        date = formatdate(self._gateway.env.clock.now_ms() / 1000, usegmt=True)
        head = [("date", date), ("content-type", content_type), ("cache-control", "no-store"), *headers]
        return h11.Response(status_code=status, headers=head)

    async def _send(self, *events: h11.Event) -> None:
        """Send a part of an answer. Raises ConnectionLost if the client is gone, or does not read."""
        data = b"".join(self._http.send(event) or b"" for event in events)
        with trio.move_on_after(SEND_S_MAX) as sending:
            await self._stream.send([data])
            self._sent_bytes += len(data)
            self._gateway.connections.refresh(self._stream)
        if sending.cancelled_caught:
            raise ConnectionLost("the client does not read")
