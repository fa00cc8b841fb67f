"""The memory budget: what may wait in a broker's memory, over all its topics and connections.

It has three shares, each with a backpressure of its own:

- `stored`, a half: batches that engines keep in memory. Over it they go to the disk.
- `unsent`, a quarter: output that clients have not taken. Over it a connection that has taken all it had gets one small
  answer or delivery, and then the next.
- `received`, a quarter: requests that have not come whole, and publishes that wait for room. Over it connections that
  hold more than `RESERVE_BYTES` of it are not read.

Laws: whoever holds bytes adds them to `used_bytes` of their share, and takes them away again. Nobody waits for a share
who could free it: what is stored is freed by settling, which needs little of the other two, and a connection with
subscriptions is read whatever `received` says; unsent output is freed by the client that takes it; of requests that
have not come whole the one that waits longest always goes on. What is not counted is bounded per connection or per
partition; docs/explanation/memory.md lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from linn.core.log.delivery import ReadySignal
from linn.core.log.storage import StorageEngine

PART_OF_MACHINE = 2
"""Without a setting the budget is this part of the memory that the process may use; the rest is for the page cache."""
RESERVE_BYTES = 64 << 10
"""What each connection may hold of `received`, whatever others do, and the largest answer where `unsent` is over it."""
UNLIMITED_BYTES = 1 << 62


class MemoryShare:
    """Memory for one purpose. Who adds to `used_bytes` may go over it; who is asked to hold back looks at it first."""

    __slots__ = ("bytes_max", "name", "used_bytes")

    def __init__(self, name: str, bytes_max: int = UNLIMITED_BYTES) -> None:
        self.name = name
        self.bytes_max = bytes_max
        self.used_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether more is in use than there should be."""
        return self.used_bytes >= self.bytes_max

    @property
    def room_bytes(self) -> int:
        """What may still be used; negative where it is over."""
        return self.bytes_max - self.used_bytes


class ReceivedShare(MemoryShare):
    """The share `received`. Requests that have not come whole wait here for their turn to be read on."""

    __slots__ = ("_arriving_bytes", "_first", "_held_up", "_room")

    def __init__(self, name: str, bytes_max: int = UNLIMITED_BYTES) -> None:
        super().__init__(name, bytes_max)
        self._arriving_bytes = 0
        self._first: Intake | None = None
        """Who goes on although the share is over."""
        self._room = ReadySignal()
        self._held_up: dict[Callable[[], None], None] = {}

    def give_back(self, count: int) -> None:
        """Some bytes are not in use any more."""
        was_over = self.is_over
        self.used_bytes -= count
        self._room.notify()
        if was_over and not self.is_over:
            for callback in list(self._held_up):
                callback()

    @contextmanager
    def telling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back whenever the share is over no longer, for one who waits for other things as well."""
        self._held_up[callback] = None
        try:
            yield
        finally:
            del self._held_up[callback]

    def arrived(self, count: int) -> None:
        """Bytes more of requests that have not come whole."""
        self._arriving_bytes += count
        self.used_bytes += count

    def became_whole(self, count: int) -> None:
        """So many bytes are of such a request no longer."""
        self._arriving_bytes -= count
        self.give_back(count)

    async def wait_turn(self, intake: Intake) -> None:
        """Wait until there is room, or until this one is the first of those that fill it. Cancellation is safe."""
        while self.is_over and not self._is_first(intake):
            await self._room.wait()
        self._room.notify()

    def _is_first(self, intake: Intake) -> bool:
        # Publishes that wait for room are freed by consumers. What has not come whole frees itself, by coming whole.
        if self._first is None and 2 * self._arriving_bytes >= self.bytes_max:
            self._first = intake
        return self._first is intake

    def pass_on(self, intake: Intake) -> None:
        """Let the next one be first."""
        if self._first is intake:
            self._first = None
        self._room.notify()


class Intake:
    """What one connection holds of `received` in a request that has not come whole."""

    __slots__ = ("_share", "held_bytes", "waits")

    def __init__(self, share: ReceivedShare) -> None:
        self._share = share
        self.held_bytes = 0
        self.waits = False
        """Whether the connection is not read until it is its turn."""

    async def hold(self, count: int, *, patient: bool) -> None:
        """So many bytes have come by now; if it is `patient`, return when more may come."""
        self._note(count)
        if patient and self.held_bytes and self._share.is_over:
            self.waits = True
            await self._share.wait_turn(self)
            self.waits = False

    def _note(self, count: int) -> None:
        if count < self.held_bytes:
            self.release()  # That request is whole; these bytes are of the next one.
        if count > RESERVE_BYTES:
            self._share.arrived(count - self.held_bytes)
            self.held_bytes = count

    @contextmanager
    def set_aside(self, count: int, callback: Callable[[], None]) -> Iterator[None]:
        """So many bytes have come by now, and no more are read for a while: others go on meanwhile.

        `callback`: see `ReceivedShare.telling`.
        """
        self._note(count)
        self._share.pass_on(self)
        with self._share.telling(callback):
            yield

    def give_way(self) -> None:
        """Nothing more is read: others go on."""
        self._share.pass_on(self)

    def release(self) -> None:
        """The request is whole, or the connection is gone."""
        if self.held_bytes:
            self._share.became_whole(self.held_bytes)
            self.held_bytes = 0
            self._share.pass_on(self)


class MemoryEngine(StorageEngine, Protocol):
    """A storage engine that keeps batches in memory, and counts them."""

    def count_in(self, share: MemoryShare) -> None:
        """Count in `share` what its logs keep, and keep nothing more while it is over. Called before the first log."""


class MemoryBudget:
    """The shares of one broker."""

    def __init__(self, bytes_max: int) -> None:
        self.stored: MemoryShare = MemoryShare("stored", bytes_max // 2)
        self.unsent: MemoryShare = MemoryShare("unsent", bytes_max // 4)
        self.received: ReceivedShare = ReceivedShare("received", bytes_max // 4)

    @property
    def shares(self) -> tuple[MemoryShare, ...]:
        """All of them."""
        return (self.stored, self.unsent, self.received)

    def lend(self, engine: StorageEngine) -> None:
        """Have an engine that keeps batches in memory count them."""
        if engine.capabilities.keeps_in_memory:
            cast(MemoryEngine, engine).count_in(self.stored)
