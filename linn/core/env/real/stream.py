"""RealStream: one connected socket of the machine, behind the `Stream` port.

Laws: an `OSError` never leaves this file. The socket is non-blocking and called directly; the loop only waits for it. A
round trip costs half as much as with trio's socket.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from typing import cast

import trio

from linn.core.batch.flat_message import Buffer, without_first
from linn.core.env.env import Interrupted
from linn.core.env.file_region import Sendable
from linn.core.env.real.disk import RealFileRegion
from linn.core.env.real.os import IOV_MAX, reason
from linn.core.errors.tree import ConnectionLost

_JOIN_BYTES_MAX = 16 * 1024
"""Largest total for which one copy and `send` are faster than a `sendmsg` of many buffers."""
_PEER = struct.Struct("3i")
_MSG_MORE = socket.MSG_MORE


class RealStream:
    """A connected socket in a trio loop."""

    __slots__ = ("_socket", "peer")

    def __init__(self, connected: socket.socket, peer: str) -> None:
        """Take ownership of a connected socket."""
        connected.setblocking(False)
        self._socket = connected
        self.peer = peer
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # --- the loop's part ---

    _CLOSED: tuple[type[Exception], ...] = (OSError, ValueError, trio.ClosedResourceError)
    """Exceptions of calls and waits on a socket; a closed one has no number, which raises no OSError."""

    async def _wait_readable(self) -> None:
        """Wait on an open socket."""
        await trio.lowlevel.wait_readable(self._socket)

    async def _wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    def _notify_closing(self) -> None:
        trio.lowlevel.notify_closing(self._socket)

    def peer_uid(self) -> int | None:
        try:
            if self._socket.family != socket.AF_UNIX:
                return None
            # struct ucred of Linux: process, user and group at the time of the connect.
            found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except self._CLOSED:
            return None
        return int(_PEER.unpack(found)[1])

    # --- receiving ---

    async def receive_into(self, buffer: memoryview) -> int:
        buffers, count = [buffer], None
        while count is None:
            await self.wait_readable()
            count = self.receive_nowait(buffers)
        return count

    async def wait_readable(self) -> None:
        if self._socket.fileno() < 0:  # trio would wait for it, and then for no other closed socket.
            raise self._lost(trio.ClosedResourceError())
        try:
            await self._wait_readable()
        except self._CLOSED as error:
            if self._socket.fileno() >= 0 and not isinstance(error, OSError):
                raise Interrupted from error
            raise self._lost(error) from error

    def interrupt(self) -> None:
        # Waiting tasks, also a sender, are told that the socket is closing, although it is not.
        self._notify_closing()

    def receive_nowait(self, buffers: Sequence[memoryview]) -> int | None:
        try:
            if len(buffers) == 1:
                return self._socket.recv_into(buffers[0])
            return self._socket.recvmsg_into(buffers)[0]
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._lost(error) from error

    # --- sending ---

    def send_nowait(self, sendables: Sequence[Sendable]) -> int:
        try:
            if len(sendables) == 1 and type(sendables[0]) is not RealFileRegion:
                return self._socket.send(sendables[0])  # type: ignore[arg-type]
            buffers = _memory(sendables, 0)
            return self._send_memory(buffers, _MSG_MORE if len(buffers) < len(sendables) else 0)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def _send_memory(self, buffers: Sequence[Buffer], flags: int) -> int:
        """Send buffers in one call. Raises OSError."""
        try:
            if len(buffers) == 1:
                return self._socket.send(buffers[0], flags)
            if not buffers:
                return 0
            if sum(map(len, buffers)) <= _JOIN_BYTES_MAX:
                return self._socket.send(b"".join(buffers), flags)
            return self._socket.sendmsg(buffers[:IOV_MAX], (), flags)
        except BlockingIOError:
            return 0

    async def send(self, sendables: Sequence[Sendable]) -> None:
        place = 0
        try:
            while place < len(sendables):
                if left := _memory(sendables, place):
                    place += len(left)
                    # Data that follows goes into the same packets.
                    flags = _MSG_MORE if place < len(sendables) else 0
                    while left := without_first(left, self._send_memory(left, flags)):
                        await self._wait_room()
                else:
                    region, place = _region(sendables, place)
                    await self._send_file(region)
        except self._CLOSED as error:
            raise self._lost(error) from error

    async def _wait_room(self) -> None:
        """Wait for room. Raises the exceptions of `_CLOSED`, but ignores an interrupt, which is for the receiver."""
        try:
            await self._wait_writable()
        except self._CLOSED as error:
            if self._socket.fileno() < 0 or isinstance(error, OSError):
                raise

    async def _send_file(self, region: RealFileRegion) -> None:
        while len(region):
            try:
                sent = os.sendfile(self._socket.fileno(), region.descriptor.number, region.position, len(region))
            except BlockingIOError:
                await self._wait_room()
                continue
            if not sent:
                raise ConnectionLost(f"the connection to {self.peer} is closed: a file was cut short while it was sent")
            region = region.behind(sent)

    # --- the end ---

    def _lost(self, error: Exception) -> ConnectionLost:
        closed_here = self._socket.fileno() < 0 or not isinstance(error, OSError)
        why = "it was closed on this side" if closed_here else reason(cast(OSError, error))
        return ConnectionLost(f"the connection to {self.peer} is lost: {why}")

    async def aclose(self) -> None:
        """Close without yielding, so that a `finally` in a cancelled task closes everything."""
        if self._socket.fileno() >= 0:
            self._notify_closing()
            self._socket.close()


def _memory(sendables: Sequence[Sendable], first: int) -> Sequence[Buffer]:
    """The buffers in memory from `first` up to the next piece of a file."""
    end = first
    while end < len(sendables) and type(sendables[end]) is not RealFileRegion:
        end += 1
    return cast(Sequence[Buffer], sendables[first:end] if first or end < len(sendables) else sendables)


def _region(sendables: Sequence[Sendable], place: int) -> tuple[RealFileRegion, int]:
    """The piece of a file at `place`, joined with the pieces that continue it, and the next place."""
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
