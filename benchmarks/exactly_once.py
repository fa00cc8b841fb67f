"""Lines of exactly once: transactions, and two-phase deliveries into a database, in ranges and one by one.

Laws: the database is SQLite in WAL mode with `synchronous = NORMAL`, a new one for each run. In the same round as linn
does, the participant by itself makes the same inserts, marks and commits.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from uuid import UUID

import trio

import linn
from benchmarks.client import some_values
from benchmarks.latency import request_bytes
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import RECORD_BYTES, Target, echo_seconds
from benchmarks.plan import Plan
from benchmarks.servers import broker, floor, fresh_folder
from benchmarks.transactions import GROUP, transaction_lines
from linn.client.participants.participant import Floor, Mark, Place
from linn.client.participants.sqlite import SqliteParticipant

RANGE = 500
"""Records of one delivery, which is one transaction of the database: the prefetch, and the size of the batches."""
RATE = Bound(100_000)
DATABASE = "effects.db"
INSERT = "INSERT INTO payments VALUES (?)"
ROUND_TRIPS = 2
"""Round trips of one record: its publish, and the decision. The consumer does not wait for the answer to DONE."""
CONFIG = """
[storage.synced]
engine = "segmented-log"
fsync = "always"

[topics.payments]
kind = "queue"
delivery = "exactly-once"

[topics.synced]
kind = "queue"
delivery = "exactly-once"
storage = "synced"
"""


def exactly_once_lines(plan: Plan) -> Iterator[Line]:
    """All lines, one by one."""
    yield from transaction_lines(plan)
    with fresh_folder(plan.folder) as folder, broker(folder, CONFIG) as process:
        yield from _ranges(plan, process.url, folder)
        with floor("echo") as bare, floor("echo", file=folder / "floor.log") as syncing:
            yield _one_by_one("two-phase, one by one, p50", plan, process.url, "payments", bare, folder)
            yield _one_by_one("two-phase, one by one, p50, synced", plan, process.url, "synced", syncing, folder)


def _participant(folder: Path) -> SqliteParticipant:
    for old in folder.glob(f"{DATABASE}*"):
        old.unlink()
    return SqliteParticipant(folder / DATABASE, prepare_connection=_prepare)


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS payments (value BLOB)")


# --- ranges ----------------------------------------------------------------------------------------------------------


def _ranges(plan: Plan, url: str, folder: Path) -> Iterator[Line]:
    """Consume a queue whose batches have RANGE records each."""
    pairs = []
    for _ in range(plan.rounds):
        bare_s = _apply_bare(folder, plan.two_phase_records)
        linn_s = trio.run(apply, url, folder, plan.two_phase_records)
        thousands = plan.two_phase_records / 1e3
        pairs.append(Pair(thousands / bare_s, thousands / linn_s))
    name = f"two-phase into SQLite, {RANGE} each"
    yield Line(GROUP, name, "records/s", RATE, [1e3 * pair.linn for pair in pairs])
    yield line_of_pairs(GROUP, f"{name}, SQLite's share", None, pairs, "k/s")


def _apply_bare(folder: Path, count: int) -> float:
    """Have the participant store as many ranges without a broker; returns the seconds."""
    participant, place = _participant(folder), Place(UUID(int=1), 0, "")
    values = some_values(RANGE)
    participant.open()
    try:
        started = time.perf_counter()
        for first in range(0, count, RANGE):
            mark = Mark(1, first, first + RANGE)
            db = participant.begin(place)
            participant.applied(mark)
            for value in values:
                db.execute(INSERT, (value,))
            participant.prepare()
            participant.commit([mark], Floor(1, first))
        return time.perf_counter() - started
    finally:
        participant.close()


async def apply(url: str, folder: Path, count: int) -> float:
    """Store the effects of a queue that is full; returns the seconds from its first message to its last commit."""
    async with linn.connect(url) as client:
        async with client.producer("payments") as producer:
            values = some_values(RANGE)
            for _ in range(0, count, RANGE):
                await producer.publish_many(values)
        participant = _participant(folder)
        async with client.consumer("payments", name="bench", prefetch=RANGE, exactly_once=participant) as consumer:
            started, left = time.perf_counter(), count
            async for message, db in consumer:
                db.execute(INSERT, (message.value,))
                left -= 1
                if not left:
                    await consumer.commit()
                    break
            return time.perf_counter() - started


# --- one by one ------------------------------------------------------------------------------------------------------


def _one_by_one(name: str, plan: Plan, url: str, topic: str, bare: Target, folder: Path) -> Line:
    """Compare with as many round trips of a bare echo; one that syncs does so in each, as the broker must."""
    pairs = []
    for _ in range(plan.rounds):
        echoes = trio.run(echo_seconds, bare, request_bytes(topic), ROUND_TRIPS * plan.single_calls)
        calls = trio.run(_single_seconds, url, topic, folder, plan.single_calls)
        pairs.append(Pair(ROUND_TRIPS * median(echoes) * 1e6, median(calls) * 1e6))
    return line_of_pairs(GROUP, name, None, pairs, "us")


async def _single_seconds(url: str, topic: str, folder: Path, count: int) -> list[float]:
    """Time single records, from the call that publishes one until the commit of its effect, one after the other."""
    taken: list[float] = []
    value = bytes(RECORD_BYTES)
    participant = _participant(folder)
    async with linn.connect(url) as client, client.producer(topic) as producer:
        async with client.consumer(topic, name="bench", exactly_once=participant) as consumer:
            for _ in range(count):
                started = time.perf_counter()
                await producer.publish(value)
                message, db = await anext(consumer)
                db.execute(INSERT, (message.value,))
                await consumer.commit()
                taken.append(time.perf_counter() - started)
    return taken
