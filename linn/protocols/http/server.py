"""The broker's side of the protocol "metrics": hypercorn on linn's own streams, connection by connection.

hypercorn's `TCPServer` is the part of it that serves one connection; linn accepts, counts and ends connections itself,
as for any protocol. docs/adr says why.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState, LifespanState

from linn.core.env.env import AcceptedStream
from linn.core.gateway.gateway import Gateway
from linn.protocols.http.hypercorn_stream import HypercornStream
from linn.protocols.http.monitoring_app import MonitoringApp

logger = logging.getLogger("linn.http")

HEAD_BYTES_MAX = 16 << 10
"""Limit of a request's head."""
STREAMS_MAX = 4
"""Concurrent requests on an HTTP/2 connection."""


class MetricsServer:
    """A `ProtocolServer` for one listener."""

    def __init__(self, *, per_connection: bool, idle_timeout_s: float, connection_age_max_s: float) -> None:
        self._app = MonitoringApp(per_connection=per_connection)
        self._config = _config(idle_timeout_s)
        self._connection_age_max_s = connection_age_max_s

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        """Answer requests until the client is gone, idle or too old, or the broker has drained."""
        context = WorkerContext(None)
        adapter = HypercornStream(stream, context.terminated.set)
        gateway.connections.report(stream, adapter.traffic)
        app = ASGIWrapper(cast(Any, partial(self._app.answer, gateway)))
        server = TCPServer(app, self._config, context, ConnectionState(LifespanState()), cast(Any, adapter))
        with trio.move_on_after(self._connection_age_max_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_leave_when_drained, gateway, context)
                nursery.start_soon(_abort_when_cancelled, adapter)
                await server.run()
                nursery.cancel_scope.cancel()


def _config(idle_timeout_s: float) -> Config:
    config = Config()
    config.errorlog = logger
    config.accesslog = None
    config.include_server_header = False
    config.keep_alive_timeout = idle_timeout_s
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.h2_max_header_list_size = HEAD_BYTES_MAX
    config.h2_max_concurrent_streams = STREAMS_MAX
    return config


async def _leave_when_drained(gateway: Gateway, context: WorkerContext) -> None:
    """Close an idle connection at once, and a busy one after its answer."""
    await gateway.connections.drained.wait()
    await context.terminated.set()


async def _abort_when_cancelled(adapter: HypercornStream) -> None:
    try:
        await trio.sleep_forever()
    finally:
        adapter.abort()
