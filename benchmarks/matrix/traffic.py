"""Publishing and consuming over many connections at once.

Laws: as in `load`; connections are made, greeted and subscribed before the clock starts.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from benchmarks.floor import ASK, send_all
from benchmarks.load import (
    DELIVER_BYTES,
    WINDOW_BYTES,
    Batches,
    LoadFailed,
    Run,
    Stock,
    Target,
    Window,
    ask,
    connected,
    count_replies,
    cpu_s,
)
from benchmarks.matrix.point import Point
from benchmarks.matrix.shipment import Shipment
from linn.wire import messages
from linn.wire.connection import frames_of

PUSHED_BYTES = 1 << 20
"""Bytes of one delivery of linn's; the floor sends as many at once."""
PUSHED_BATCHES_MAX = 1_000
"""Limit of the batches of a delivery: sendmsg takes at most 1,024 buffers."""
SUBSCRIPTION = 1
"""The number of a connection's first subscription."""


@asynccontextmanager
async def crowd(target: Target, count: int) -> AsyncIterator[list[trio.socket.SocketType]]:
    """Open `count` connections. Raises LoadFailed."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connected(target)) for _ in range(count)]


# --- publish ---------------------------------------------------------------------------------------------------------


async def publish(target: Target, point: Point, goods: Shipment, passes: int) -> Run:
    """Send everything `passes` times per connection; the clock stops at the last confirmation. Raises LoadFailed."""
    async with crowd(target, point.connections) as sockets:
        if point.connections > 1:
            await _publish_once(sockets, goods)
        cpu_before, started = cpu_s(target.pid), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for socket in sockets:
                work = _publish_answered if goods.is_answered else _publish_unanswered
                nursery.start_soon(work, target, socket, goods, passes)
        seconds = time.perf_counter() - started
        batches = passes * goods.batches * point.connections
        return Run(seconds, cpu_s(target.pid) - cpu_before, batches, batches * goods.batch_bytes)


async def _publish_once(sockets: list[trio.socket.SocketType], goods: Shipment) -> None:
    """Publish once on every connection: a server that has answered has accepted them all, and allocated
    their memory.
    """
    async with trio.open_nursery() as nursery:
        for socket in sockets:
            nursery.start_soon(_publish_last, socket, goods)


async def _publish_last(socket: trio.socket.SocketType, goods: Shipment) -> None:
    await send_all(socket, [goods.last])
    await count_replies(socket, Window(0), 1, 0)


async def _publish_answered(target: Target, socket: trio.socket.SocketType, goods: Shipment, passes: int) -> None:
    window = Window(max(goods.sends[0].batches, WINDOW_BYTES // goods.batch_bytes))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_replies, socket, window, passes * goods.batches, 0)
        for _ in range(passes):
            for send in goods.sends:
                await window.take(send.batches)
                await send_all(socket, send.buffers)


async def _publish_unanswered(target: Target, socket: trio.socket.SocketType, goods: Shipment, passes: int) -> None:
    """Publish until the server has read everything: linn answers one more publish, the floor closes after the end."""
    for _ in range(passes):
        for send in goods.sends:
            await send_all(socket, send.buffers)
    if target.is_linn:
        await _publish_last(socket, goods)
        return
    socket.shutdown(trio.socket.SHUT_WR)
    if await socket.recv(1):
        raise LoadFailed("the floor answered what it should not")


# --- consume ---------------------------------------------------------------------------------------------------------


async def consume(target: Target, point: Point, goods: Shipment, passes: int) -> Run:
    """Push to each connection what one connection has published in as many passes. Raises LoadFailed."""
    per_delivery = max(1, min(PUSHED_BATCHES_MAX, PUSHED_BYTES // goods.batch_bytes))
    stock = Stock("", passes * goods.batches, goods.batch_bytes, per_delivery)
    async with crowd(target, point.connections) as sockets:
        if target.is_linn:
            async with trio.open_nursery() as nursery:
                for socket in sockets:
                    nursery.start_soon(_subscribe, socket, point)
        elif point.connections > 1:
            first = dataclasses.replace(stock, batches=1)
            async with trio.open_nursery() as nursery:
                for socket in sockets:
                    nursery.start_soon(_consume, socket, _asked(first), first)
        begin = _credit(point, stock.batches * goods.records) if target.is_linn else _asked(stock)
        cpu_before, started = cpu_s(target.pid), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for socket in sockets:
                nursery.start_soon(_consume, socket, begin, stock)
        seconds = time.perf_counter() - started
        batches = stock.batches * point.connections
        return Run(seconds, cpu_s(target.pid) - cpu_before, batches, batches * goods.batch_bytes)


async def _subscribe(socket: trio.socket.SocketType, point: Point) -> None:
    """Subscribe to all topics, without credit: nothing is delivered before it is granted."""
    for topic in point.topics:
        await ask(socket, messages.Subscribe(topic), messages.Subscribed)


def _credit(point: Point, records: int) -> bytes:
    """Credit for exactly the records to read, evenly divided between the topics."""
    share = records // len(point.topics)
    credits = [messages.Credit(SUBSCRIPTION + number, share) for number in range(len(point.topics))]
    return b"".join(bytes(frame) for credit in credits for frame in frames_of(credit))


def _asked(stock: Stock) -> bytes:
    return ASK.pack(stock.batches, stock.batch_bytes, stock.per_delivery, DELIVER_BYTES)


async def _consume(socket: trio.socket.SocketType, begin: bytes, stock: Stock) -> None:
    await send_all(socket, [begin])
    await Batches().read(socket, stock)
