"""The floor: a bare trio server that reads the same frames and replies, or sends the same frames when it is asked.

It knows the segment table of Cap'n Proto's framing and nothing else. `--write FILE` adds one `os.write` per batch.
Run as a process of its own, like `linn serve`; it prints its port.
"""

from __future__ import annotations

import argparse
import os
import struct

import trio

RECEIVE_BYTES = 256 << 10
HEAD = struct.Struct("<II")


class Floor:
    """One connection: replies once per batch (every second frame), each with one send."""

    def __init__(self, stream: trio.SocketStream, reply: bytes, file: int | None) -> None:
        self.socket = stream.socket
        self.reply = reply
        self.file = file
        self.buffer = bytearray(1 << 20)
        self.view = memoryview(self.buffer)
        self.filled = 0
        self.is_batch = False

    async def run(self) -> None:
        """Read frames until the client leaves."""
        while True:
            count = await self.socket.recv_into(self.view[self.filled : self.filled + RECEIVE_BYTES])
            if count == 0:
                return
            self.filled += count
            replies = self.cut()
            for _ in range(replies):
                await self.socket.send(self.reply)

    def cut(self) -> int:
        """Take whole frames out of the buffer; how many batches there were."""
        position, batches, view = 0, 0, self.view
        while self.filled - position >= 8:
            size = 8 + 8 * HEAD.unpack_from(view, position)[1]
            if position + size > self.filled:
                break
            if self.is_batch:
                batches += 1
                if self.file is not None:
                    os.write(self.file, view[position : position + size])
            self.is_batch = not self.is_batch
            position += size
        rest = self.filled - position
        if position and rest:
            view[:rest] = view[position : self.filled].tobytes()
        self.filled = rest
        return batches


async def send_frames(stream: trio.SocketStream) -> None:
    """Consume: the client says (count, bytes of a frame), the floor sends that many, each with one send."""
    count, size = HEAD.unpack(await stream.receive_some(8))
    frame = HEAD.pack(0, size // 8 - 1) + bytes(size - 8)
    for _ in range(count):
        await stream.send_all(frame)


async def echo(stream: trio.SocketStream) -> None:
    """Latency: whatever comes goes back."""
    while data := await stream.receive_some(65536):
        await stream.send_all(data)


async def main() -> None:
    """Listen on a free port."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["publish", "consume", "echo"], default="publish")
    parser.add_argument("--write")
    parser.add_argument("--reply-bytes", type=int, default=72)
    options = parser.parse_args()
    file = os.open(options.write, os.O_CREAT | os.O_WRONLY | os.O_TRUNC) if options.write else None

    async def handle(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        if options.mode == "consume":
            await send_frames(stream)
        elif options.mode == "echo":
            await echo(stream)
        else:
            await Floor(stream, bytes(options.reply_bytes), file).run()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listeners[0].socket.getsockname()[1], flush=True)
    await trio.serve_listeners(handle, listeners)


if __name__ == "__main__":
    trio.run(main)
