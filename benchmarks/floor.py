"""The floor: a bare trio server that reads the same frames and replies, or sends the same frames on request.

It knows the segment table of Cap'n Proto's framing and nothing else: no offsets, no CRC, and nothing is stored unless
an option says so: `--keep` shows the cost of memory alone, `--file` that of a file (one write per batch, or one read
per delivery). It runs as a process of its own, like `linn serve`, prints its port, and ends when its stdin does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

RECEIVE_BYTES = 256 << 10
BUFFER_BYTES = 1 << 20
"""Default size; a buffer holds a whole batch."""
HEAD = struct.Struct("<II")
Buffer = bytes | bytearray | memoryview
ASK = struct.Struct("<IIII")
"""A consumer's request: batches, bytes of a batch, batches of a delivery, bytes of its control frame."""


class Publishes:
    """One connection that publishes: every second frame is a batch, and is replied to."""

    def __init__(
        self,
        socket: trio.socket.SocketType,
        reply: bytes,
        kept: deque[bytearray] | None = None,
        file: int | None = None,
        sync: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """`sync`: sync the file before replies are sent, once per receive."""
        self.socket = socket
        self.reply = reply
        self.file = file
        self.sync = sync
        self.kept = kept
        self.buffer = bytearray(buffer_bytes)
        self.view = memoryview(self.buffer)
        self.begin = self.end = 0
        self.is_batch = False

    async def run(self) -> None:
        """Read frames until the client leaves; all replies due after one receive are sent together."""
        while True:
            if len(self.buffer) - self.end < RECEIVE_BYTES:
                self.move_to_front()
            count = await self.socket.recv_into(self.view[self.end : self.end + RECEIVE_BYTES])
            if count == 0:
                return
            self.end += count
            batches = self.cut()
            if batches and self.sync and self.file is not None:
                os.fdatasync(self.file)
            if batches and self.reply:
                await send_all(self.socket, [self.reply * batches])

    def move_to_front(self) -> None:
        """Make room after the incomplete frame."""
        rest = self.end - self.begin
        self.view[:rest] = self.view[self.begin : self.end]
        self.begin, self.end = 0, rest

    def cut(self) -> int:
        """Take complete frames out of the buffer, and write or keep the batches; returns their number."""
        position, end, batches, view = self.begin, self.end, 0, self.view
        while end - position >= 8:
            size = 8 + 8 * HEAD.unpack_from(view, position)[1]
            if position + size > end:
                break
            if self.is_batch:
                batches += 1
                if self.file is not None:
                    os.write(self.file, view[position : position + size])
                if self.kept is not None:
                    self.kept.append(bytearray(view[position : position + size]))
            self.is_batch = not self.is_batch
            position += size
        self.begin = position
        if position == end:
            self.begin = self.end = 0
        return batches


async def send_all(socket: trio.socket.SocketType, buffers: Sequence[Buffer]) -> None:
    """Send buffers with as few calls as the socket allows."""
    while buffers:
        sent = await socket.sendmsg(buffers)
        buffers = behind(buffers, sent)


def behind(buffers: Sequence[Buffer], sent: int) -> list[Buffer]:
    """The rest of `buffers` after the first `sent` bytes."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []


class Deliveries:
    """Frames for consumers, made once and kept in memory of their own, like those of a log."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.batches: list[bytearray] = []

    async def serve(self, socket: trio.socket.SocketType) -> None:
        """Send the frames that one connection asks for, again and again."""
        while ask := await socket.recv(ASK.size):
            count, size, per_delivery, control_bytes = ASK.unpack(ask)
            control = frame_of(control_bytes)
            if self.path is None:
                self.make(count, size)
                for first in range(0, count, per_delivery):
                    await send_all(socket, [control, *self.batches[first : min(first + per_delivery, count)]])
            else:
                await self.send_file(socket, self.path, control, count * size, per_delivery * size)

    def make(self, count: int, size: int) -> None:
        """Make the frames unless they exist."""
        if len(self.batches) < count or len(self.batches[0]) != size:
            self.batches = [frame_of(size) for _ in range(count)]

    async def send_file(
        self, socket: trio.socket.SocketType, path: str, control: bytearray, size: int, delivery_bytes: int
    ) -> None:
        """Send the same from a file, with one read per delivery."""
        buffer = memoryview(bytearray(delivery_bytes))
        file = os.open(path, os.O_RDONLY)
        try:
            for position in range(0, size, delivery_bytes):
                count = os.preadv(file, [buffer], position)
                await send_all(socket, [control, buffer[: min(count, size - position)]])
        finally:
            os.close(file)


def frame_of(size: int) -> bytearray:
    """Make a frame of one segment."""
    frame = bytearray(os.urandom(size))
    HEAD.pack_into(frame, 0, 0, size // 8 - 1)
    return frame


async def echo(socket: trio.socket.SocketType, path: str | None) -> None:
    """Send back everything received, once it is on stable storage if there is a path."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644) if path is not None else None
    try:
        while data := await socket.recv(65536):
            if file is not None:
                os.write(file, data)
                os.fdatasync(file)
            await send_all(socket, [data])
    finally:
        if file is not None:
            os.close(file)


async def serve(options: argparse.Namespace) -> None:
    """Listen on a free port until stdin ends."""
    deliveries = Deliveries(options.file)
    kept = deque[bytearray](maxlen=options.keep) if options.keep else None

    async def talk(socket: trio.socket.SocketType) -> None:
        if options.mode == "consume":
            await deliveries.serve(socket)
        elif options.mode == "echo":
            await echo(socket, options.file)
        else:
            await serve_publishes(socket, options, kept)

    await listen(talk)


async def listen(talk: Callable[[trio.socket.SocketType], Awaitable[None]]) -> None:
    """Print a free port, and serve all connections to it, until stdin ends."""

    async def handle(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # A client may leave in the middle.
            await talk(stream.socket)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=1024)
    print(listeners[0].socket.getsockname()[1], flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def serve_publishes(
    socket: trio.socket.SocketType, options: argparse.Namespace, kept: deque[bytearray] | None
) -> None:
    """Serve one connection's publishes, into a file of its own that lives as long as the connection if
    there is a path.
    """
    reply = bytes(frame_of(options.reply_bytes)) if options.reply_bytes else b""
    if options.file is None:
        await Publishes(socket, reply, kept, buffer_bytes=options.buffer_bytes).run()
        return
    file = os.open(options.file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    os.unlink(options.file)  # It is gone when it is closed, and the next connection makes another.
    try:
        await Publishes(socket, reply, kept, file, options.sync, options.buffer_bytes).run()
    finally:
        os.close(file)


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["publish", "consume", "echo"], default="publish")
    parser.add_argument(
        "--file", help="publish: one os.write per batch into it; consume: one os.preadv per delivery; echo: synced"
    )
    parser.add_argument("--keep", type=int, metavar="COUNT", help="publish: the newest so many batches, in memory")
    parser.add_argument("--sync", action="store_true", help="publish: put the file on stable storage before replying")
    parser.add_argument("--reply-bytes", type=int, default=72, help="publish: of the answer to a batch; 0 for none")
    parser.add_argument("--buffer-bytes", type=int, default=BUFFER_BYTES, help="publish: more than a batch has")
    trio.run(serve, parser.parse_args())


if __name__ == "__main__":
    main()
