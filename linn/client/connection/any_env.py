"""AnyEnv: time, randomness and network for a client under trio or asyncio, behind the ports of `linn.core.env.env`.

Law: an `OSError` never leaves this file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import trio
from trio.lowlevel import in_trio_run

from linn.core.env.address import parse_address
from linn.core.env.env import Clock, Rng, Stream
from linn.core.env.real.os import reason
from linn.core.env.real.rng import RealRng
from linn.core.env.real.stream import RealStream
from linn.core.errors.tree import ConnectFailed


class ClientNet(Protocol):
    """Network that a client needs; every `Net` has this method."""

    async def connect(self, address: str) -> Stream:
        """Connect. Raises ConnectFailed, AddressInvalid."""


class ClientEnv(Protocol):
    """Environment that a client needs; every `Env` has these attributes."""

    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> Rng: ...
    @property
    def net(self) -> ClientNet: ...


class AnyClock:
    """The machine's clocks. `monotonic` is the clock of the loop that first calls it, for its deadlines."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = self._first_monotonic

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def _first_monotonic(self) -> float:
        # Later calls do not look the loop up, which takes most of a microsecond: consumers call this per message.
        self.monotonic = trio.current_time if in_trio_run() else time.monotonic
        return self.monotonic()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class AnyStream(RealStream):
    """A connected socket under another loop than trio's."""

    __slots__ = ()

    _CLOSED = (OSError, ValueError, anyio.ClosedResourceError)

    async def _wait_readable(self) -> None:
        await anyio.wait_readable(self._socket)

    async def _wait_writable(self) -> None:
        await anyio.wait_writable(self._socket)

    def _notify_closing(self) -> None:
        anyio.notify_closing(self._socket)


async def _resolve(place: tuple[str, int] | str) -> list[tuple[int, Any]]:
    """Return (family, socket address) for each way to reach `place`. Raises OSError."""
    if isinstance(place, str):
        return [(socket.AF_UNIX, place)]
    try:
        try:
            # A numeric address needs no thread.
            found: Any = socket.getaddrinfo(*place, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await anyio.getaddrinfo(*place, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "the host's name can't be encoded") from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


class AnyNet:
    """The machine's network, for outgoing connections only."""

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

    async def _connect(self, address: str, family: int, sockaddr: Any) -> RealStream:
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            code = connecting.connect_ex(sockaddr)
            if code == errno.EINPROGRESS:
                await anyio.wait_writable(connecting)
                code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            return RealStream(connecting, address) if in_trio_run() else AnyStream(connecting, address)
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
