"""RealNet: the machine's network, TCP and Unix sockets, behind the ports of `linn.core.env`.

Law: an `OSError` never leaves this file, it becomes one line that names the address.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, cast

import trio

from linn.core.address import parse_address
from linn.core.env import AcceptedStream, Listener, Stream
from linn.core.errors import AddressInUse, AddressInvalid, ConnectFailed, ConnectionLost
from linn.core.file_region import Sendable
from linn.core.flat_message import Buffer, without_first
from linn.core.real_disk import RealFileRegion
from linn.core.real_os import IOV_MAX, reason

_JOIN_BYTES_MAX = 16 * 1024
"""Up to this many bytes one copy and `send` cost less than a `sendmsg` of many buffers."""
_MSG_MORE = trio.socket.MSG_MORE
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

    def send_nowait(self, sendables: Sequence[Sendable]) -> int:
        buffers = _memory(sendables, 0)
        if not buffers:
            return 0
        try:
            if len(buffers) > 1 and sum(map(len, buffers)) <= _JOIN_BYTES_MAX:
                return os.write(self._socket.fileno(), b"".join(buffers))
            return os.writev(self._socket.fileno(), buffers[:IOV_MAX])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(error) from error

    async def send(self, sendables: Sequence[Sendable]) -> None:
        place = 0
        try:
            while place < len(sendables):
                if buffers := _memory(sendables, place):
                    place += len(buffers)
                    # What comes behind goes into the same packets.
                    await self._send_memory(buffers, _MSG_MORE if place < len(sendables) else 0)
                else:
                    region, place = _region(sendables, place)
                    await self._send_file(region)
        except (OSError, trio.ClosedResourceError) as error:
            raise self._lost(error) from error

    async def _send_memory(self, buffers: Sequence[Buffer], flags: int) -> None:
        if len(buffers) == 1:
            await self._send_one(buffers[0], flags)
        elif sum(map(len, buffers)) <= _JOIN_BYTES_MAX:
            await self._send_one(b"".join(buffers), flags)
        else:
            await self._send_many(buffers, flags)

    async def _send_one(self, data: Buffer, flags: int) -> None:
        sent = await self._socket.send(data, flags)
        while sent < len(data):
            sent += await self._socket.send(memoryview(data)[sent:], flags)

    async def _send_many(self, buffers: Sequence[Buffer], flags: int) -> None:
        while buffers:
            sent = await self._socket.sendmsg(buffers[:IOV_MAX], (), flags)
            buffers = without_first(buffers, sent)

    async def _send_file(self, region: RealFileRegion) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while len(region):
            try:
                sent = os.sendfile(self._socket.fileno(), region.descriptor.number, region.position, len(region))
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
                continue
            if not sent:
                raise ConnectionLost(f"the connection to {self.peer} is given up: a file that is sent was cut")
            region = region.behind(sent)

    def _lost(self, error: OSError | trio.ClosedResourceError) -> ConnectionLost:
        why = reason(error) if isinstance(error, OSError) else "it was closed on this side"
        return ConnectionLost(f"the connection to {self.peer} is lost: {why}")

    async def aclose(self) -> None:
        """Close without yielding, so that a `finally` in a cancelled task closes all that it has to."""
        self._socket.close()


def _memory(sendables: Sequence[Sendable], first: int) -> Sequence[Buffer]:
    """What is in memory, from `first` on, up to the next piece of a file."""
    end = first
    while end < len(sendables) and type(sendables[end]) is not RealFileRegion:
        end += 1
    return cast(Sequence[Buffer], sendables[first:end] if first or end < len(sendables) else sendables)


def _region(sendables: Sequence[Sendable], place: int) -> tuple[RealFileRegion, int]:
    """The piece of a file at `place` with those that follow it in the file, and the place behind them."""
    first = last = sendables[place]
    size = 0
    while isinstance(last, RealFileRegion):
        size += len(last)
        place += 1
        if place == len(sendables) or not last.is_followed_by(sendables[place]):
            break
        last = sendables[place]
    assert isinstance(first, RealFileRegion), "a stream sends regions of its own Env's files"
    return RealFileRegion(first.descriptor, first.position, size), place


class RealListener:
    """A listening socket of trio's."""

    def __init__(self, socket: trio.socket.SocketType, address: str, unix_path: str | None) -> None:
        self._socket = socket
        self.address = address
        self._unix_path = unix_path
        self._unix_file = _file_id(unix_path) if unix_path is not None else None

    async def accept(self) -> AcceptedStream:
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
