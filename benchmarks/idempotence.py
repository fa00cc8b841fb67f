"""Idempotence lines: the rate of producers whose batches are numbered, as a share of that without, and the memory that
the broker takes to recognise what they send again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]
import trio

import linn
from benchmarks.client import publish_many, publish_nowait
from benchmarks.latency import publish_seconds
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import LoadFailed, Target, Window, answer_to, connected, count_replies, cpu_s, send_all
from benchmarks.plan import Plan
from benchmarks.servers import broker, fresh_folder, target_of
from linn.client.client import Client
from linn.core.batch.builder import BatchColumns, build_batch
from linn.core.log.producers import WINDOW
from linn.core.publish.producer_ids import PER_CONNECTION
from linn.wire import messages
from linn.wire.connection import frames_of, hello

RATE = Bound(0.97)
"""Numbering costs less than 3 % of the rate."""
MEMORY_MB = Bound(10, at_most=True)
TOPIC = "many"
IN_FLIGHT = 200
"""Publishes that are sent together, and twice as many are on their way."""


def idempotence_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    with fresh_folder(plan.folder) as folder, broker(folder) as process:
        target = target_of(process)

        def through_client(work: Callable[[Client, int, bool], Awaitable[float]], idempotent: bool) -> Turn:
            async def run() -> float:
                async with linn.connect(process.url) as client:
                    return await work(client, plan.records, idempotent)

            return turn(target, plan.records, lambda: plan.records / trio.run(run))

        def one_at_a_time(idempotent: bool) -> Turn:
            arguments = process.url, "ring", plan.single_calls, idempotent
            return turn(target, plan.single_calls, lambda: 1 / median(trio.run(publish_seconds, *arguments)))

        def many(client: Client, count: int, idempotent: bool) -> Awaitable[float]:
            return publish_many(client, count, "ring", idempotent)

        through_client(many, True)
        yield _cost("publish_many", plan, lambda idempotent: through_client(many, idempotent))
        yield _cost("publish_nowait", plan, lambda idempotent: through_client(publish_nowait, idempotent))
        yield _cost("one at a time, p50", plan, one_at_a_time)
    yield from _memory(plan)


# --- cost ------------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """The result of one run: messages per second, and the CPU time of broker and client for each."""

    rate: float
    cpu_us: float


def turn(target: Target, count: int, rate_of: Callable[[], float]) -> Turn:
    """Run once, and take the CPU time."""
    before = cpu_s(target.pid) + time.process_time()
    rate = rate_of()
    return Turn(rate, (cpu_s(target.pid) + time.process_time() - before) / count * 1e6)


def _cost(name: str, plan: Plan, run: Callable[[bool], Turn]) -> Line:
    """Compare runs with numbers and without, which begin by turns, so that neither is always the second."""
    pairs = []
    for number in range(plan.idempotence_rounds):
        numbered_first = number % 2 == 1
        first, second = run(numbered_first), run(not numbered_first)
        plain, numbered = (second, first) if numbered_first else (first, second)
        pairs.append(Pair(plain.rate, numbered.rate, plain.cpu_us, numbered.cpu_us))
    return line_of_pairs("idempotence", f"{name}, idempotent", RATE, pairs, "1/s")


# --- memory ----------------------------------------------------------------------------------------------------------


def _memory(plan: Plan) -> Iterator[Line]:
    """Measure what the broker takes more of memory where the same batches have numbers.

    First each producer publishes to one partition as many batches as are remembered, then one batch to each of so many
    partitions that together there are as many producers as a storage remembers.
    """
    producers, partitions = plan.producers, plan.producer_partitions
    name = f"{producers:,} producers on {partitions:,} partitions"
    grown_mb = _grown_mb(plan, each=1, batches=WINDOW)
    yield Line("idempotence", name, "MB", MEMORY_MB, [grown_mb])
    each = plan.partitions_of_producer
    grown_mb = _grown_mb(plan, each=each, batches=1)
    yield Line("idempotence", f"{name}, {each} each", "MB", None, [grown_mb])


def _grown_mb(plan: Plan, *, each: int, batches: int) -> float:
    plain, numbered = (_resident_mb(plan, each, batches, idempotent) for idempotent in (False, True))
    return numbered - plain


def _resident_mb(plan: Plan, each: int, batches: int, idempotent: bool) -> float:
    """Publish so many batches of each producer to `each` partitions; returns the broker's resident memory."""
    config = f'[topics.{TOPIC}]\nkind = "stream"\npartitions = {plan.producer_partitions}\n'
    with fresh_folder(plan.folder) as folder, broker(folder, config) as process:
        bare = replace(target_of(process), is_linn=False)  # The welcome has the ids.
        trio.run(_publish_as_many, bare, plan, each, batches, idempotent)
        return float(psutil.Process(process.pid).memory_info().rss) / 1e6


async def _publish_as_many(target: Target, plan: Plan, each: int, batches: int, idempotent: bool) -> None:
    """Publish as so many producers, each connection as those whose ids it was given."""
    for first in range(0, plan.producers, PER_CONNECTION):
        producers = range(first, min(first + PER_CONNECTION, plan.producers))
        await _publish_on_one_connection(target, plan, producers, each, batches, idempotent)


async def _publish_on_one_connection(
    target: Target, plan: Plan, producers: range, each: int, batches: int, idempotent: bool
) -> None:
    async with connected(target) as socket, trio.open_nursery() as nursery:
        welcome, _ = await answer_to(socket, hello("benchmarks"))
        if not isinstance(welcome, messages.Welcome):
            raise LoadFailed(f"the hello was answered with {welcome}")
        window = Window(2 * IN_FLIGHT)
        count = len(producers) * each * batches
        nursery.start_soon(count_replies, socket, window, count, 0)
        frames: list[bytes] = []
        for number in range(count):
            sequence, lane = divmod(number, len(producers) * each)
            producer, place = divmod(lane, each)
            partition = (producers[producer] + place * (plan.producer_partitions // each)) % plan.producer_partitions
            batch = build_batch(BatchColumns([b"%d" % number], 1_700_000_000_000, number))
            if idempotent:
                batch.number(welcome.producer_id + producer, 0, sequence, 0)
            publish = messages.Publish(TOPIC, partition=partition)
            frames += [bytes(frame) for frame in frames_of(publish, number + 1, [batch])]
            if len(frames) == 2 * IN_FLIGHT or number == count - 1:
                await window.take(len(frames) // 2)
                await send_all(socket, b"".join(frames))
                frames.clear()
