"""Publish lines: confirmed batches into `dram` and into `segmented-log`, as shares of what the floor takes."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import Cargo, Run, Target, ask, cargo, connected, publish
from benchmarks.plan import RING_BYTES, Plan
from benchmarks.servers import broker, check_room, floor, fresh_folder, target_of
from linn.wire import messages

TARGET = Bound(0.6)


def publish_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    for batch_kib in plan.batch_kib:
        yield from _dram(plan, batch_kib)
    for batch_kib in plan.batch_kib:
        yield _segmented_log(plan, batch_kib)


def _dram(plan: Plan, batch_kib: int) -> Iterator[Line]:
    """Publish into a full topic, so that each batch reuses the memory of a dropped one.

    For information: the share of memory itself in the difference, against a floor that keeps as many batches; and the
    figure for fresh memory, where a page fault per 4 KiB says more about the machine than about linn.
    """
    goods = cargo("ring", batch_kib)
    keep = RING_BYTES // goods.batch_bytes
    with (
        fresh_folder(plan.folder) as folder,
        floor("publish") as bare,
        floor("publish", keep=keep) as keeping,
        broker(folder) as process,
    ):
        linn = target_of(process)
        fresh = pair_of(_publish(bare, goods, plan.turn_bytes), _publish(linn, goods, plan.turn_bytes))
        for target in (keeping, keeping, linn):
            _publish(target, goods, plan.turn_bytes)
        rounds = [
            [_publish(target, goods, plan.publish_bytes) for target in (bare, linn, keeping)]
            for _ in range(plan.rounds)
        ]
    name = f"dram, {batch_kib} KiB"
    yield line_of_pairs("publish", name, TARGET, [pair_of(floor_run, run) for floor_run, run, _ in rounds], "GB/s")
    pairs = [pair_of(floor_run, run) for _, run, floor_run in rounds]
    yield line_of_pairs("publish", f"{name}, floor keeps too", None, pairs, "GB/s")
    yield line_of_pairs("publish", f"{name}, fresh memory", None, [fresh], "GB/s")


def _segmented_log(plan: Plan, batch_kib: int) -> Line:
    """Publish on both sides into the same folder; each round begins with empty files."""
    goods = cargo("log", batch_kib)
    with (
        fresh_folder(plan.folder) as folder,
        floor("publish", file=folder / "floor.log") as bare,
        broker(folder) as process,
    ):
        linn = target_of(process)

        def run_linn() -> Run:
            check_room(folder)
            run = _publish(linn, goods, plan.publish_bytes)
            trio.run(_empty_log, linn)
            return run

        _publish(bare, goods, plan.turn_bytes)
        run_linn()
        pairs = [pair_of(_publish(bare, goods, plan.publish_bytes), run_linn()) for _ in range(plan.rounds)]
    return line_of_pairs("publish", f"segmented-log, {batch_kib} KiB", TARGET, pairs, "GB/s")


def _publish(target: Target, goods: Cargo, bytes_min: int) -> Run:
    return trio.run(publish, target, goods, bytes_min)


async def _empty_log(target: Target) -> None:
    """Delete the topic `log` with its files, and make it again."""
    async with connected(target) as socket:
        await ask(socket, messages.Administer("topic.delete", '{"name": "log"}'), messages.Administered)
        settings = '{"name": "log", "settings": {"kind": "stream"}}'
        await ask(socket, messages.Administer("topic.create", settings), messages.Administered)


def pair_of(bare: Run, linn: Run) -> Pair:
    """Rates and CPU times of two runs."""
    return Pair(rate(bare), rate(linn), cpu_us(bare), cpu_us(linn))


def rate(run: Run) -> float:
    """GB/s of batches."""
    return run.bytes / run.seconds / 1e9


def cpu_us(run: Run) -> float:
    """The server's CPU time per batch."""
    return run.cpu_s / run.batches * 1e6
