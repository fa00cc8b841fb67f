"""Replicating: the act in which three brokers hold the flights, and each of them is killed under load.

The brokers are the workers of `linn serve --workers 3`: nodes of one cluster with data folders of their own, which need
no other program, so that the act is played everywhere. Their metadata store is the supervisor's, which gives a worker
up as soon as it is killed; beside etcd, the others would wait for the end of its session first.

Law: a broker is killed only while all three are in sync, and while flights are being published.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

import linn
from linn.cli.demo.child_processes import ChildProcess, descendants, kill
from linn.cli.demo.progress import Ledger, Progress
from linn.cli.demo.publishing import CHUNK_FLIGHTS_MAX, chunks
from linn.cli.demo.stream_reading import Reading, read_stream
from linn.cli.demo.tally import Count, Tally, compare
from linn.cli.demo.view import View
from linn.cli.demo.worker_process import WorkerProcess
from linn.client.client import Client
from linn.core.errors.tree import LinnError
from linn.testing.process import BrokerProcess

TOPIC = "replicated"
GROUP = "readers"
FLIGHTS_MAX = 100_000
NODES = (1, 2, 3)
PARTITIONS = 4
OPTIONS = ("--workers", str(len(NODES)))
WORKERS = 2
SILENCE_S = 20.0
"""Time without progress after which the rest counts as missing."""
_LOOK_S = 0.05
_CHUNKS_MIN = 60
"""Minimum number of publishes, so that each kill comes in the middle of some."""


@dataclass
class ReplicatedOutcome:
    """Data that is compared at the end."""

    file: Tally = field(default_factory=Tally)
    published: int = 0
    killed: Counter[int] = field(default_factory=Counter)
    """Kills by node."""
    reading: Reading = field(default_factory=Reading)
    records: int = 0
    """Records in the logs of all partitions."""
    unsettled: int = 0
    in_sync: int = 0
    longest_wait_s: float = 0.0
    """The longest time to a confirmation."""


class Replicating:
    """One run of the act."""

    def __init__(self, folder: Path, flights: int, progress: Progress, view: View) -> None:
        """`folder`: with a short path, as the brokers have sockets in it."""
        self.broker = BrokerProcess(folder, options=OPTIONS)
        """The supervisor."""
        self.outcome = ReplicatedOutcome()
        self._folder = folder
        self._limit = min(flights, FLIGHTS_MAX)
        self._progress = progress
        self._view = view
        self._allowed = 0
        """Number of flights up to which may be published now."""
        self._may_go_on = anyio.Event()
        self._queue = Progress(self._limit)
        """The ledger of this act's workers."""

    async def run(self) -> ReplicatedOutcome:
        """Publish the flights while brokers are killed, and read them back as a queue and as a stream.

        Raises LinnError. Cancellation: the workers are killed; kill the broker and its children.
        """
        await anyio.to_thread.run_sync(self.broker.start)
        url, outcome = self.broker.url, self.outcome
        self._view.say(f"{len(NODES)} brokers as one: {url}, ready after {self.broker.ready_s:.2f} s")
        async with linn.connect(url, name="linn-demo") as client, anyio.create_task_group() as tasks:
            await client.admin.create_topic(TOPIC, kind="both", partitions=PARTITIONS, replicas=len(NODES))
            for number in range(WORKERS):
                worker = WorkerProcess(f"replicated-{number + 1}", self._folder, self._queue)
                await tasks.start(worker.run, url, TOPIC, None)
            self._progress.replicated_work.expected = self._limit
            self._progress.replicated_work.start()
            tasks.start_soon(self._count_work)
            async with anyio.create_task_group() as working:
                working.start_soon(self._publish, client)
                working.start_soon(self._kill_each, client)
            await self._drained(client)
            tasks.cancel_scope.cancel()
        async with linn.connect(url, name="linn-demo") as client:
            await self._until_whole(client)
            outcome.reading = await read_stream(client, TOPIC, self._progress.replicated_read, GROUP)
            described = await client.admin.topic(TOPIC)
        outcome.records = sum(partition["end"] for partition in described["partitions"])
        outcome.in_sync = len(described["replicas"]["in_sync"])
        return outcome

    async def _publish(self, client: Client) -> None:
        stretch, outcome = self._progress.replicating, self.outcome
        size = max(1, min(CHUNK_FLIGHTS_MAX, self._limit // _CHUNKS_MIN))
        stretch.expected = self._limit
        stretch.start()
        async with client.producer(TOPIC, acks="all") as producer:
            for chunk in chunks(self._limit, size, outcome.file):
                while stretch.done >= self._allowed:
                    await self._may_go_on.wait()
                began_s = time.monotonic()
                await producer.publish_many(chunk.values, keys=chunk.keys, labels=chunk.labels)
                outcome.longest_wait_s = max(outcome.longest_wait_s, time.monotonic() - began_s)
                stretch.done += len(chunk.values)
        stretch.end()
        outcome.published = stretch.done

    async def _kill_each(self, client: Client) -> None:
        """Kill each broker once, the leader first, in the middle of an equal share of the flights."""
        stretch, left = self._progress.replicating, set(NODES)
        for share in range(1, len(NODES) + 1):
            leader = await self._until_whole(client)
            end = self._limit * share // len(NODES)
            middle = (stretch.done + end) // 2
            self._allow(end)
            with anyio.move_on_after(SILENCE_S):
                while stretch.done < middle:
                    await anyio.sleep(_LOOK_S / 10)
            node = leader if leader in left else min(left)
            left.discard(node)
            await self._kill(client, node, "the leader" if node == leader else "a follower")
        await self._until_whole(client)

    def _allow(self, end: int) -> None:
        self._allowed = end
        self._may_go_on.set()
        self._may_go_on = anyio.Event()

    async def _kill(self, client: Client, node: int, role: str) -> None:
        """Kill a broker, and wait until the cluster knows that its supervisor has started it again."""
        found = [each for each in descendants(self.broker.pid) if _node_of(each) == node]
        before, killed_s = await _session_of(client, node), time.monotonic()
        text = f"SIGKILL to broker {node}, {role}, after {self._progress.replicating.done:,} flights"
        self._view.say(text)
        self._progress.brokers = f"broker {node} was killed"
        await anyio.to_thread.run_sync(kill, found)
        self.outcome.killed[node] += len(found)
        while time.monotonic() - killed_s < SILENCE_S:
            if await _session_of(client, node) not in (None, before):
                return
            await anyio.sleep(_LOOK_S)

    async def _until_whole(self, client: Client) -> int:
        """Wait until all brokers are in sync, for a bounded time; return the number of the leader."""
        began_s, leader = time.monotonic(), 0
        while time.monotonic() - began_s < SILENCE_S:
            with suppress(LinnError):  # Its leader was killed just now.
                replicas = (await client.admin.topic(TOPIC))["replicas"]
                leader, in_sync = replicas["leader"], replicas["in_sync"]
                self._progress.brokers = f"broker {leader} leads, in sync: {', '.join(map(str, in_sync))}"
                if len(in_sync) == len(NODES):
                    self._view.say(f"all {len(NODES)} brokers have every confirmed flight; broker {leader} leads")
                    return leader
            await anyio.sleep(_LOOK_S)
        self._view.say(f"not all brokers are in sync after {SILENCE_S:g} s")
        return leader

    async def _drained(self, client: Client) -> None:
        """Wait until every flight is settled, or the queue stands still."""
        before, moved_s = -1, time.monotonic()
        while time.monotonic() - moved_s < SILENCE_S:
            self.outcome.unsettled = (await client.admin.topic(TOPIC))["queue"]["unsettled"]
            if not self.outcome.unsettled:
                break
            if before != (before := self.outcome.unsettled):
                moved_s = time.monotonic()
            await anyio.sleep(_LOOK_S)
        self._progress.replicated_work.done = len(self._queue.ledger.last_delivered_at)
        self._progress.replicated_work.end()

    async def _count_work(self) -> None:
        while True:
            self._progress.replicated_work.done = len(self._queue.ledger.last_delivered_at)
            await anyio.sleep(_LOOK_S)

    def counts(self) -> list[Count]:
        """Return the counts of the final table."""
        return counts_of_replicated(self.outcome, self._queue.ledger, self._limit)


async def _session_of(client: Client, node: int) -> str | None:
    """The session of a broker that is alive; None: it is not, or the broker that was asked was killed just now."""
    with suppress(LinnError):
        nodes = (await client.admin.cluster())["nodes"]
        return next((each["session"] for each in nodes if each["node"] == node), None)
    return None


def _node_of(process: ChildProcess) -> int:
    """The number of the broker that a process is; 0: it is none."""
    command = process.command
    if "linn.cli.workers.worker" not in command:
        return 0
    return next((node for node in NODES if f'"number":{node},' in command), 0)


def counts_of_replicated(outcome: ReplicatedOutcome, ledger: Ledger, limit: int) -> list[Count]:
    """Return the counts of the final table. `ledger`: of the workers."""
    file, reading = outcome.file, outcome.reading
    by_carrier = compare("", file.departed_by_carrier, reading.tally.departed_by_carrier)
    after = sum(1 for number, at_s in ledger.acked_at.items() if ledger.last_delivered_at.get(number, at_s) > at_s)
    return [
        Count("three brokers: killed under load", len(NODES), len(outcome.killed)),
        Count("three brokers: in sync at the end", len(NODES), outcome.in_sync),
        Count("three brokers: published", limit, outcome.published),
        Count("three brokers: records in the log", limit, outcome.records),
        Count("three brokers: read as a stream", limit, reading.tally.total),
        Count("three brokers: carriers whose departures are off", 0, sum(not each.right for each in by_carrier)),
        Count("three brokers: out of order within a carrier", 0, reading.out_of_order),
        Count("three brokers: delivered as a queue", limit, len(ledger.last_delivered_at)),
        Count("three brokers: delivered after their ack", 0, after),
        Count("three brokers: unsettled at the end", 0, outcome.unsettled),
    ]
