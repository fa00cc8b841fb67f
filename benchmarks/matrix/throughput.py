"""Throughput lines: publishing and consuming at every point of every axis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.line import Line, Mark, Pair, line_of_pairs
from benchmarks.load import Run, Target
from benchmarks.matrix.axis import AXES, Axis
from benchmarks.matrix.point import Point, delete_topics, make_topics
from benchmarks.matrix.shipment import Shipment, shipment
from benchmarks.matrix.traffic import consume, publish
from benchmarks.plan import RING_BYTES, Plan
from benchmarks.servers import broker, check_room, floor, fresh_folder, target_of

Work = Callable[[Target, Point, Shipment, int], Awaitable[Run]]
Runs = list[Run]
"""The floor's and linn's runs of one round."""
BUFFER_BYTES = 4 << 20
"""Size of the floor's buffer if a batch exceeds its default."""
LARGE_BYTES = 512 << 10
FILL_BATCHES_MAX = 10_000
ROUNDS_BYTES_MAX = 2 << 30
"""Limit of all rounds at one point: with more, the kernel would throttle writers to write back its page cache."""


def throughput_lines(plan: Plan) -> Iterator[Line]:
    """All axes, one by one."""
    for axis in AXES:
        for value in axis.values_of(plan.matrix):
            yield from place_lines(plan, axis, value)


def place_lines(plan: Plan, axis: Axis, value: Any) -> Iterator[Line]:
    """Measure one broker at one point, against floors in the same layout."""
    point = axis.point(value)
    goods = shipment(point)
    passes = goods.passes(plan.matrix.run_bytes, plan.matrix.run_batches, point.connections)
    at = float(value) if isinstance(value, int) else value
    with _servers(plan, point, goods) as (taking, sending, linn):
        _fill(point, goods, linn)
        published = _rounds(plan, publish, (taking, linn), point, goods, passes)
        if axis.consumes and point.is_ring:
            _start_over(point, goods, linn, passes)
        consumed = _rounds(plan, consume, (sending, linn), point, goods, passes) if axis.consumes else []
    for series, rounds in (("publish", published), ("consume", consumed)):
        if rounds:
            pairs = [_pair(axis, point, goods, *runs) for runs in rounds]
            line = line_of_pairs("matrix", f"{axis.title} {axis.label(value)}, {series}", None, pairs, axis.unit)
            line.mark = Mark(axis.name, series, at)
            yield line


def _rounds(plan: Plan, work: Work, sides: Sequence[Target], point: Point, goods: Shipment, passes: int) -> list[Runs]:
    """Run the sides in turns. The first round is not counted: it makes the floor's frames, and fills caches."""
    run_bytes = passes * goods.batches * goods.batch_bytes * point.connections
    runs = []
    for _ in range(1 + min(plan.matrix.rounds, max(1, ROUNDS_BYTES_MAX // run_bytes))):
        check_room(plan.folder)
        runs.append([trio.run(work, target, point, goods, passes) for target in sides])
    return runs[1:]


@contextmanager
def _servers(plan: Plan, point: Point, goods: Shipment) -> Iterator[tuple[Target, Target, Target]]:
    """A floor that takes, one that sends, and linn with the point's topics."""
    with ExitStack() as stack:
        folder = stack.enter_context(fresh_folder(plan.folder))
        taking = stack.enter_context(taking_floor(point, goods.batch_bytes, folder))
        sending = stack.enter_context(floor("consume"))
        linn = target_of(stack.enter_context(broker(folder, point.config)))
        trio.run(make_topics, linn, point, point.is_ring)
        yield taking, sending, linn


def taking_floor(point: Point, batch_bytes: int, folder: Path) -> AbstractContextManager[Target]:
    """Start a floor that does the same with batches as the point asks of linn: write, sync, answer, or not."""
    options = []
    if point.acks == "none":
        options += ["--reply-bytes", "0"]
    if point.fsync == "always":
        options += ["--sync"]
    if batch_bytes > LARGE_BYTES:
        options += ["--buffer-bytes", str(BUFFER_BYTES)]
    file = None if point.is_ring else folder / "floor.log"
    return floor("publish", file=file, options=options)


def _fill(point: Point, goods: Shipment, linn: Target) -> None:
    """Fill a topic in memory before anything is measured."""
    if point.is_ring:
        for _ in range(2):
            trio.run(publish, linn, point, goods, goods.passes(RING_BYTES * 7 // 8, FILL_BATCHES_MAX, 1))


def _start_over(point: Point, goods: Shipment, linn: Target, passes: int) -> None:
    """Fill topics that drop nothing with the batches to consume."""
    trio.run(delete_topics, linn, point)
    trio.run(make_topics, linn, point, False)
    trio.run(publish, linn, point, goods, passes)


def _pair(axis: Axis, point: Point, goods: Shipment, bare: Run, linn: Run) -> Pair:
    """The two runs in the axis's unit."""
    record = point.record_bytes / 1e6 if axis.unit == "MB/s" else 1e-3
    rates = [run.batches * goods.records * record / run.seconds for run in (bare, linn)]
    return Pair(rates[0], rates[1], bare.cpu_s / bare.batches * 1e6, linn.cpu_s / linn.batches * 1e6)
