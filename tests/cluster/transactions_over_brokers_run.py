"""Exactly once over brokers under faults: clients read, process and write in transactions; all follows from the seed.

Topics: "orders", a stream of two partitions that a group reads, and "jobs", a queue, are the sources; "bills" and
"lines" are streams. A worker takes an order or a job, and writes what it makes of it to both streams, in a transaction
with its offset or ack. Some give up on purpose; in some seeds another process takes over a worker's name now and then.

Laws: nothing is read of a transaction that was told to be aborted; what is read in one stream is in the other (atomic);
at the end each order and each job is there once (once), and orders are in the order of their partition. At the end,
without faults, nothing is open, and readers get on.

    python tests/cluster/transactions_over_brokers_run.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "broker")]

import trio
from broker_world import broker_world
from cluster_world import until
from trouble import ALL_FAULTS, Trouble, run_named

import linn
from linn.client import Client
from linn.core.errors.tree import LinnError, TransactionAborted
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

FAULTS = 6
QUIET_S = 180.0
VIRTUAL_S_MAX = 3600.0
STORAGE = '[storage.segmented-log]\nfsync = "{}"\nsegment_bytes_max = {}\n'
TIMEOUT_S = 20.0
PATIENCE_S = 600.0
"""The request timeout of publishers: none of their publishes fails."""
SINKS = "bills", "lines"
SOURCES = "orders", "jobs"


class TransactionsRun:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"transactions {seed}")
        self.is_synced = rng.random() < 0.5
        self.segment_bytes = rng.choice([4096, 1 << 20])
        self.aborts_at = rng.choice([0.0, 0.2])
        self.has_rival = rng.random() < 0.4
        self.published: dict[str, list[str]] = {"orders/0": [], "orders/1": [], "jobs": []}
        self.aborted: set[str] = set()
        """Attempts that were told to be aborted."""
        self.committed: set[str] = set()
        """Attempts that were told to be committed."""
        self.is_over = False
        self._attempts = 0

    def __str__(self) -> str:
        counts = f"{len(self.committed)} committed, {len(self.aborted)} aborted"
        return f"{'synced' if self.is_synced else 'not synced'}, {'a rival, ' if self.has_rival else ''}{counts}"

    async def run(self, env: SimEnv) -> None:
        """Live with faults, then without, and check."""
        async with broker_world(env, self.seed) as world:
            self.world = world
            storage = STORAGE.format("always" if self.is_synced else "os", self.segment_bytes)
            self.brokers = await world.brokers(3, storage, replicas=3)
            trouble = Trouble(world, self.brokers, self.rng, is_synced=self.is_synced)
            try:
                await self._live(trouble)
            except BaseException as error:
                error.add_note(f"{self}: {'; '.join(trouble.said)}")
                raise

    @asynccontextmanager
    async def client(self, name: str, timeout_s: float = 60.0) -> AsyncIterator[Client]:
        """A client with all addresses in a random order."""
        self._attempts += 1
        env = SimEnv(1000 * self.seed + self._attempts, name=name, world=self.world.env.world)
        addresses = [broker.address for broker in self.brokers]
        self.rng.shuffle(addresses)
        url = "linn://" + ",".join(addresses)
        async with linn.connect(url, env=env, request_timeout_s=timeout_s, wait_s=60) as client:
            yield client

    async def _live(self, trouble: Trouble) -> None:
        admin = await self.brokers[0].client()
        about = {"replicas": 3, "min_in_sync": 2}
        for name in (*SINKS, "orders"):
            partitions = 2 if name == "orders" else 1
            settings = {"kind": "stream", "partitions": partitions, **about}
            await admin.administer("topic.create", name=name, settings=settings)
        await admin.administer("topic.create", name="jobs", settings={"kind": "queue", "lease": "5s", **about})
        async with trio.open_nursery() as nursery:
            for name in self.published:
                nursery.start_soon(self._publish, name)
            for source in SOURCES:
                nursery.start_soon(self._work, source, source)
                if self.has_rival:
                    nursery.start_soon(self._work, source, f"rival at {source}")
            async with trio.open_nursery() as troubles:
                troubles.start_soon(trouble.run, ALL_FAULTS, FAULTS)
                troubles.start_soon(self._watch)
            self.is_over = True
            await self._until_done()
            nursery.cancel_scope.cancel()
        await self._check()

    # --- clients -----------------------------------------------------------------------------------------------------

    async def _publish(self, name: str) -> None:
        topic, _, partition = name.partition("/")
        async with self.client(f"publisher of {name}", PATIENCE_S) as client, client.producer(topic) as producer:
            while not self.is_over:
                value = f"{name} {len(self.published[name])}"
                await producer.publish_many([value.encode()], partition=int(partition) if partition else None)
                self.published[name].append(value)
                await trio.sleep(self.rng.uniform(0, 1.5))

    async def _work(self, source: str, machine: str) -> None:
        while True:
            try:
                async with self.client(machine) as client:
                    of_group: Any = {"group": "clerks", "start": "earliest"} if source == "orders" else {}
                    async with client.consumer(source, **of_group) as consumer:
                        await self._process(client, consumer, source, machine)
            except LinnError as error:
                check(error)
            await trio.sleep(self.rng.uniform(0, 0.5))

    async def _process(self, client: Client, consumer: linn.client.Consumer, source: str, machine: str) -> None:
        """Make something of one message after the other, until a transaction fails."""
        while True:
            message = await anext(consumer)
            assert message.value is not None
            self._attempts += 1
            attempt = f"{machine}#{self._attempts}"
            made = b"%s by %s" % (message.value, attempt.encode())
            gives_up = self.rng.random() < self.aborts_at
            try:
                async with client.transaction(f"clerk of {source}", timeout_s=TIMEOUT_S) as tx:
                    for sink in self.rng.sample(SINKS, 2):
                        await tx.publish(sink, made)
                        await trio.sleep(self.rng.choice([0.0, 0.0, 0.3]))
                    if source == "orders":
                        tx.commit(message)
                    else:
                        tx.ack(message)
                    if gives_up:
                        await tx._settle()  # As a client that gives up in the middle of its commit.
                        await tx.abort()
            except TransactionAborted:
                self.aborted.add(attempt)
                raise
            (self.aborted if gives_up else self.committed).add(attempt)
            if gives_up:
                return
            if self.has_rival and not self.is_over:
                await trio.sleep(self.rng.uniform(0, 3))

    async def _watch(self) -> None:
        """Read what is committed, all along."""
        for _ in range(12):
            await trio.sleep(self.rng.uniform(0, 6))
            await self._look()

    async def _look(self) -> dict[str, list[str]]:
        """Read the sinks; check that nothing there was told to be aborted."""
        found: dict[str, list[str]] = {}
        try:
            async with self.client("reader") as client:
                for sink in SINKS:
                    found[sink] = await read(client, sink)
                    wrong = [it for it in found[sink] if it.rpartition(" by ")[2] in self.aborted]
                    assert not wrong, f"{wrong} can be read in {sink}, and was told to be aborted"
        except LinnError as error:
            check(error)
        return found

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _until_done(self) -> None:
        wanted = {value for values in self.published.values() for value in values}
        missing = wanted
        with trio.move_on_after(QUIET_S) as scope:
            while missing:
                await trio.sleep(3)
                found = await self._look()
                missing = wanted - {it.rpartition(" by ")[0] for it in found.get("bills", [])}
        for source in SOURCES if scope.cancelled_caught else ():
            late = sorted(value for value in missing if value.startswith(source))
            assert not late, f"these {source} do not come: {late[:5]}, {len(late)} in all"

    async def _check(self) -> None:
        await until(lambda: not self._is_open(), QUIET_S)
        found = await self._look()
        for sink in SINKS:
            values = [it.rpartition(" by ")[0] for it in found[sink]]
            assert len(values) == len({*values}), f"{sink} has something twice"
            for name in ("orders/0", "orders/1"):
                numbers = [int(it.rpartition(" ")[2]) for it in values if it.startswith(name)]
                assert numbers == sorted(numbers), f"{sink} has {name} in another order"
            attempts = {it.rpartition(" by ")[2] for it in found[sink]}
            assert self.committed <= attempts, f"{sorted(self.committed - attempts)} are committed, and not in {sink}"
        assert sorted(found["bills"]) == sorted(found["lines"]), "a transaction is in one of the sinks"

    def _is_open(self) -> bool:
        """Whether something of a transaction is open at the leader of a topic."""
        leading = [topic for it in self.brokers for topic in it.broker.topics.values() if topic.led_by is None]
        partitions = [partition for topic in leading for partition in topic.partitions.values()]
        return any(partition.open_transactions() for partition in partitions)


async def read(client: Client, topic: str) -> list[str]:
    """Everything that is committed in the only partition of a topic."""
    found, offset = list[str](), 0
    while True:
        fetched = await client.fetch(topic, 0, offset)
        found += [value.decode() for batch in fetched.batches for value in batch.values if value is not None]
        if fetched.next_offset <= offset:
            return found
        offset = fetched.next_offset


def check(error: LinnError) -> None:
    """Check that a client may see an error while brokers fail."""
    begins = "delivery.", "group.", "transaction.", "connection.", "request."
    assert error.retriable or error.code.startswith(begins), error


def run_seed(seed: int) -> TransactionsRun:
    """Run a seed, in simulated time."""
    run = TransactionsRun(seed)
    run_simulation(seed, run.run, virtual_s_max=VIRTUAL_S_MAX)
    return run


if __name__ == "__main__":
    run_named(run_seed)
