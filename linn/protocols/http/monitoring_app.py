"""An ASGI application for monitoring systems: `/metrics`, `/health` and `/ready`.

Laws: a page is made and sent piece by piece, and the broker's other tasks run between the pieces; over all requests one
piece is made at a time. A request's body is discarded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from linn.core.gateway.gateway import ANONYMOUS, Gateway
from linn.protocols.http.exposition import CONTENT_TYPE, exposed

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

PIECE_BYTES_MIN = 64 << 10
"""Smaller pieces are sent together."""
_PLAIN = "text/plain; charset=utf-8"
_METHODS = ("GET", "HEAD")


class MonitoringApp:
    """The application of one listener."""

    def __init__(self, *, per_connection: bool) -> None:
        self._per_connection = per_connection
        self._making = trio.Lock()

    async def answer(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_discard, receive)
            await self._answer_http(gateway, scope, send)
            nursery.cancel_scope.cancel()

    async def _answer_http(self, gateway: Gateway, scope: Scope, send: Send) -> None:
        path = scope["path"]
        if path not in ("/metrics", "/health", "/ready"):
            await _say(send, 404, "there is /metrics, /health and /ready")
        elif scope["method"] not in _METHODS:
            await _say(send, 405, "GET or HEAD", [(b"allow", b"GET, HEAD")])
        elif path == "/health":
            await _say(send, 200, "alive")
        elif path == "/ready":
            await _say(send, 200 if gateway.state == "ready" else 503, gateway.state)
        else:
            await self._send_metrics(gateway, send)

    async def _send_metrics(self, gateway: Gateway, send: Send) -> None:
        await _begin(send, 200, CONTENT_TYPE, [])
        families = gateway.collect_metrics(ANONYMOUS, per_connection=self._per_connection)
        pieces = (piece for family in families for piece in exposed(family))
        made = bytearray()
        while True:
            async with self._making:
                piece = next(pieces, None)
                if piece is None:
                    break
                made += piece
                await gateway.env.clock.sleep(0)
            if len(made) >= PIECE_BYTES_MIN:
                await send({"type": "http.response.body", "body": bytes(made), "more_body": True})
                made.clear()
        await send({"type": "http.response.body", "body": bytes(made)})


async def _discard(receive: Receive) -> None:
    """Discard further input of the client, which would delay the answer.

    A client that has finished sending may still read: the answer continues until it can't be sent.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


async def _say(send: Send, status: int, text: str, headers: Sequence[Header] = ()) -> None:
    body = f"{text}\n".encode()
    await _begin(send, status, _PLAIN, [(b"content-length", str(len(body)).encode()), *headers])
    await send({"type": "http.response.body", "body": body})


async def _begin(send: Send, status: int, content_type: str, headers: Sequence[Header]) -> None:
    head = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
