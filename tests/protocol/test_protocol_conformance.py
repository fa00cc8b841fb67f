"""The native protocol keeps the promises that anybody's must."""

from __future__ import annotations

import struct
import sys
from functools import partial
from types import ModuleType
from typing import cast

import pytest
import trio

from linn.core.env.env import AcceptedStream, Stream
from linn.core.errors.tree import ConnectionLost, ProtocolError
from linn.core.gateway.gateway import Gateway
from linn.core.gateway.protocol import ProtocolKind
from linn.core.plugins.hookspecs import hookimpl
from linn.plugins.exchanges import NoSettings
from linn.testing.protocols import ProtocolConformance, ProtocolHarness
from linn.wire import messages as m
from linn.wire.connection import Connection, Event, frames_of, hello

GREETING = b"".join(bytes(frame) for frame in frames_of(hello("conformance"), 1))
PING = b"".join(bytes(frame) for frame in frames_of(m.Ping(), 2))


class CapnpPeer:
    """A client of the native protocol."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._connection = Connection()

    async def _answer(self) -> Event:
        while True:
            for event in self._connection.received(0):
                return event
            count = await self._stream.receive_into(self._connection.buffer())
            assert count, "the broker ended the connection"
            for event in self._connection.received(count):
                return event

    async def greet(self) -> None:
        await self._stream.send([GREETING])
        assert isinstance((await self._answer()).message, m.Welcome)

    async def ask(self) -> None:
        await self._stream.send([PING])
        assert (await self._answer())[:2] == (2, m.Pong())

    async def be_refused(self) -> str:
        await self._stream.send(frames_of(m.Administer("no.verb", "{}"), 3))
        failed = (await self._answer()).message
        assert isinstance(failed, m.Failed)
        return f"{failed.text} [{failed.code}]"


class TestCapnp(ProtocolConformance):
    @pytest.fixture
    def harness(self) -> ProtocolHarness:
        return ProtocolHarness(
            protocol="capnp",
            peer=CapnpPeer,
            greeting=GREETING,
            request=PING,
            hostile=[struct.pack("<II", 0, 2**31), struct.pack("<II", 2**32 - 1, 1), GREETING, PING * 300 + b"x" * 8],
            floods=[b"", struct.pack("<II", 0, (256 << 10) // 8 - 1), struct.pack("<II", 0, 1 << 13)],
        )


# --- the suite notices what is broken --------------------------------------------------------------------------------


class Lines:
    """A protocol of lines that breaks one promise."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._is_broken = False

    @hookimpl
    def linn_register_protocol(self) -> ProtocolKind:
        return ProtocolKind("lines", NoSettings, lambda settings: self)

    async def serve(self, stream: AcceptedStream, gateway: Gateway) -> None:
        received, buffer = bytearray(), memoryview(bytearray(1 << 16))
        with trio.CancelScope() as scope:
            if self._fault != "deaf":
                gateway.spawn(partial(self._end, gateway, scope))
            while (count := await stream.receive_into(buffer)) and not self._is_broken:
                received += buffer[:count]
                if len(received) > 4096 and self._fault != "hoarding":
                    raise ProtocolError("a long line")
                if received.endswith(b"\n"):
                    if self._fault == "contagious" and not received.startswith(b"p"):
                        self._is_broken = True
                    await stream.send([b"pong\n" * received.count(b"\n")])
                    received.clear()

    async def _end(self, gateway: Gateway, scope: trio.CancelScope) -> None:
        await gateway.connections.draining.wait()
        scope.cancel()


class LinesPeer:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def greet(self) -> None:
        await self.ask()

    async def ask(self) -> None:
        await self._stream.send([b"ping\n"])
        received, buffer = b"", memoryview(bytearray(100))
        while not received.endswith(b"\n"):
            count = await self._stream.receive_into(buffer)
            assert count, "the connection was ended"
            received += buffer[:count]

    async def be_refused(self) -> str:
        await self.ask()
        return "no"


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("deaf", "test_a_client_that_waits_for_nothing_does_not_hold_up_a_stop"),
        ("hoarding", "test_bytes_without_end_fill_no_memory"),
        ("contagious", "test_another_protocol_disturbs_nobody"),
        ("none", "test_a_silent_connection_is_closed"),
    ],
)
def test_a_broken_protocol_is_noticed(fault: str, promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lines_of_this_test", cast(ModuleType, Lines(fault)))
    harness = ProtocolHarness(
        "lines", LinesPeer, b"ping\n", b"ping\n", floods=[b""], modules=["lines_of_this_test"], silence_s_max=60
    )
    arguments = {"greeted": False} if "another_protocol" in promise else {}
    with pytest.raises((AssertionError, trio.TooSlowError, ConnectionLost)):
        getattr(ProtocolConformance(), promise)(harness, **arguments)
