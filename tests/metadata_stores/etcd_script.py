"""Members of a made-up etcd in a simulated network, which answer as a test says, byte by byte."""

from __future__ import annotations

import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
import trio
from tls_world import inline

from linn.core.env.env import AcceptedStream
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.tree import ConnectionLost
from linn.metadata_stores.etcd.plugin import EtcdSettings, linn_register_metadata_store
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

HEADER = {"cluster_id": "7", "revision": "10"}
EMPTY = {"header": HEADER}


@dataclass(frozen=True)
class Request:
    """A request as a member gets it."""

    path: str
    body: Any
    headers: Mapping[str, str]


Script = Callable[["Member", AcceptedStream, Request], Awaitable[None]]
"""Answers a request on its stream; the connection is closed if it raises ConnectionLost."""


def http(body: bytes | str | Any, status: int = 200, *, length: int | None = None) -> bytes:
    """A whole answer; `length`: another length than the body's."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = len(data) if length is None else length
    return f"HTTP/1.1 {status} X\r\ncontent-length: {size}\r\n\r\n".encode() + data


def says(*answers: Any, status: int = 200) -> Script:
    """Answer with JSON, or with bytes as they are; the last one also from then on."""
    left = list(answers)

    async def answer(member: Member, stream: AcceptedStream, request: Request) -> None:
        found = left.pop(0) if len(left) > 1 else left[0]
        await stream.send([found if isinstance(found, bytes) else http(found, status)])

    return answer


def cuts(data: bytes = b"") -> Script:
    """Send some bytes and close."""

    async def answer(member: Member, stream: AcceptedStream, request: Request) -> None:
        await stream.send([data])
        raise ConnectionLost("as the script says")

    return answer


async def hangs(member: Member, stream: AcceptedStream, request: Request) -> None:
    """Do nothing more until the other side closes."""
    while await stream.receive_into(memoryview(bytearray(1))):
        pass
    raise ConnectionLost("closed by the other side")


@dataclass
class Member:
    """A member of the etcd: an answer to each path, and all that it was asked."""

    address: str
    scripts: dict[str, Script] = field(default_factory=dict)
    otherwise: Script = field(default_factory=lambda: says(EMPTY))
    asked: list[Request] = field(default_factory=list)
    open: int = 0
    """Connections that are open."""
    open_max: int = 0
    connections: int = 0
    """Connections that were ever open."""
    sent_bytes: int = 0
    """Bytes of an endless answer that went out."""
    tls: ssl.SSLContext | None = None

    def paths(self) -> list[str]:
        return [request.path for request in self.asked]

    async def serve(self, env: SimEnv) -> None:
        listener = await env.net.listen(self.address)
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._converse, await listener.accept())

    async def _converse(self, stream: AcceptedStream) -> None:
        self.open += 1
        self.connections += 1
        self.open_max = max(self.open, self.open_max)
        try:
            with suppress(ConnectionLost):
                if self.tls is not None:
                    stream = TlsStream(stream, self.tls, is_server=True)
                    await stream.handshake(inline)
                http = h11.Connection(h11.SERVER)
                while (request := await self._read(stream, http)) is not None:
                    self.asked.append(request)
                    await self.scripts.get(request.path, self.otherwise)(self, stream, request)
                    http = h11.Connection(h11.SERVER)
        finally:
            self.open -= 1
            await stream.aclose()

    async def _read(self, stream: AcceptedStream, http: h11.Connection) -> Request | None:
        head, body, buffer = None, b"", memoryview(bytearray(1 << 16))
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                count = await stream.receive_into(buffer)
                if not count:
                    return None
                http.receive_data(bytes(buffer[:count]))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                assert head is not None
                headers = {name.decode(): value.decode() for name, value in head.headers}
                return Request(head.target.decode(), json.loads(body), headers)


def run_with(
    members: list[Member],
    scenario: Callable[[Any, SimEnv], Awaitable[None]],
    prepare: Callable[[SimEnv], None] = lambda env: None,
    scheme: str = "http",
    **settings: Any,
) -> None:
    """Run a scenario with a store of these members, in virtual time."""

    async def main(env: SimEnv) -> None:
        prepare(env)
        urls = tuple(f"{scheme}://{member.address}" for member in members)
        made = EtcdSettings(**({"endpoints": urls} | settings))
        store = linn_register_metadata_store().make("prod", made, env)
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.serve, SimEnv(0, name=member.address, world=env.world))
            await trio.testing.wait_all_tasks_blocked()
            await scenario(store, env)
            await store.aclose()
            nursery.cancel_scope.cancel()

    run_simulation(0, main)
