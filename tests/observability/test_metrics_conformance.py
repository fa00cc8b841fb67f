"""The listener for metrics keeps the promises that every protocol makes."""

from __future__ import annotations

import re

import pytest

from linn.core.env.env import Stream
from linn.testing.protocols import ProtocolConformance, ProtocolHarness

READY = b"GET /ready HTTP/1.1\r\nHost: linn\r\n\r\n"


class HttpPeer:
    """A client that keeps its connection."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def greet(self) -> None:
        """Do nothing: HTTP has no greeting."""

    async def ask(self) -> None:
        assert await self._answer(READY) in ((b"200", b"ready\n"), (b"503", b"not ready\n"))

    async def be_refused(self) -> str:
        status, text = await self._answer(READY.replace(b"/ready", b"/nothing"))
        assert status == b"404"
        return text.decode()

    async def _answer(self, request: bytes) -> tuple[bytes, bytes]:
        await self._stream.send([request])
        received = b""
        while (
            whole := re.match(rb"HTTP/1\.1 (\d+) .*content-length: (\d+)\r\n(?:.*\r\n)?\r\n", received, re.DOTALL)
        ) is None:
            received += await self._more()
        while len(received) < whole.end() + int(whole[2]):
            received += await self._more()
        return whole[1], received[whole.end() :]

    async def _more(self) -> bytes:
        buffer = memoryview(bytearray(1 << 16))
        count = await self._stream.receive_into(buffer)
        assert count, "the broker ended the connection"
        return bytes(buffer[:count])


class TestMetrics(ProtocolConformance):
    @pytest.fixture
    def harness(self) -> ProtocolHarness:
        return ProtocolHarness(
            protocol="metrics",
            peer=HttpPeer,
            greeting=b"",
            request=READY,
            hostile=[READY[:-2] + b"Content-Length: 9\r\n\r\nx", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100],
            floods=[
                b"",
                b"GET /",
                READY[:-2],
                READY[:-2] + b"Content-Length: 99999999\r\n\r\n",
                READY[:-2] + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\n",
                READY.replace(b"ready", b"metrics")[:-2] + b"Transfer-Encoding: chunked\r\n\r\nffffff\r\n",
            ],
            settings='idle_timeout = "50s"\nconnection_age_max = "1h"',
        )
