"""Story of the demo.

1. `linn serve` starts as a process, with a folder of its own.
2. Three workers, processes too, compete for the queue `delays`. The first one will be killed.
3. All flights are published through the exchange. Midway the first worker is killed while it holds deliveries.
4. When every late departure is acked, the stream `departures` is read.
5. The broker is killed with SIGKILL and started again on the same folder; the stream is read once more.
6. Spark pipelines, which the broker has started with itself, write departures to Parquet and count late ones, while
   their driver is killed: see `sparking`. Without PySpark or Java this act is left out.
7. Payments are booked exactly once, while clerks and broker are killed: see `banking`.
8. Three brokers hold flights, and each of them is killed under load: see `replicating`.
9. Everything is counted against the file.

Law: no process and no folder is left behind, even after a failure.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

import linn
from linn.cli.demo.bank import PAYMENTS_MAX, Books, balances
from linn.cli.demo.banking import Banking, counts_of_books, wrong_accounts
from linn.cli.demo.broker_config import TOML, toml_with_spark
from linn.cli.demo.child_processes import descendants, kill
from linn.cli.demo.flights import CANCELLED, FLIGHTS, archive_path
from linn.cli.demo.progress import Progress, Stretch
from linn.cli.demo.publishing import publish_flights
from linn.cli.demo.replicating import Replicating
from linn.cli.demo.spark_counts import SparkOutcome, counts_of_spark, expected_of_file
from linn.cli.demo.sparking import Sparking, missing_for_spark
from linn.cli.demo.stream_reading import Reading, read_stream
from linn.cli.demo.tally import Count, Tally, compare
from linn.cli.demo.view import View
from linn.cli.demo.worker_process import WorkerProcess
from linn.client.client import Client
from linn.testing.process import BrokerProcess

WORKERS = 3
LAKE = "lake"
"""Folder of the Parquet files, in that of the demo."""
TICK_S = 0.1
PATH_MAX = 50
"""Longest path of the demo's folder in which the sockets of three brokers fit."""
QUEUE_SILENCE_S = 20.0
"""Time without an ack after which the rest counts as missing."""
_HOLD_SHARE = 40
"""Divisor of the number of flights that the first worker acks before it is killed."""


@dataclass
class Outcome:
    """Data that is compared at the end."""

    file: Tally = field(default_factory=Tally)
    first: Reading = field(default_factory=Reading)
    second: Reading = field(default_factory=Reading)
    cancellations: Reading = field(default_factory=Reading)
    unsettled_after_restart: int = 0
    spark: SparkOutcome = field(default_factory=SparkOutcome)
    books: Books = field(default_factory=lambda: Books(0, 0, Counter()))


class Story:
    """One run."""

    def __init__(self, limit: int | None, progress: Progress, view: View) -> None:
        """`limit`: number of flights; None for the whole year."""
        self._limit = limit
        self._progress = progress
        self._view = view
        self._outcome = Outcome()
        self._replicated: list[Count] = []

    async def run(self) -> list[Count]:
        """Run the story, and return the counts, right or wrong.

        Raises:
            LinnError: something failed that keeps the rest from being counted.
        Cancellation, KeyboardInterrupt: children are killed, the folder is removed.
        """
        archive_path()
        missing = await missing_for_spark()
        with tempfile.TemporaryDirectory(prefix="linn-demo-") as name:
            folder = Path(name)
            # A driver that is killed leaves its temporary files: they go with the folder.
            (folder / "tmp").mkdir()
            variables = dict.fromkeys(("TMPDIR", "SPARK_LOCAL_DIRS"), str(folder / "tmp"))
            broker = BrokerProcess(folder, TOML, environment=variables)
            if missing is None:
                self._progress.has_spark = True
                broker.configure(toml_with_spark(folder / LAKE, self._progress.flights))
            else:
                self._view.say(f"the act with Spark is left out: {missing}")
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._tick)
                    await self._play(broker, folder)
                    tasks.cancel_scope.cancel()
            finally:
                _kill_with_children(broker)
        return self.counts()

    async def _tick(self) -> None:
        while True:
            self._view.tick()
            await anyio.sleep(TICK_S)

    def _enter(self, phase: str) -> None:
        self._progress.phase = phase
        self._view.say(phase)

    async def _play(self, broker: BrokerProcess, folder: Path) -> None:
        await self._start(broker, "linn serve")
        async with linn.connect(broker.url, name="linn-demo") as client:
            await self._first_half(client, broker.url, folder)
        self._enter(f"SIGKILL to the broker (process {broker.pid})")
        await anyio.to_thread.run_sync(_kill_with_children, broker)
        await self._start(broker, "linn serve, on the same folder")
        self._progress.recovery_s = broker.ready_s
        async with linn.connect(broker.url, name="linn-demo") as client:
            await self._second_half(client)
            if self._progress.has_spark:
                await self._spark(Sparking(broker, folder / LAKE, self._progress, self._view), client)
                # The next start of the broker, after its next kill, is without drivers.
                broker.configure(toml_with_spark(folder / LAKE, self._progress.flights, enabled=False))
        await self._bank(Banking(broker, folder, self._payments, self._view))
        broker.kill()
        await self._replicate(folder)

    async def _spark(self, sparking: Sparking, client: Client) -> None:
        """Have departures written to Parquet and counted by the hour, while the driver is killed."""
        self._enter("Spark writes the departures to Parquet, and counts the late ones by origin and hour")
        self._outcome.spark = await sparking.run(client)

    async def _bank(self, banking: Banking) -> None:
        """Book payments exactly once, and again at least once, to show the difference."""
        progress, view = self._progress, self._view
        self._enter(f"{self._payments:,} payments are booked, exactly once, by two clerks that are killed")
        self._outcome.books = await banking.run("payments", "exactly-once", progress.paying)
        self._enter("the same at least once, to compare")
        books = await banking.run("payments-again", "at-least-once", progress.paying_again)
        wrong = len(wrong_accounts(books.balances, balances(self._payments)))
        twice = books.booked - books.payments
        view.say(f"at least once: {twice:,} payments are booked twice, {wrong:,} accounts are wrong")

    async def _replicate(self, folder: Path) -> None:
        """Let three brokers hold flights, and kill each of them."""
        with tempfile.TemporaryDirectory(prefix="linn-demo-", dir=_short(folder)) as name:
            act = Replicating(Path(name), self._progress.flights, self._progress, self._view)
            self._enter("three brokers hold the flights, as a queue and as a stream; each of them is killed under load")
            try:
                await act.run()
            finally:
                _kill_with_children(act.broker)
        self._replicated = act.counts()
        wait_s = act.outcome.longest_wait_s
        self._view.say(f"three brokers: no confirmation took longer than {wait_s:.2f} s")

    @property
    def _payments(self) -> int:
        return min(self._progress.flights, PAYMENTS_MAX)

    async def _start(self, broker: BrokerProcess, what: str) -> None:
        await anyio.to_thread.run_sync(broker.start)
        self._view.say(f"{what}: {broker.url}, ready after {broker.ready_s:.2f} s")

    # --- before the broker dies ---

    async def _first_half(self, client: Client, url: str, folder: Path) -> None:
        progress, outcome = self._progress, self._outcome
        async with self._workers(url, folder) as workers:
            self._enter(f"publishing {progress.flights:,} flights through the exchange")
            progress.working.start()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._kill_when_holding, workers[0])
                await publish_flights(client, "flights", self._limit, outcome.file, progress)
            late = len(outcome.file.late_numbers)
            self._view.say(f"published, {late:,} of them late departures; the workers catch up")
            await self._drained(late)
            progress.working.end()
        self._enter("reading the stream")
        outcome.first = await read_stream(client, "departures", progress.first_read)
        outcome.cancellations = await read_stream(client, "cancellations", Stretch("cancellations"))

    @asynccontextmanager
    async def _workers(self, url: str, folder: Path) -> AsyncIterator[list[WorkerProcess]]:
        """Yield subscribed workers, and kill them at the end of the block."""
        hold_after = self._progress.flights // _HOLD_SHARE
        workers = [WorkerProcess(f"worker {number + 1}", folder, self._progress) for number in range(WORKERS)]
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as starting:
                for worker in workers:
                    hold = hold_after if worker is workers[0] else None
                    starting.start_soon(tasks.start, worker.run, url, "delays", hold)
            self._view.say(f"{WORKERS} workers compete for the queue, each a process of its own")
            yield workers
            tasks.cancel_scope.cancel()

    async def _kill_when_holding(self, worker: WorkerProcess) -> None:
        with anyio.move_on_after(QUEUE_SILENCE_S):
            await worker.holding.wait()
        await worker.kill()
        await worker.ended.wait()
        progress = self._progress
        held = progress.ledger.died(worker.name)
        progress.workers[worker.name] = f"killed with {held:,} in hand"
        self._view.say(f"{worker.name} is killed with {held:,} deliveries in hand: they go to the others")

    async def _drained(self, late: int) -> None:
        """Wait until every late departure is acked, or the queue stands still, which the counts will show."""
        ledger = self._progress.ledger
        while ledger.acked_count < late:
            before = ledger.deliveries, ledger.acked_count
            with anyio.move_on_after(QUEUE_SILENCE_S):
                while ledger.acked_count < late and (ledger.deliveries, ledger.acked_count) == before:
                    await anyio.sleep(TICK_S / 4)
            if (ledger.deliveries, ledger.acked_count) == before:
                self._view.say(f"the queue stands still at {ledger.acked_count:,} of {late:,}")
                return

    # --- after it ---

    async def _second_half(self, client: Client) -> None:
        outcome = self._outcome
        self._enter("reading the stream again")
        outcome.second = await read_stream(client, "departures", self._progress.second_read)
        outcome.unsettled_after_restart = (await client.admin.topic("delays"))["queue"]["unsettled"]

    def counts(self) -> list[Count]:
        """Compare the outcome with the file."""
        counts = counts_of(self._outcome, self._progress, whole=self._limit is None)
        if self._progress.has_spark:
            counts += counts_of_spark(self._outcome.spark, expected_of_file(self._progress.flights))
        return counts + counts_of_books(self._outcome.books, self._payments) + self._replicated


def _short(folder: Path) -> Path:
    """The folder, or a system's own one where that has a long path: brokers on one machine have sockets in theirs."""
    return folder if len(str(folder)) < PATH_MAX else Path("/tmp")  # noqa: S108  A folder is made in it.


def _kill_with_children(broker: BrokerProcess) -> None:
    """Kill the broker, and Spark's processes with it, as a service manager does. Idempotent."""
    children = descendants(broker.pid) if broker.is_running else []
    broker.kill()
    kill(children)


def counts_of(outcome: Outcome, progress: Progress, *, whole: bool) -> list[Count]:
    """Return the counts of the final table; `whole`: the file was read to its end."""
    file, first, second = outcome.file, outcome.first.tally, outcome.second.tally
    known = [
        Count("flights in the file", FLIGHTS, file.total),
        Count("cancelled in the file", CANCELLED, file.cancelled),
    ]
    return [
        *(known if whole else [Count("flights in the file", progress.flights, file.total)]),
        Count("published", file.total, progress.publishing.done),
        Count("stream: cancelled", file.cancelled, outcome.cancellations.tally.cancelled),
        Count("stream: departed", file.departed, first.departed),
        Count("stream: departed, after the restart", file.departed, second.departed),
        *compare("stream: late from", file.late_by_origin, first.late_by_origin),
        *compare("stream: departed from", file.departed_by_origin, first.departed_by_origin),
        *compare("stream: departed with", file.departed_by_carrier, first.departed_by_carrier),
        Count("stream: out of order within a carrier", 0, outcome.first.out_of_order + outcome.second.out_of_order),
        *outcome.first.same_as(outcome.second),
        *progress.ledger.counts(file.late_numbers),
        Count("queue: unsettled after the restart", 0, outcome.unsettled_after_restart),
    ]
