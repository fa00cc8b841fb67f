"""The floor of a queue: a bare trio server that passes batches from one connection to another, which acks them.

It knows frames, as `floor` does, and counts: batches wait in memory for the one consumer, a limited number of them may
be unacked, and each is done after a fixed number of acks. Nothing is leased, stored or redelivered.
"""

from __future__ import annotations

import argparse
import contextlib
import struct
from collections import deque

import trio

from benchmarks.floor import HEAD, Publishes, frame_of, listen, send_all

JOIN = struct.Struct("<IIIIII")
"""A consumer's first message: JOINING, most unacked batches (0: no limit), acks of a batch, bytes of an ack, bytes of
the answer to an ack, bytes of a control frame.
"""
JOINING = 1
"""A number with which no frame of one segment begins."""
SEND_BATCHES = 64
"""Batches handed to the kernel at once."""


class Relay:
    """One queue with one consumer."""

    def __init__(self, reply: bytes) -> None:
        self.reply = reply
        self.waiting: deque[bytearray] = deque()
        self.open_acks = 0
        self._sending = trio.Lock()
        """Held while whole frames are sent, of deliveries and answers alike."""
        self._changed = trio.Event()

    async def talk(self, socket: trio.socket.SocketType) -> None:
        """Serve a publisher or a consumer, told apart by the first bytes."""
        first = await socket.recv(HEAD.size, trio.socket.MSG_PEEK)
        if first[:1] != bytes([JOINING]):
            await Relayed(socket, self).run()
            return
        joined = JOIN.unpack(await socket.recv(JOIN.size))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, socket, joined[1], joined[2], frame_of(joined[5]))
            with contextlib.suppress(OSError):
                await self._take_acks(socket, *joined[3:5])
            nursery.cancel_scope.cancel()
        self.waiting.clear()
        self.open_acks = 0

    def changed(self) -> None:
        """Wake the delivery: there is something to send, or room for it."""
        self._changed.set()

    async def _deliver(self, socket: trio.socket.SocketType, batches_max: int, acks: int, control: bytearray) -> None:
        while True:
            room = batches_max - -(-self.open_acks // acks) if batches_max else SEND_BATCHES
            count = min(room, len(self.waiting), SEND_BATCHES)
            if count <= 0:
                self._changed = trio.Event()
                await self._changed.wait()
                continue
            self.open_acks += count * acks
            buffers = [buffer for _ in range(count) for buffer in (control, self.waiting.popleft())]
            async with self._sending:
                with contextlib.suppress(OSError):  # The consumer has left.
                    await send_all(socket, buffers)

    async def _take_acks(self, socket: trio.socket.SocketType, ack_bytes: int, answer_bytes: int) -> None:
        answer, rest = bytes(frame_of(answer_bytes)), 0
        while data := await socket.recv(65536):
            count, rest = divmod(rest + len(data), ack_bytes)
            self.open_acks -= count
            self.changed()
            async with self._sending:
                await send_all(socket, [answer * count])


class Relayed(Publishes):
    """The publisher's connection."""

    def __init__(self, socket: trio.socket.SocketType, relay: Relay) -> None:
        super().__init__(socket, relay.reply, relay.waiting)
        self.relay = relay

    def cut(self) -> int:
        """Cut as the floor does, and wake the delivery."""
        batches = super().cut()
        if batches:
            self.relay.changed()
        return batches


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reply-bytes", type=int, default=72, help="of the answer to a batch")
    trio.run(listen, Relay(bytes(frame_of(parser.parse_args().reply_bytes))).talk)


if __name__ == "__main__":
    main()
