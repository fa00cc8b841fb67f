"""RealNet: the machine's network, TCP and Unix sockets, behind the ports of `linn.core.env.env`.

Law: an `OSError` never leaves this file; it becomes a one-line LinnError that names the address.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket as stdlib_socket
import stat
import sys
from collections.abc import Iterator
from typing import Any

import trio

from linn.core.env.address import parse_address
from linn.core.env.env import AcceptedStream, Listener, Stream
from linn.core.env.real.os import reason
from linn.core.env.real.stream import RealStream
from linn.core.errors.tree import AddressInUse, AddressInvalid, ConnectFailed, ConnectionLost, LimitExceeded

BACKLOG = 4096
"""Connections that the kernel queues for a listener, the default of net.core.somaxconn. When many clients reconnect at
once, a connection that finds the queue full retries only after a second or longer."""
_ACCEPT_PAUSE_S = 0.1
"""Pause of a listener without descriptors (as in trio's `serve_listeners`)."""
FILES_SHARE = 16
FILES_MIN = 32
"""Descriptors reserved for files, unless a fraction of the process's limit is more: connections must never use up the
descriptors needed to store and sync."""
_ACCEPT_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_ACCEPT_PEER_GONE = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH))


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
            if socket.fileno() >= (limit := _connections_end()):
                socket.close()
                raise LimitExceeded(f"descriptors up to {limit} are in use; those above are kept for files")
            peer = self.address if self._unix_path is not None else _format(sockaddr)
            return RealStream(_detached(socket), peer)

    async def _survive(self, error: OSError) -> None:
        """Return if the next `accept` may succeed, after a pause if it would otherwise fail again at once."""
        if error.errno in _ACCEPT_EXHAUSTED:
            await trio.sleep(_ACCEPT_PAUSE_S)
        elif error.errno not in _ACCEPT_PEER_GONE:
            raise ConnectionLost(f"the listener at {self.address} failed: {reason(error)}") from error

    async def aclose(self) -> None:
        self._socket.close()
        path, self._unix_path = self._unix_path, None
        # Another broker may have replaced the socket's file; remove only our own.
        if path is not None and _file_id(path) == self._unix_file:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _connections_end() -> int:
    """The first reserved descriptor. The system assigns the lowest free one, so at this number few are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - max(FILES_MIN, soft // FILES_SHARE) if soft != resource.RLIM_INFINITY else sys.maxsize


def _file_id(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _format(sockaddr: Any) -> str:
    host, port = sockaddr[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _detached(connected: trio.socket.SocketType) -> stdlib_socket.socket:
    """The operating system's socket, taken out of trio's wrapper."""
    return stdlib_socket.socket(fileno=connected.detach())


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
    """Whether a process listens at a Unix socket's path, or the path is a file that is not a socket."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return True
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as probe:
        try:
            await probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


async def _bind(socket: trio.socket.SocketType, sockaddr: Any, *, shares_port: bool = False) -> None:
    """Bind, replacing a Unix socket whose owner is gone. Raises OSError."""
    socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    if shares_port:
        socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEPORT, 1)
    try:
        await socket.bind(sockaddr)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not isinstance(sockaddr, str) or await _answers(sockaddr):
            raise
        os.unlink(sockaddr)
        await socket.bind(sockaddr)


async def _bind_file(socket: trio.socket.SocketType, path: str, mode: int) -> None:
    """Bind a Unix socket whose file has `mode` as soon as it has its name. Raises OSError.

    A mode that is set after the file has its name leaves a moment in which others may connect (CVE-2023-45145 in
    Redis), and a umask around the call would hold for the files of other threads as well.
    """
    os.fchmod(socket.fileno(), mode)  # Linux gives the file the mode of its socket, less the umask.
    await _bind(socket, path)
    if stat.S_IMODE(os.stat(path).st_mode) != mode:
        os.chmod(path, mode)


class RealNet:
    """The machine's network: TCP and Unix sockets."""

    async def listen(self, address: str, *, socket_mode: int = 0o600, shares_port: bool = False) -> Listener:
        place = parse_address(address)
        try:
            ways = await _resolve(place)
            for way in ways[:-1]:
                # "localhost" often resolves first to an IPv6 address that the machine lacks.
                with _no_such_address_passed():
                    return await self._listen(address, *way, socket_mode, shares_port)
            return await self._listen(address, *ways[-1], socket_mode, shares_port)
        except OSError as error:
            kind = AddressInUse if error.errno == errno.EADDRINUSE else AddressInvalid
            raise kind(f"can't listen at {address}: {reason(error)}") from error

    async def _listen(
        self, address: str, family: int, sockaddr: Any, socket_mode: int, shares_port: bool
    ) -> RealListener:
        socket = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            if isinstance(sockaddr, str):
                await _bind_file(socket, sockaddr, socket_mode)
            else:
                await _bind(socket, sockaddr, shares_port=shares_port)
            socket.listen(BACKLOG)
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
            # trio considers a Unix socket connected even if its listener's backlog is full; this call then raises.
            socket.getpeername()
            return RealStream(_detached(socket), address)
        except BaseException:
            socket.close()
            raise
