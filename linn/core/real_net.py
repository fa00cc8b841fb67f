"""RealNet: the machine's network, TCP and Unix sockets, behind the ports of `linn.core.env`.

Law: an `OSError` never leaves this file, it becomes one line that names the address.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any

import trio

from linn.core.address import parse_address
from linn.core.env import Listener, Stream
from linn.core.errors import AddressInUse, AddressInvalid, ConnectFailed, ConnectionLost
from linn.core.flat_message import Buffer, without_first
from linn.core.real_os import IOV_MAX, reason

_JOIN_BYTES_MAX = 16 * 1024
"""Up to this many bytes one copy and `send` cost less than a `sendmsg` of many buffers."""
_BACKLOG = 1024
"""Connections that the kernel holds for a listener; more than a reconnecting fleet of clients of one broker."""
_ACCEPT_PAUSE_S = 0.1
"""How long a listener without descriptors waits for one to come free (as trio's `serve_listeners`)."""
_ACCEPT_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_ACCEPT_PEER_GONE = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH))


class RealStream:
    """A connected socket of trio's."""

    def __init__(self, socket: trio.socket.SocketType, peer: str) -> None:
        self._socket = socket
        self.peer = peer
        if socket.family != trio.socket.AF_UNIX:
            socket.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            return await self._socket.recv_into(buffer)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._lost(error) from error

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        # trio has no call that does not yield; its sockets are non-blocking, so the descriptor does.
        try:
            return os.readv(self._socket.fileno(), buffers)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost(error) from error

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        try:
            if len(buffers) > 1 and sum(map(len, buffers)) <= _JOIN_BYTES_MAX:
                return os.write(self._socket.fileno(), b"".join(buffers))
            return os.writev(self._socket.fileno(), buffers[:IOV_MAX])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(error) from error

    async def send(self, buffers: Sequence[Buffer]) -> None:
        try:
            if len(buffers) == 1:
                await self._send_one(buffers[0])
            elif sum(map(len, buffers)) <= _JOIN_BYTES_MAX:
                await self._send_one(b"".join(buffers))
            else:
                await self._send_many(buffers)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._lost(error) from error

    async def _send_one(self, data: Buffer) -> None:
        sent = await self._socket.send(data)
        while sent < len(data):
            sent += await self._socket.send(memoryview(data)[sent:])

    async def _send_many(self, buffers: Sequence[Buffer]) -> None:
        while buffers:
            sent = await self._socket.sendmsg(buffers[:IOV_MAX])
            buffers = without_first(buffers, sent)

    def _lost(self, error: OSError | trio.ClosedResourceError) -> ConnectionLost:
        why = reason(error) if isinstance(error, OSError) else "it was closed on this side"
        return ConnectionLost(f"the connection to {self.peer} is lost: {why}")

    async def aclose(self) -> None:
        """Close without yielding, so that a `finally` in a cancelled task closes all that it has to."""
        self._socket.close()


class RealListener:
    """A listening socket of trio's."""

    def __init__(self, socket: trio.socket.SocketType, address: str, unix_path: str | None) -> None:
        self._socket = socket
        self.address = address
        self._unix_path = unix_path
        self._unix_file = _file_id(unix_path) if unix_path is not None else None

    async def accept(self) -> Stream:
        while True:
            try:
                socket, sockaddr = await self._socket.accept()
            except trio.ClosedResourceError as error:
                raise ConnectionLost(f"the listener at {self.address} is closed") from error
            except OSError as error:
                await self._survive(error)
                continue
            return RealStream(socket, self.address if self._unix_path is not None else _format(sockaddr))

    async def _survive(self, error: OSError) -> None:
        """Return if the next `accept` may succeed, after a pause where it would fail the same way at once."""
        if error.errno in _ACCEPT_EXHAUSTED:
            await trio.sleep(_ACCEPT_PAUSE_S)
        elif error.errno not in _ACCEPT_PEER_GONE:
            raise ConnectionLost(f"the listener at {self.address} failed: {reason(error)}") from error

    async def aclose(self) -> None:
        self._socket.close()
        path, self._unix_path = self._unix_path, None
        # Another broker may have replaced the socket's file meanwhile; only our own is removed.
        if path is not None and _file_id(path) == self._unix_file:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _format(sockaddr: Any) -> str:
    host, port = sockaddr[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _resolve(place: tuple[str, int] | str) -> list[tuple[int, Any]]:
    """(family, socket address) for each way to reach `place`. Raises OSError."""
    if isinstance(place, str):
        return [(trio.socket.AF_UNIX, place)]
    try:
        found = await trio.socket.getaddrinfo(*place, type=trio.socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(errno.EINVAL, "the host's name can't be encoded") from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


@contextlib.contextmanager
def _no_such_address_passed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise


async def _answers(path: str) -> bool:
    """Whether something listens at a Unix socket's path, or something that is no socket lies there."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return True
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as probe:
        try:
            await probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


async def _bind(socket: trio.socket.SocketType, sockaddr: Any) -> None:
    """Bind, taking the place of a Unix socket whose owner is gone. Raises OSError."""
    socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    try:
        await socket.bind(sockaddr)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not isinstance(sockaddr, str) or await _answers(sockaddr):
            raise
        os.unlink(sockaddr)
        await socket.bind(sockaddr)


class RealNet:
    """The machine's network: TCP and Unix sockets."""

    async def listen(self, address: str) -> Listener:
        place = parse_address(address)
        try:
            ways = await _resolve(place)
            for way in ways[:-1]:
                # "localhost" is often an IPv6 address that the machine doesn't have, before the one that it has.
                with _no_such_address_passed():
                    return await self._listen(address, *way)
            return await self._listen(address, *ways[-1])
        except OSError as error:
            kind = AddressInUse if error.errno == errno.EADDRINUSE else AddressInvalid
            raise kind(f"can't listen at {address}: {reason(error)}") from error

    async def _listen(self, address: str, family: int, sockaddr: Any) -> RealListener:
        socket = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            await _bind(socket, sockaddr)
            socket.listen(_BACKLOG)
        except BaseException:
            socket.close()
            raise
        if isinstance(sockaddr, str):
            return RealListener(socket, address, sockaddr)
        return RealListener(socket, _format(socket.getsockname()), None)

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
        socket = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            await socket.connect(sockaddr)
            # A Unix socket whose listener's backlog is full looks connected to trio; this tells.
            socket.getpeername()
            return RealStream(socket, address)
        except BaseException:
            socket.close()
            raise
