"""RealEnv: the world as it is, behind the ports of `linn.core.env`.

Laws: an `OSError` never leaves this file, it becomes one line that names the path or the address. Nothing blocks the
loop but what the ports call synchronous; what may wait for a disk runs in a thread, and a file's descriptor is not
closed under a thread that uses it. One handle at a time writes a file, because each keeps the file's end itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import trio

from linn.core.env import Listener, Stream
from linn.core.errors import (
    AddressInUse,
    AddressInvalid,
    ConnectFailed,
    ConnectionLost,
    DataDirLocked,
    DiskFull,
    DiskReadOnly,
    StorageError,
    SyncFailed,
)
from linn.core.flat_message import Buffer

T = TypeVar("T")
_IOV_MAX = 1024
"""Buffers that Linux takes in one call (UIO_MAXIOV)."""
_JOIN_BYTES_MAX = 16 * 1024
"""Up to this many bytes one copy and `send` cost less than a `sendmsg` of many buffers."""
_BACKLOG = 1024
"""Connections that the kernel holds for a listener; more than a reconnecting fleet of clients of one broker."""
_ACCEPT_PAUSE_S = 0.1
"""How long a listener without descriptors waits for one to come free (as trio's `serve_listeners`)."""
_UNIX_PATH_BYTES_MAX = 107
"""`sun_path` of Linux without its closing zero."""
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_READ_ONLY = frozenset((errno.EROFS, errno.EACCES, errno.EPERM))
_ACCEPT_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_ACCEPT_PEER_GONE = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH))


def _reason(error: OSError) -> str:
    return "it is closed" if error.errno == errno.EBADF else (error.strerror or str(error))


def _disk_error(error: OSError, deed: str, path: str) -> StorageError:
    text = f"can't {deed} {path}: {_reason(error)}"
    if error.errno in _FULL:
        return DiskFull(text)
    if error.errno in _READ_ONLY:
        return DiskReadOnly(text)
    return StorageError(text)


@contextlib.contextmanager
def _translated(deed: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _disk_error(error, deed, path) from error


def _without_first(buffers: Sequence[Buffer], count: int) -> list[Buffer]:
    """`buffers` without their first `count` bytes, by views."""
    for index, buffer in enumerate(buffers):
        if count < len(buffer):
            return [memoryview(buffer)[count:], *buffers[index + 1 :]]
        count -= len(buffer)
    return []


class RealClock:
    """The machine's clocks. `monotonic` is trio's own, so that it fits trio's deadlines; it needs a running loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return trio.current_time()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class RealRng:
    """`bytes` comes from the operating system; the rest from a generator that it seeded."""

    def __init__(self) -> None:
        self._random = random.Random()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def integer(self, below: int) -> int:
        return self._random.randrange(below)


class RealFile:
    """A descriptor and where its file ends."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._end = os.fstat(descriptor).st_size
        self._threads = 0

    def write(self, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        try:
            written = os.pwritev(self._descriptor, buffers[:_IOV_MAX], self._end)
            if written != total:
                self._write_rest(_without_first(buffers, written), self._end + written)
        except OSError as error:
            raise self._take_back(error) from error
        self._end += total
        return total

    def _write_rest(self, buffers: Sequence[Buffer], position: int) -> None:
        while buffers:
            written = os.pwritev(self._descriptor, buffers[:_IOV_MAX], position)
            position += written
            buffers = _without_first(buffers, written)

    def _take_back(self, error: OSError) -> StorageError:
        """Cut off what a failed append left; the error to raise."""
        try:
            if os.fstat(self._descriptor).st_size > self._end:
                os.ftruncate(self._descriptor, self._end)
        except OSError as second:
            return StorageError(f"can't append to {self._path}, nor cut it back: {_reason(second)}")
        return _disk_error(error, "append to", self._path)

    def write_at(self, data: Buffer, position: int) -> None:
        with _translated("write", self._path):
            self._write_rest([data] if len(data) else [], position)
        self._end = max(self._end, position + len(data))

    def size(self) -> int:
        with _translated("measure", self._path):
            return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        with _translated("truncate", self._path):
            assert size <= os.fstat(self._descriptor).st_size, "truncate cuts, it does not extend"
            os.ftruncate(self._descriptor, size)
        self._end = size

    async def read(self, position: int, bytes_max: int) -> bytearray:
        """As the port says. What the page cache holds is read without leaving the task, so this may not yield."""
        await trio.lowlevel.checkpoint_if_cancelled()
        with _translated("read", self._path):
            available = os.fstat(self._descriptor).st_size - position
            buffer = bytearray(max(0, min(bytes_max, available)))
            count = self._read_cached(buffer, position)
            if count < len(buffer):
                count = await self._in_thread(lambda descriptor: _read_fully(descriptor, buffer, count, position))
        # A file that is cut during the read is shorter than it was measured.
        del buffer[count:]
        return buffer

    def _read_cached(self, buffer: bytearray, position: int) -> int:
        try:
            return os.preadv(self._descriptor, (buffer,), position, os.RWF_NOWAIT)
        except OSError as error:
            # EAGAIN: nothing of it is cached. EOPNOTSUPP: the file system can't tell. Both go to the thread.
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            return 0

    async def sync(self) -> None:
        try:
            await self._in_thread(os.fdatasync)
        except OSError as error:
            raise SyncFailed(f"can't sync {self._path}: {_reason(error)}") from error

    async def _in_thread(self, work: Callable[[int], T]) -> T:
        """Run `work(descriptor)` in a thread, which a cancellation waits for."""
        descriptor = self._descriptor
        if descriptor < 0:
            raise OSError(errno.EBADF, "closed")
        self._threads += 1
        try:
            return await trio.to_thread.run_sync(work, descriptor)
        finally:
            self._threads -= 1
            if self._descriptor < 0 and not self._threads:
                _close(descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and not self._threads:
            _close(descriptor)


def _close(descriptor: int) -> None:
    # Linux frees the descriptor whatever close() says, and `close` promises nothing about the data.
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _read_fully(descriptor: int, buffer: bytearray, count: int, position: int) -> int:
    """Fill `buffer`, whose first `count` bytes are there; the bytes in it, fewer only at the end of the file."""
    with memoryview(buffer) as view:
        while count < len(buffer):
            with view[count:] as rest:
                got = os.preadv(descriptor, (rest,), position + count)
            if not got:
                break
            count += got
    return count


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        _close(descriptor)


class RealDisk:
    """The machine's file system."""

    def open(self, path: str, *, create: bool = False) -> RealFile:
        with _translated("open", path):
            descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
        return RealFile(path, descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_dir(self, path: str) -> list[str]:
        with _translated("list", path):
            return sorted(os.listdir(path))

    def make_dir(self, path: str) -> None:
        with _translated("make the folder", path):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _translated(f"rename {source} to", target):
            os.replace(source, target)

    def unlink(self, path: str) -> None:
        with _translated("delete", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: str) -> None:
        with _translated("delete the folder", path), contextlib.suppress(FileNotFoundError):
            os.rmdir(path)

    async def sync_dir(self, path: str) -> None:
        try:
            await trio.to_thread.run_sync(_sync_folder, path)
        except OSError as error:
            raise SyncFailed(f"can't sync the folder {path}: {_reason(error)}") from error

    def free_bytes(self, path: str) -> int:
        with _translated("measure the disk of", path):
            found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> Callable[[], None]:
        file = self.open(path, create=True)
        try:
            with _translated("lock", path):
                fcntl.flock(file._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except StorageError as error:
            file.close()
            if isinstance(error.__cause__, BlockingIOError):
                raise DataDirLocked(f"another process holds {path}") from error
            raise
        return file.close


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
            sent = await self._socket.sendmsg(buffers[:_IOV_MAX])
            buffers = _without_first(buffers, sent)

    def _lost(self, error: OSError | trio.ClosedResourceError) -> ConnectionLost:
        reason = _reason(error) if isinstance(error, OSError) else "it was closed on this side"
        return ConnectionLost(f"the connection to {self.peer} is lost: {reason}")

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
            raise ConnectionLost(f"the listener at {self.address} failed: {_reason(error)}") from error

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


def parse_address(address: str) -> tuple[str, int] | str:
    """(host, port) of "HOST:PORT" or "[V6]:PORT", or the path of "unix:PATH". Raises AddressInvalid."""
    if address.startswith("unix:"):
        path = address[5:]
        if not path or "\0" in path or len(os.fsencode(path)) > _UNIX_PATH_BYTES_MAX:
            raise AddressInvalid(f"{address!r}: a Unix socket's path has 1 to {_UNIX_PATH_BYTES_MAX} bytes")
        return path
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host or (":" in host) != bracketed or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise AddressInvalid(f"{address!r} is not HOST:PORT, [V6]:PORT or unix:PATH")
    return host, int(port)


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
            raise kind(f"can't listen at {address}: {_reason(error)}") from error

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
            raise ConnectFailed(f"can't connect to {address}: {_reason(error)}") from error

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


class RealEnv:
    """Time, randomness, files and network of this machine."""

    def __init__(self) -> None:
        self.clock = RealClock()
        self.rng = RealRng()
        self.disk = RealDisk()
        self.net = RealNet()
