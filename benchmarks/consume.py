"""Consume lines: a reader of a stream that the broker pushes to, as shares of what the floor sends."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from benchmarks.line import Bound, Line, line_of_pairs
from benchmarks.load import Cargo, Stock, Target, cargo, consume, publish
from benchmarks.plan import Plan
from benchmarks.publish import pair_of
from benchmarks.servers import broker, floor, fresh_folder, target_of

TARGET = Bound(0.6)
DELIVERY_BYTES = 1 << 20
"""Batches of one delivery of linn's; the floor sends as many at once."""
ENGINES = {"dram": "memory", "segmented-log": "log"}


def consume_lines(plan: Plan) -> Iterator[Line]:
    """All of them, one by one."""
    for batch_kib in plan.batch_kib:
        yield from _engines(plan, batch_kib)


def _engines(plan: Plan, batch_kib: int) -> Iterator[Line]:
    with fresh_folder(plan.folder) as folder, floor("consume") as bare, broker(folder) as process:
        for engine, topic in ENGINES.items():
            stock = _fill(plan, target_of(process), cargo(topic, batch_kib))
            yield _line(plan, f"{engine}, {batch_kib} KiB", bare, target_of(process), stock)


def _fill(plan: Plan, linn: Target, goods: Cargo) -> Stock:
    run = trio.run(publish, linn, goods, plan.stock_bytes)
    return Stock(goods.topic, run.batches, goods.batch_bytes, max(1, DELIVERY_BYTES // goods.batch_bytes))


def _line(plan: Plan, name: str, bare: Target, linn: Target, stock: Stock) -> Line:
    """The first pass of each side is not counted: it makes the floor's frames, and fills linn's page cache."""
    for target in (bare, linn):
        trio.run(consume, target, stock, 1)
    pairs = [
        pair_of(*[trio.run(consume, target, stock, plan.passes) for target in (bare, linn)]) for _ in range(plan.rounds)
    ]
    return line_of_pairs("consume", name, TARGET, pairs, "GB/s")
