"""The load generator: bare trio and prebuilt frames, the same for the floor and for linn.

Laws: nothing is encoded, decoded or allocated per batch while the clock runs; a fixed number of bytes is in flight and
no more; every reply is looked at, so a server that refuses is detected and not taken for a fast one.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from benchmarks.floor import ASK
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.errors.tree import LinnError
from linn.wire import codec, messages
from linn.wire.connection import frames_of, hello

RECORD_BYTES = 128
RECORD_SPACE_BYTES = RECORD_BYTES + 4
"""Size of a record and of its offset in the column."""
BATCH_HEAD_BYTES = 256
"""An upper bound of a batch's size without its records, so that a batch does not exceed its nominal size."""
SEND_BYTES = 512 << 10
"""Bytes handed to the kernel at once: enough frames that the generator costs less than any server."""
WINDOW_BYTES = 2 << 20
RUN_S_MAX = 60.0
"""Time after which a server that does not answer is given up."""
CREDIT = 1 << 30
HEAD = struct.Struct("<II")


class LoadFailed(Exception):
    """Raised if the server did not do what was asked of it."""


@dataclass(frozen=True)
class Target:
    """The server under load; `is_linn`: it needs a handshake, and its answers are checked."""

    port: int
    pid: int
    is_linn: bool


@dataclass(frozen=True)
class Run:
    """The cost of one run."""

    seconds: float
    cpu_s: float
    """CPU time of the server's process."""
    batches: int
    bytes: int


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds, from Linux's CPU-time clock of that process."""
    # As clock_getcpuclockid(3) makes it. /proc/PID/stat counts in ticks of 10 ms, too coarse for a short run.
    return time.clock_gettime(~pid << 3 | 2)


@dataclass(frozen=True)
class Cargo:
    """Prebuilt publishes of one batch each, sent together; `count` batches of `records` records in `batch_bytes`."""

    topic: str
    data: bytes
    count: int
    records: int
    batch_bytes: int


def cargo(topic: str, batch_kib: int) -> Cargo:
    """Make confirmed publishes to `topic` in batches of about `batch_kib` KiB, or of one record each if that is 0."""
    records = max(1, (batch_kib * 1024 - BATCH_HEAD_BYTES) // RECORD_SPACE_BYTES)
    count = max(1, SEND_BYTES // max(BATCH_HEAD_BYTES, batch_kib * 1024))
    values = [os.urandom(RECORD_BYTES) for _ in range(records)]
    frames: list[bytes] = []
    batch_bytes = 0
    for index in range(count):
        batch = build_batch(BatchColumns(values, 1_700_000_000_000, index << 64))
        batch_bytes = batch.size
        frames += [bytes(frame) for frame in frames_of(messages.Publish(topic), index + 1, [batch])]
    return Cargo(topic, b"".join(frames), count, records, batch_bytes)


PUBLISHED_BYTES = len(codec.encode(messages.Published([messages.Placement(0, 0, 1)]), 1))
PUBLISHED_HEAD = HEAD.pack(0, PUBLISHED_BYTES // 8 - 1)


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[trio.socket.SocketType]:
    """Open a connection to the target, with a handshake if it is linn. Raises LoadFailed, also for errors
    in the block.
    """
    try:
        with trio.fail_after(RUN_S_MAX), trio.socket.socket() as socket:
            await socket.connect(("127.0.0.1", target.port))
            socket.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
            if target.is_linn:
                await ask(socket, hello("benchmarks"), messages.Welcome)
            yield socket
    except BaseExceptionGroup as group:
        failed = group.split((LoadFailed, LinnError, OSError, trio.TooSlowError))[0]
        if failed is None:
            raise
        raise LoadFailed(f"the load could not be carried out: {_first(failed)}") from None
    except (OSError, trio.TooSlowError) as error:
        raise LoadFailed(f"the server did not bear the load: {error!r}") from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


async def ask(socket: trio.socket.SocketType, request: messages.Message, answer: type[messages.Message]) -> bytes:
    """Send a request while no other is open; returns the bytes after its answer. Raises LoadFailed."""
    message, rest = await answer_to(socket, request)
    if not isinstance(message, answer):
        raise LoadFailed(f"{type(request).__name__} was answered with {message}")
    return rest


async def answer_to(socket: trio.socket.SocketType, request: messages.Message) -> tuple[messages.Message | None, bytes]:
    """Send a request while no other is open; returns its answer and the bytes after it. Raises LoadFailed."""
    await send_all(socket, b"".join(frames_of(request, 1)))
    data = b""
    while len(data) < 8 or len(data) < _frame_bytes(data, 0):
        data += await _received(socket)
    size = _frame_bytes(data, 0)
    return codec.decode(memoryview(data)[:size]).message, data[size:]


def _frame_bytes(data: bytes | memoryview, at: int) -> int:
    return 8 + 8 * int(HEAD.unpack_from(data, at)[1])


async def _received(socket: trio.socket.SocketType) -> bytes:
    data = await socket.recv(65536)
    if not data:
        raise LoadFailed("the server closed the connection")
    return data


async def send_all(socket: trio.socket.SocketType, data: bytes) -> None:
    """Send all of `data`."""
    sent = await socket.send(data)
    while sent < len(data):
        sent += await socket.send(memoryview(data)[sent:])


# --- publish ---------------------------------------------------------------------------------------------------------


class Window:
    """A window of batches in flight."""

    def __init__(self, free: int) -> None:
        self.free = free
        self._given = trio.Event()

    async def take(self, count: int) -> None:
        """Wait until so many may be sent."""
        while self.free < count:
            self._given = trio.Event()
            await self._given.wait()
        self.free -= count

    def give(self, count: int) -> None:
        """Add so many that were answered."""
        self.free += count
        self._given.set()


async def publish(target: Target, goods: Cargo, bytes_min: int) -> Run:
    """Publish at least so many bytes over one connection; the clock stops at the last confirmation.

    Raises LoadFailed.
    """
    sends = -(-bytes_min // (goods.count * goods.batch_bytes))
    batches = sends * goods.count
    async with connected(target) as socket:
        window = Window(max(goods.count, WINDOW_BYTES // goods.batch_bytes))
        cpu_before, started = cpu_s(target.pid), time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_replies, socket, window, batches, goods.records if target.is_linn else 0)
            for _ in range(sends):
                await window.take(goods.count)
                await send_all(socket, goods.data)
        seconds = time.perf_counter() - started
        return Run(seconds, cpu_s(target.pid) - cpu_before, batches, batches * goods.batch_bytes)


async def count_replies(socket: trio.socket.SocketType, window: Window, batches: int, records: int) -> None:
    """Read so many replies; unless `records` is 0, the last offset tells whether all batches of so many were stored."""
    data, left, first, last = b"", batches, b"", b""
    while left:
        data += await _received(socket)
        count = len(data) // PUBLISHED_BYTES
        if len(data) >= 8 and data[:8] != PUBLISHED_HEAD:
            raise LoadFailed(await _said(socket, data))
        if not count:
            continue
        whole = count * PUBLISHED_BYTES
        last = data[whole - PUBLISHED_BYTES : whole]
        first = first or data[:PUBLISHED_BYTES]
        data = data[whole:]
        left -= count
        window.give(count)
    if records and _offset_of(last) - _offset_of(first) != (batches - 1) * records:
        raise LoadFailed(f"the offsets {_offset_of(first)} to {_offset_of(last)} are not those of {batches} batches")


async def _said(socket: trio.socket.SocketType, data: bytes) -> str:
    """The server's answer to a publish that it did not confirm."""
    while len(data) < _frame_bytes(data, 0):
        data += await _received(socket)
    return f"a publish was answered with {codec.decode(memoryview(data)[: _frame_bytes(data, 0)]).message}"


def _offset_of(reply: bytes) -> int:
    message = codec.decode(memoryview(reply)).message
    if not isinstance(message, messages.Published):  # A refusal may be as long as a confirmation.
        raise LoadFailed(f"a publish was answered with {message}")
    return message.placements[0].base_offset


# --- consume ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stock:
    """The content of a stream: so many batches of so many bytes."""

    topic: str
    batches: int
    batch_bytes: int
    per_delivery: int
    """Batches that linn sends after one control frame."""


DELIVER_BYTES = len(codec.encode(messages.Deliver(1, 0, 0, 0), 0, 1))


async def consume(target: Target, stock: Stock, passes: int) -> Run:
    """Consume the whole stock so many times, each time over a connection of its own. Raises LoadFailed."""
    seconds = cpu = 0.0
    for _ in range(passes):
        async with connected(target) as socket:
            cpu_before, started = cpu_s(target.pid), time.perf_counter()
            begun = await _begin_consuming(target, socket, stock)
            await Batches(begun).read(socket, stock)
            seconds += time.perf_counter() - started
            cpu += cpu_s(target.pid) - cpu_before
    return Run(seconds, cpu, passes * stock.batches, passes * stock.batches * stock.batch_bytes)


async def _begin_consuming(target: Target, socket: trio.socket.SocketType, stock: Stock) -> bytes:
    if target.is_linn:
        return await ask(socket, messages.Subscribe(stock.topic, credit=CREDIT), messages.Subscribed)
    await socket.send(ASK.pack(stock.batches, stock.batch_bytes, stock.per_delivery, DELIVER_BYTES))
    return b""


class Batches:
    """A counter of received batches, by the heads of their frames."""

    def __init__(self, begun: bytes = b"", answer_bytes: int = 0) -> None:
        """`answer_bytes`: frames of this size may come between deliveries, and are counted too."""
        self.answers = 0
        self._answer_bytes = answer_bytes
        self._buffer = bytearray(1 << 20)
        self._view = memoryview(self._buffer)
        self._filled = len(begun)
        self._view[: self._filled] = begun
        self._skip = 0
        """Missing bytes of the incomplete frame."""
        self.batches = 0

    async def read(self, socket: trio.socket.SocketType, stock: Stock) -> None:
        """Receive until the whole stock has arrived. Raises LoadFailed if anything else does."""
        self._count(stock.batch_bytes)
        while self.batches < stock.batches or self._skip:
            await self.more(socket, stock.batch_bytes)

    async def more(self, socket: trio.socket.SocketType, batch_bytes: int) -> int:
        """Receive once; returns the number of batches. Raises LoadFailed if anything else arrives, or nothing."""
        before = self.batches
        count = await socket.recv_into(self._view[self._filled :])
        if not count:
            raise LoadFailed(f"the server closed the connection after {before} batches")
        self._filled += count
        self._count(batch_bytes)
        return self.batches - before

    def _count(self, batch_bytes: int) -> None:
        at, filled = self._skip, self._filled
        while filled - at >= 8:
            size = _frame_bytes(self._view, at)
            if size == batch_bytes:
                self.batches += 1
            elif size == self._answer_bytes:
                self.answers += 1
            elif size != DELIVER_BYTES:
                raise LoadFailed(f"a frame of {size} bytes is neither a delivery nor a batch")
            at += size
        rest = max(0, filled - at)
        self._view[:rest] = self._view[at:filled] if rest else b""
        self._skip = max(0, at - filled)
        self._filled = rest


# --- latency ---------------------------------------------------------------------------------------------------------


async def echo_seconds(target: Target, size: int, count: int) -> list[float]:
    """Time so many round trips of `size` bytes, one at a time. Raises LoadFailed."""
    data = bytes(size)
    taken: list[float] = []
    async with connected(target) as socket:
        for _ in range(count):
            started = time.perf_counter()
            await send_all(socket, data)
            missing = size
            while missing:
                missing -= len(await _received(socket))
            taken.append(time.perf_counter() - started)
    return taken
