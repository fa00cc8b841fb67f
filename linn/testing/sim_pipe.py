"""One direction of a simulated connection, and the link between two nodes."""

from __future__ import annotations

import math
import random
from collections import deque

import trio

from linn.core.errors.tree import ConnectionLost

PIPE_BYTES_MAX = 64 * 1024
"""Bytes that one direction of a connection holds; small, so that every long test meets backpressure."""
_DELAY_S_MAX = 0.002


class Link:
    """The link between two nodes."""

    def __init__(self) -> None:
        self.cut_senders: dict[str, None] = {}
        """Nodes whose output does not arrive at the other one."""
        self.delay_s = (0.0, _DELAY_S_MAX)
        self.bytes_per_s = math.inf
        self.changed = trio.lowlevel.ParkingLot()
        self.pipes: dict[Pipe, None] = {}

    @property
    def is_cut(self) -> bool:
        """Whether at least one direction is cut: no round trip passes."""
        return bool(self.cut_senders)

    def wake(self) -> None:
        self.changed.unpark_all()
        for pipe in self.pipes:
            pipe.changed.unpark_all()


class Pipe:
    """One direction of a connection: bytes in flight, then bytes that wait for the reader."""

    def __init__(self, link: Link, rng: random.Random, sender: str, receiver: str) -> None:
        self._link = link
        self._sender = sender
        self._receiver = receiver
        self._rng = rng
        self._flying: deque[tuple[float, bytes]] = deque()
        self._flying_bytes = 0
        self._landed = bytearray()
        self._last_arrival = 0.0
        self._end_at = math.inf
        self._is_reset = self._is_severed = False
        self._reader_gone_at = math.inf
        self.changed = trio.lowlevel.ParkingLot()
        link.pipes[self] = None

    def _arrival(self, size: int) -> float:
        """Return the arrival time of bytes sent now: never before the arrival of earlier bytes."""
        earliest = trio.current_time() + self._rng.uniform(*self._link.delay_s)
        self._last_arrival = max(self._last_arrival, earliest) + size / self._link.bytes_per_s
        return self._last_arrival

    @property
    def _is_cut(self) -> bool:
        return self._sender in self._link.cut_senders and not self._is_severed

    @property
    def _is_deaf(self) -> bool:
        """Whether the writer hears nothing from the reader."""
        return self._receiver in self._link.cut_senders and not self._is_severed

    def room(self) -> int:
        """Return the number of bytes that may be sent now. A closed reader takes everything, and discards it."""
        if self._reader_gone_at < math.inf:
            return PIPE_BYTES_MAX
        return PIPE_BYTES_MAX - self._flying_bytes - len(self._landed)

    def flips_coin(self) -> bool:
        """A seeded random choice."""
        return self._rng.random() < 0.5

    def put(self, data: bytes) -> None:
        if self._reader_gone_at == math.inf:
            self._flying.append((self._arrival(len(data)), data))
            self._flying_bytes += len(data)
            self.changed.unpark_all()

    def writer_learned_of_loss(self) -> bool:
        return not self._is_deaf and trio.current_time() >= self._reader_gone_at

    def sever(self) -> None:
        """Reset at once, for both ends; some of the bytes in flight still arrive."""
        data = b"".join(chunk for _, chunk in self._flying)
        self._landed += data[: self._rng.randint(0, len(data))]
        self._flying.clear()
        self._flying_bytes = 0
        now = trio.current_time()
        self._is_severed = self._is_reset = True
        self._end_at, self._reader_gone_at = min(self._end_at, now), min(self._reader_gone_at, now)
        self.changed.unpark_all()

    def finish(self, *, is_reset: bool) -> None:
        """End the writer; the reader notices after all bytes (they are dropped when the connection is reset)."""
        if self._end_at < math.inf:
            return
        self._is_reset = is_reset
        self._end_at = self._arrival(0)
        self.changed.unpark_all()

    def abandon(self) -> bool:
        """End the reader; the writer notices later. Returns whether bytes were unread."""
        unread = bool(self._landed or self._flying)
        self._landed.clear()
        self._flying.clear()
        self._flying_bytes = 0
        if self._reader_gone_at == math.inf:
            self._reader_gone_at = trio.current_time() + self._rng.uniform(*self._link.delay_s)
        self.changed.unpark_all()
        self._link.pipes.pop(self, None)
        return unread

    def take(self, buffer: memoryview) -> int | None:
        """Take some available bytes; 0 at the end, None if there is nothing yet. Raises ConnectionLost if reset."""
        self._land()
        if self._landed:
            count = min(len(buffer), len(self._landed))
            if self._rng.random() < 0.5:
                count = self._rng.randint(1, count)
            buffer[:count] = self._landed[:count]
            del self._landed[:count]
            self.changed.unpark_all()
            return count
        if self._flying or self._is_cut or trio.current_time() < self._end_at:
            return None
        if self._is_reset:
            raise ConnectionLost("Connection reset by peer")
        return 0

    def is_readable(self) -> bool:
        """Whether `take` would return something other than None."""
        self._land()
        return bool(self._landed) or not (self._flying or self._is_cut or trio.current_time() < self._end_at)

    def _land(self) -> None:
        if not self._flying or self._is_cut:
            return
        now = trio.current_time()
        while self._flying and self._flying[0][0] <= now:
            data = self._flying.popleft()[1]
            self._flying_bytes -= len(data)
            self._landed += data

    async def wait_readable(self) -> None:
        """Wait until `take` may return more, or something changed."""
        until = self._flying[0][0] if self._flying else self._end_at
        await self._wait_until(math.inf if self._is_cut else until)

    async def wait_writable(self) -> None:
        await self._wait_until(math.inf if self._is_deaf else self._reader_gone_at)

    async def _wait_until(self, until: float) -> None:
        if until == math.inf:  # Most waits have no deadline, and a scope would only cost time.
            await self.changed.park()
            return
        with trio.move_on_at(until):
            await self.changed.park()
