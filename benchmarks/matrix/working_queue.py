"""Queue lines: records through publish, deliver and ack, with an ack per batch and with an ack per record.

linn is driven by its own client, in one process that publishes, consumes and acks; the relay, which is the floor here,
by prebuilt frames, with as many acks. So the difference includes the client as well as the broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import trio

import linn
from benchmarks.client import Work as ClientWork
from benchmarks.client import publish_many, through_queue
from benchmarks.floor import send_all
from benchmarks.line import Bound, Line, Mark
from benchmarks.load import (
    DELIVER_BYTES,
    RECORD_SPACE_BYTES,
    Batches,
    Target,
    Window,
    connected,
    count_replies,
)
from benchmarks.matrix.point import BATCH_HEAD_BYTES, Point
from benchmarks.matrix.shipment import Shipment, shipment
from benchmarks.plan import Plan
from benchmarks.relay import JOIN, JOINING
from benchmarks.servers import broker, fresh_folder, relay
from linn.client.client import Client
from linn.wire import codec, messages

BATCH_BYTES = 128 << 10
"""Size of batches that the client sends and receives when it is given many records at once."""
PREFETCH = 100
BATCH_TARGET, SINGLE_TARGET = Bound(1_000_000), Bound(40_000)
"""Records a second."""
WINDOW = 32
"""Unanswered batches of the relay's load."""
SINGLE_ACK = bytes(codec.encode(messages.Settle(1, [messages.Settlement(0, 1, 0, 1)]), 1))
ANSWER_BYTES = len(codec.encode(messages.Settled([]), 1))


@dataclass(frozen=True)
class Work:
    """The load on the relay, and its acks."""

    goods: Shipment
    batches: int
    open_batches_max: int
    acks: int
    """Acks of one batch."""


def queue_lines(plan: Plan) -> Iterator[Line]:
    """The lines for batch acks and single acks."""
    with fresh_folder(plan.folder) as folder, broker(folder) as process, relay() as bare:
        many, few = plan.matrix.queue_records, plan.matrix.single_records
        pairs = []
        for _ in range(plan.matrix.rounds):
            pairs.append((_relayed(bare, many, BATCH_BYTES, 0, 1), _worked(process.url, many, through_queue)))
        yield _line("batch acks", BATCH_TARGET, pairs)
        pairs = []
        # Two batches on their way, of half the prefetch each, and an ack for each record.
        half = PREFETCH // 2
        for _ in range(plan.matrix.rounds):
            floor = _relayed(bare, few, half * RECORD_SPACE_BYTES + BATCH_HEAD_BYTES, 2, half)
            pairs.append((floor, _worked(process.url, few, one_by_one)))
        yield _line(f"single acks, prefetch {PREFETCH}", SINGLE_TARGET, pairs)


def _line(name: str, bound: Bound, pairs: list[tuple[float, float]]) -> Line:
    """Make a line. The target is for linn's rate; the floor's is shown beside it."""
    line = Line("matrix", f"Queue, {name}", "records/s", bound, [rate for _, rate in pairs])
    line.floor, line.linn = median(rate for rate, _ in pairs) / 1e3, line.value / 1e3
    line.detail_unit, line.mark = "krecords/s", Mark("queue", "publish, deliver, ack", name)
    return line


def _worked(url: str, count: int, work: ClientWork) -> float:
    return count / trio.run(_client_seconds, url, count, work)


async def _client_seconds(url: str, count: int, work: ClientWork) -> float:
    async with linn.connect(url) as client:
        return await work(client, count)


async def one_by_one(client: Client, count: int) -> float:
    """Do the same as `through_queue`, message by message, each acked on its own; acks are awaited only at the end."""
    left = count
    started = time.perf_counter()
    async with client.consumer("queue", prefetch=PREFETCH) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(publish_many, client, count, "queue")
        async for message in consumer:
            settled = message.ack()
            left -= 1
            if not left:
                await settled
                break
    return time.perf_counter() - started


# --- the relay's load ------------------------------------------------------------------------------------------------


def _relayed(bare: Target, records: int, batch_bytes: int, open_batches_max: int, acks: int) -> float:
    """Records per second through the relay."""
    goods = shipment(Point(batch_bytes=batch_bytes))
    work = Work(goods, -(-records // (goods.batches * goods.records)) * goods.batches, open_batches_max, acks)
    return work.batches * goods.records / trio.run(through_relay, bare, work)


async def through_relay(bare: Target, work: Work) -> float:
    """Publish on one connection, consume and ack on another; returns the seconds until the last ack is answered."""
    async with connected(bare) as publishing, connected(bare) as consuming:
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_consume, consuming, work)
            nursery.start_soon(_publish, publishing, work)
        return time.perf_counter() - started


async def _publish(socket: trio.socket.SocketType, work: Work) -> None:
    (send,) = work.goods.sends
    window = Window(max(WINDOW, send.batches))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_replies, socket, window, work.batches, 0)
        for _ in range(work.batches // send.batches):
            await window.take(send.batches)
            await send_all(socket, send.buffers)


async def _consume(socket: trio.socket.SocketType, work: Work) -> None:
    """Ack every batch, until the last answer."""
    join = JOIN.pack(JOINING, work.open_batches_max, work.acks, len(SINGLE_ACK), ANSWER_BYTES, DELIVER_BYTES)
    await send_all(socket, [join])
    acks, received = SINGLE_ACK * work.acks, Batches(answer_bytes=ANSWER_BYTES)
    while received.batches < work.batches or received.answers < work.batches * work.acks:
        count = await received.more(socket, work.goods.batch_bytes)
        if count:
            await send_all(socket, [acks * count])
