"""A stream inside TLS beyond the contract of streams: what it encrypts and holds, and how it ends."""

from __future__ import annotations

import hashlib
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from tls_world import HOST, SIGNATURES, self_signed, shaken

from linn.core.batch.flat_message import Buffer
from linn.core.env.env import Stream
from linn.core.env.file_region import behind
from linn.core.env.real.env import RealEnv
from linn.core.env.real.process import RealProcess
from linn.core.env.tls_stream import ENCRYPTED_BYTES, TlsStream
from linn.core.errors.tree import ConnectionLost
from linn.core.security.x509 import not_after_ms, server_end_point

RECORD_BYTES_MORE = 22
"""Bytes that TLS 1.3 adds to a record of 16 KiB."""


class Narrow:
    """A stream that takes at most `room` bytes a call, or any number without a wait, and counts them."""

    def __init__(self, stream: Stream, room: int | None = None) -> None:
        self.peer = stream.peer
        self.room = room
        self.sent_bytes = 0
        self.sizes: list[int] = []
        self._stream = stream

    async def wait_readable(self) -> None:
        await self._stream.wait_readable()

    async def receive_into(self, buffer: memoryview) -> int:
        return await self._stream.receive_into(buffer)

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        return self._stream.receive_nowait(buffers)

    def interrupt(self) -> None:
        self._stream.interrupt()

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        (data,) = buffers
        sent = self._stream.send_nowait([memoryview(data)[: self.room]])
        self.sent_bytes += sent
        return sent

    async def send(self, buffers: Sequence[Buffer]) -> None:
        (data,) = buffers
        self.sizes.append(len(data))
        self.sent_bytes += len(data)
        if self.room is not None:  # Otherwise it takes everything, and nobody waits.
            await self._stream.send(buffers)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def pair_of(room: int | None = None) -> tuple[TlsStream, Narrow, TlsStream]:
    """Return a server's stream, what is below it, and the client's stream."""
    env = RealEnv()
    listener = await env.net.listen("127.0.0.1:0")
    client = await env.net.connect(listener.address)
    narrow = Narrow(await listener.accept(), 1 << 30)
    await listener.aclose()
    ours, theirs = await shaken(env, client, narrow)
    narrow.sent_bytes, narrow.room = 0, room
    return theirs, narrow, ours


async def received(stream: TlsStream, size: int) -> bytes:
    found, buffer = bytearray(), memoryview(bytearray(50_000))
    while len(found) < size:
        count = await stream.receive_into(buffer)
        assert count
        found += buffer[:count]
    return bytes(found)


@pytest.mark.parametrize("room", [1, 1000, 40_000, 1 << 20])
async def test_bytes_are_encrypted_once_however_little_is_taken_at_a_time(room: int) -> None:
    server, narrow, client = await pair_of(room)
    content = bytes(range(256)) * (1000 if room > 1 else 300)
    left = behind([content[:10], content[10:50_000], content[50_000:]], 0)
    found = bytearray()

    async def read() -> None:
        found.extend(await received(client, len(content)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        while left:
            left = behind(left, server.send_nowait(left))
            await trio.lowlevel.checkpoint()
    assert bytes(found) == content
    records = len(content) // (16 << 10) + 4
    assert len(content) < narrow.sent_bytes <= len(content) + records * RECORD_BYTES_MORE
    for stream in (server, client):
        await stream.aclose()


async def test_a_send_continues_a_part_that_waits_and_small_buffers_share_records() -> None:
    server, narrow, client = await pair_of(100)
    content = [bytes([index % 256]) * 40 for index in range(5000)]
    left = behind(content, server.send_nowait(content))
    assert left, "not all is taken"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.send, left)
        assert await received(client, 200_000) == b"".join(content)
    assert narrow.sent_bytes < 200_000 + 16 * RECORD_BYTES_MORE
    assert max(narrow.sizes) <= ENCRYPTED_BYTES + 4 * RECORD_BYTES_MORE
    for stream in (server, client):
        await stream.aclose()


async def test_a_client_that_does_not_read_costs_little_memory() -> None:
    server, _, client = await pair_of(1 << 30)
    large = bytes(64 << 20)
    before = RealProcess().memory_bytes()
    with trio.move_on_after(0.5) as scope:
        await server.send([large])
    assert scope.cancelled_caught
    assert RealProcess().memory_bytes() - before < 8 << 20
    for stream in (server, client):
        await stream.aclose()


async def test_others_run_while_a_stream_takes_everything_at_once() -> None:
    server, narrow, client = await pair_of()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await server.send([bytes(16 << 20)])
        nursery.cancel_scope.cancel()
    assert turns > 30
    narrow.room = 1 << 30
    for stream in (server, client):
        await stream.aclose()


async def test_bytes_that_are_decrypted_already_need_no_wait() -> None:
    server, _, client = await pair_of(1 << 30)
    await server.send([b"0123456789"])
    with trio.fail_after(5):
        for digit in b"0123456789":
            buffer = bytearray(1)
            assert await client.receive_into(memoryview(buffer)) == 1
            assert buffer[0] == digit
    for stream in (server, client):
        await stream.aclose()


async def test_a_send_that_was_cancelled_is_no_orderly_end() -> None:
    server, _, client = await pair_of(1 << 30)
    with trio.move_on_after(0.1):
        await server.send([bytes(64 << 20)])
    await server.aclose()
    with pytest.raises(ConnectionLost), trio.fail_after(10):
        await received(client, 64 << 20)
    await client.aclose()


async def test_an_orderly_end_is_told_from_a_cut() -> None:
    server, narrow, client = await pair_of(1 << 30)
    await server.aclose()
    assert await client.receive_into(memoryview(bytearray(10))) == 0
    await client.aclose()
    server, narrow, client = await pair_of(1 << 30)
    await server.send([b"the last"])
    await narrow.aclose()
    assert await received(client, 8) == b"the last"
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="cut off"):
            await client.receive_into(memoryview(bytearray(10)))
    await client.aclose()


async def test_bytes_changed_on_the_way_are_an_error_and_are_not_received() -> None:
    server, narrow, client = await pair_of(1 << 30)
    await narrow.send([b"\x17\x03\x03\x00\x20" + bytes(32)])
    with pytest.raises(ConnectionLost, match=r"bad record mac|decryption failed"):
        await client.receive_into(memoryview(bytearray(10)))
    for stream in (server, client):
        await stream.aclose()


# --- channel binding --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SIGNATURES)
def test_the_channel_binding_is_by_the_hash_of_the_signature(tmp_path: Path, kind: str) -> None:
    der, name = self_signed(tmp_path, kind), SIGNATURES[kind][1]
    assert server_end_point(der) == (hashlib.new(name, der).digest() if name else None)
    shown = subprocess.run(
        ["openssl", "x509", "-in", "cert.pem", "-noout", "-enddate"], cwd=tmp_path, check=True, capture_output=True
    )
    assert not_after_ms(der) == ssl.cert_time_to_seconds(shown.stdout.decode().strip().removeprefix("notAfter=")) * 1000


@pytest.mark.parametrize("size", [0, 1, 3, 20, 100, 300])
def test_a_certificate_that_ends_too_early_is_an_error(size: int) -> None:
    from tls_world import pair

    der = ssl.PEM_cert_to_DER_cert(pair(HOST)[0].decode().split("-----END")[0] + "-----END CERTIFICATE-----\n")
    with pytest.raises(ValueError, match="too early"):
        not_after_ms(der[:size])
    with pytest.raises(ValueError, match="too early"):
        server_end_point(der[:size])
