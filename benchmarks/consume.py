"""Consume lines: a reader of a stream that the broker pushes to, as shares of what the floor sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import trio

from benchmarks.floor import frame_of
from benchmarks.line import Bound, Line, line_of_pairs
from benchmarks.load import Cargo, Stock, Target, cargo, consume, publish
from benchmarks.plan import Plan
from benchmarks.publish import pair_of
from benchmarks.servers import broker, floor, fresh_folder, target_of
from linn.core.log.storage import READ_BATCHES_MAX

TARGET = Bound(0.6)
DELIVERY_BYTES = 1 << 20
"""Batches of one delivery of linn's; the floor sends as many at once."""


def consume_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    for batch_kib in plan.batch_kib:
        yield from _engines(plan, batch_kib)
    with fresh_folder(plan.folder) as folder, floor("consume") as bare, broker(folder) as process:
        linn = target_of(process)
        for engine, topic in (("dram", "memory"), ("segmented-log", "log")):
            goods = cargo(topic, 0)
            run = trio.run(publish, linn, goods, plan.stock_bytes // 16)
            stock = Stock(topic, run.batches, goods.batch_bytes, READ_BATCHES_MAX)
            yield _line(plan, f"{engine}, one record a batch", None, bare, linn, stock)


def _engines(plan: Plan, batch_kib: int) -> Iterator[Line]:
    """The log against a floor that reads a file, for information: the share of reading in the difference."""
    with fresh_folder(plan.folder) as folder, floor("consume") as bare, broker(folder) as process:
        linn = target_of(process)
        stock = _fill(plan, linn, cargo("memory", batch_kib))
        yield _line(plan, f"dram, {batch_kib} KiB", TARGET, bare, linn, stock)
        stock = _fill(plan, linn, cargo("log", batch_kib))
        yield _line(plan, f"segmented-log, {batch_kib} KiB", TARGET, bare, linn, stock)
        with floor("consume", file=_file_of(folder, stock)) as reading:
            yield _line(plan, f"segmented-log, {batch_kib} KiB, floor reads too", None, reading, linn, stock)


def _file_of(folder: Path, stock: Stock) -> Path:
    """Make a file with as many frames."""
    path = folder / "floor.log"
    with path.open("wb") as file:
        for _ in range(stock.batches):
            file.write(frame_of(stock.batch_bytes))
    return path


def _fill(plan: Plan, linn: Target, goods: Cargo) -> Stock:
    run = trio.run(publish, linn, goods, plan.stock_bytes)
    return Stock(goods.topic, run.batches, goods.batch_bytes, max(1, DELIVERY_BYTES // goods.batch_bytes))


def _line(plan: Plan, name: str, bound: Bound | None, bare: Target, linn: Target, stock: Stock) -> Line:
    """Make a line. The first pass of each side is not counted: it makes the floor's frames, and fills linn's page
    cache.
    """
    for target in (bare, linn):
        trio.run(consume, target, stock, 1)
    pairs = [
        pair_of(*[trio.run(consume, target, stock, plan.passes) for target in (bare, linn)]) for _ in range(plan.rounds)
    ]
    return line_of_pairs("consume", name, bound, pairs, "GB/s")
