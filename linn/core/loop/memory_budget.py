"""The memory budget: limits on data that waits in a broker's memory, over all its topics and connections.

It has three shares, each with its own backpressure:

- `stored`, a half: batches that engines keep in memory. When it is exceeded, batches go to the disk. A quarter of it at
  most is `indexed`: the indexes of queues with an order, for which batches make way. When that is exceeded, an index
  takes more records only while it has few.
- `unsent`, a quarter: output that clients have not taken. When it is exceeded, a client gets one small answer or
  delivery at a time.
- `received`, a quarter: incomplete requests, and publishes that wait for room. When it is exceeded, connections that
  hold more than `RESERVE_BYTES` of it are not read.

Laws: a holder of bytes adds them to `used_bytes` of their share, and subtracts them later. Work that could free a share
never waits for it: stored batches are freed by settling, which needs little of the other two shares; an index that may
not grow delivers its records; a connection with subscriptions is read regardless of `received`; unsent output is freed
when the client reads it; the longest waiting incomplete request always continues. Uncounted memory is bounded per
connection or per partition; docs/explanation/memory.md lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from linn.core.loop.waiting import ReadySignal

PART_OF_MACHINE = 2
"""Divisor of the process's memory limit for the default budget; the remainder is for the page cache."""
RESERVE_BYTES = 64 << 10
"""Bytes of `received` that each connection may always hold, and the largest answer while `unsent` is exceeded."""
UNLIMITED_BYTES = 1 << 62


class MemoryShare:
    """Memory for one purpose. Adding to `used_bytes` may exceed it; then backpressure applies."""

    __slots__ = ("bytes_max", "name", "used_bytes")

    def __init__(self, name: str, bytes_max: int = UNLIMITED_BYTES) -> None:
        self.name = name
        self.bytes_max = bytes_max
        self.used_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether more is in use than allowed."""
        return self.used_bytes >= self.bytes_max

    @property
    def room_bytes(self) -> int:
        """Bytes that may still be used; negative if the share is exceeded."""
        return self.bytes_max - self.used_bytes


class IndexedShare(MemoryShare):
    """The share `indexed`, which is a part of `stored`."""

    __slots__ = ("_stored",)

    def __init__(self, stored: MemoryShare) -> None:
        super().__init__("indexed", stored.bytes_max // 4)
        self._stored = stored

    def add(self, count: int) -> None:
        """Add bytes of an index, or subtract them."""
        self.used_bytes += count
        self._stored.used_bytes += count


class ReceivedShare(MemoryShare):
    """The share `received`. Incomplete requests wait here for their turn."""

    __slots__ = ("_arriving_bytes", "_first", "_held_up", "_room")

    def __init__(self, name: str, bytes_max: int = UNLIMITED_BYTES) -> None:
        super().__init__(name, bytes_max)
        self._arriving_bytes = 0
        self._first: ReceiveReservation | None = None
        """The reservation that may continue although the share is exceeded."""
        self._room = ReadySignal()
        self._held_up: dict[Callable[[], None], None] = {}

    def give_back(self, count: int) -> None:
        """Subtract bytes that are no longer in use."""
        was_over = self.is_over
        self.used_bytes -= count
        self._room.notify()
        if was_over and not self.is_over:
            for callback in list(self._held_up):
                callback()

    @contextmanager
    def telling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back whenever the share is no longer exceeded, for a task that also waits for other events."""
        self._held_up[callback] = None
        try:
            yield
        finally:
            del self._held_up[callback]

    def arrived(self, count: int) -> None:
        """Add bytes of incomplete requests."""
        self._arriving_bytes += count
        self.used_bytes += count

    def became_whole(self, count: int) -> None:
        """Subtract bytes of a request that is now complete."""
        self._arriving_bytes -= count
        self.give_back(count)

    async def wait_turn(self, reservation: ReceiveReservation) -> None:
        """Wait until there is room, or this is the first waiting reservation. Cancellation is safe."""
        while self.is_over and not self._is_first(reservation):
            await self._room.wait()
        self._room.notify()

    def _is_first(self, reservation: ReceiveReservation) -> bool:
        # Consumers free publishes that wait for room; an incomplete request is freed when it completes.
        if self._first is None and 2 * self._arriving_bytes >= self.bytes_max:
            self._first = reservation
        return self._first is reservation

    def pass_on(self, reservation: ReceiveReservation) -> None:
        """Let the next reservation continue."""
        if self._first is reservation:
            self._first = None
        self._room.notify()


class ReceiveReservation:
    """A connection's part of `received` in an incomplete request."""

    __slots__ = ("_share", "held_bytes", "waits")

    def __init__(self, share: ReceivedShare) -> None:
        self._share = share
        self.held_bytes = 0
        self.waits = False
        """Whether the connection is not read until its turn."""

    async def hold(self, count: int, *, patient: bool) -> None:
        """Set the bytes received so far; if `patient`, return when more may be read."""
        self._note(count)
        if patient and self.held_bytes and self._share.is_over:
            self.waits = True
            await self._share.wait_turn(self)
            self.waits = False

    def _note(self, count: int) -> None:
        if count < self.held_bytes:
            self.release()  # The request is complete; these bytes belong to the next one.
        if count > RESERVE_BYTES:
            self._share.arrived(count - self.held_bytes)
            self.held_bytes = count

    @contextmanager
    def set_aside(self, count: int, callback: Callable[[], None]) -> Iterator[None]:
        """Set the bytes received so far, while no more are read; other connections continue.

        `callback`: see `ReceivedShare.telling`.
        """
        self._note(count)
        self._share.pass_on(self)
        with self._share.telling(callback):
            yield

    def give_way(self) -> None:
        """Let other connections continue, because this one reads no more."""
        self._share.pass_on(self)

    def release(self) -> None:
        """Release the bytes: the request is complete, or the connection is gone."""
        if self.held_bytes:
            self._share.became_whole(self.held_bytes)
            self.held_bytes = 0
            self._share.pass_on(self)


class MemoryBudget:
    """The memory shares of one broker."""

    def __init__(self, bytes_max: int) -> None:
        self.stored: MemoryShare = MemoryShare("stored", bytes_max // 2)
        self.indexed: IndexedShare = IndexedShare(self.stored)
        self.unsent: MemoryShare = MemoryShare("unsent", bytes_max // 4)
        self.received: ReceivedShare = ReceivedShare("received", bytes_max // 4)

    @property
    def shares(self) -> tuple[MemoryShare, ...]:
        """All shares."""
        return (self.stored, self.indexed, self.unsent, self.received)
