"""AnyEnv: time, randomness and network for a client under trio or asyncio, behind the ports of `linn.core.env`.

Laws: an `OSError` never leaves this file. A call is tried first and waited for only where it would block; what is
async still lets other tasks run each time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from linn.core.address import parse_address
from linn.core.env import Clock, Rng, Stream
from linn.core.errors import ConnectFailed, ConnectionLost
from linn.core.flat_message import Buffer, without_first
from linn.core.real_os import IOV_MAX, reason
from linn.core.real_rng import RealRng

_JOIN_BYTES_MAX = 16 * 1024
"""Up to this many bytes one copy and `send` cost less than a `sendmsg` of many buffers."""


class ClientNet(Protocol):
    """What a client needs of a network; every `Net` has it."""

    async def connect(self, address: str) -> Stream:
        """Connect. Raises ConnectFailed, AddressInvalid."""


class ClientEnv(Protocol):
    """What a client takes from outside; every `Env` has it."""

    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> Rng: ...
    @property
    def net(self) -> ClientNet: ...


class AnyClock:
    """The machine's clocks. `monotonic` is the loop's own, so that it fits anyio's deadlines."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class AnyStream:
    """A connected, non-blocking socket."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self._socket = connected
        self.peer = peer
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def receive_into(self, buffer: memoryview) -> int:
        count = self.receive_nowait([buffer])
        if count is not None:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            return count
        while count is None:
            await self._wait(anyio.wait_readable)
            count = self.receive_nowait([buffer])
        return count

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        try:
            if len(buffers) == 1:
                return self._socket.recv_into(buffers[0])
            return self._socket.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost(reason(error)) from error

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        try:
            if len(buffers) == 1:
                return self._socket.send(buffers[0])
            if sum(map(len, buffers)) <= _JOIN_BYTES_MAX:
                return self._socket.send(b"".join(buffers))
            return self._socket.sendmsg(buffers[:IOV_MAX])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(reason(error)) from error

    async def send(self, buffers: Sequence[Buffer]) -> None:
        left = without_first(buffers, self.send_nowait(buffers))
        while left:
            await self._wait(anyio.wait_writable)
            left = without_first(left, self.send_nowait(left))

    async def _wait(self, until: Any) -> None:
        try:
            await until(self._socket)
        except (OSError, ValueError, anyio.ClosedResourceError) as error:
            raise self._lost("it was closed on this side") from error

    def _lost(self, why: str) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.peer} is lost: {why}")

    async def aclose(self) -> None:
        """Close without yielding, so that a `finally` in a cancelled task closes all that it has to."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()


async def _resolve(place: tuple[str, int] | str) -> list[tuple[int, Any]]:
    """(family, socket address) for each way to reach `place`. Raises OSError."""
    if isinstance(place, str):
        return [(socket.AF_UNIX, place)]
    try:
        try:
            # An address in numbers needs no thread.
            found: Any = socket.getaddrinfo(*place, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await anyio.getaddrinfo(*place, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "the host's name can't be encoded") from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


class AnyNet:
    """The machine's network, outward only."""

    async def connect(self, address: str) -> Stream:
        place = parse_address(address)
        try:
            ways = await _resolve(place)
            for way in ways[:-1]:
                with contextlib.suppress(OSError):
                    return await self._connect(address, *way)
            return await self._connect(address, *ways[-1])
        except OSError as error:
            raise ConnectFailed(f"can't connect to {address}: {reason(error)}") from error

    async def _connect(self, address: str, family: int, sockaddr: Any) -> AnyStream:
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            code = connecting.connect_ex(sockaddr)
            if code == errno.EINPROGRESS:
                await anyio.wait_writable(connecting)
                code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            return AnyStream(connecting, address)
        except BaseException:
            connecting.close()
            raise


class AnyEnv:
    """Time, randomness and network of this machine, under trio or asyncio.

    Example:
        async with linn.connect("linn://127.0.0.1:5466", env=AnyEnv()) as client:
            print(client.env.clock.now_ms())
    """

    def __init__(self) -> None:
        self.clock: Clock = AnyClock()
        self.rng: Rng = RealRng()
        self.net: ClientNet = AnyNet()
