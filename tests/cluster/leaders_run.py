"""Python clients in a cluster under faults: everything follows from the seed.

Topics: "log", a stream with two partitions, which a reader and a group read; and "jobs", a queue. Each use has a client
on a machine of its own, whose URL names all brokers. Producers publish with numbers and acks of all. Beside the faults
of the cluster, clients are cut from some brokers.

Laws: each confirmed message is there once, in the order of its producer and partition; the reader gets each once, in
the order of its partition; a message of the queue whose ack was confirmed does not come again; the group misses none.
At the end, without faults, all clients get on, and nothing is passed on any more.

    python tests/cluster/leaders_run.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "broker")]

import trio
from broker_world import BrokerWorld, broker_world, until_led
from cluster_run import read_all
from cluster_world import until
from test_clients_at_leaders import passed
from trouble import ALL_FAULTS, Trouble, run_named

import linn
from linn.client import Client, Producer
from linn.client.connection.leaders import REST_S_MAX
from linn.core.errors.tree import DiskFull, LinnError
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

FAULTS = 8
QUIET_S = 180.0
VIRTUAL_S_MAX = 3600.0
PATIENCE_S = 600.0
"""The request timeout of clients: none of their publishes fails."""
STORAGE = '[storage.segmented-log]\nfsync = "os"\n'


class LeadersRun:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"leaders {seed}")
        self.in_flight = self.rng.choice([1, 4, 8])
        self.confirmed: dict[str, list[bytes]] = {"log/0": [], "log/1": [], "jobs": []}
        self.read: dict[int, list[bytes]] = {0: [], 1: []}
        self.seen: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.acked_for_now: set[bytes] = set()
        self.is_over = False
        self.passed_at_end = 0

    def __str__(self) -> str:
        return f"{self.in_flight} in flight, {sum(map(len, self.confirmed.values()))} messages"

    async def run(self, env: SimEnv) -> None:
        """Live with faults, then without, and check."""
        async with broker_world(env, self.seed) as world:
            self.world = world
            self.brokers = await world.brokers(3, STORAGE)
            trouble = Trouble(world, self.brokers, self.rng)
            try:
                await self._live(world, trouble)
            except BaseException as error:
                error.add_note(f"{self}: {'; '.join(trouble.said)}")
                raise

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[Client]:
        """A client with all addresses in a random order."""
        env = SimEnv(self.seed, name=name, world=self.world.env.world)
        addresses = [broker.address for broker in self.brokers]
        self.rng.shuffle(addresses)
        url = "linn://" + ",".join(addresses)
        async with linn.connect(url, env=env, request_timeout_s=PATIENCE_S, wait_s=60) as client:
            yield client

    async def _live(self, world: BrokerWorld, trouble: Trouble) -> None:
        admin = await self.brokers[0].client()
        about = {"replicas": 3, "min_in_sync": 2}
        await admin.administer("topic.create", name="log", settings={"kind": "stream", "partitions": 2, **about})
        await admin.administer("topic.create", name="jobs", settings={"kind": "queue", "lease": "5s", **about})
        async with trio.open_nursery() as nursery:
            for task in (self._publish, self._publish_jobs, self._read, self._work, self._join):
                nursery.start_soon(task)
            async with trio.open_nursery() as troubles:
                troubles.start_soon(trouble.run, ALL_FAULTS, FAULTS)
                troubles.start_soon(self._cut_clients)
            await self._until_all_get_on()
            await trio.sleep(2 * REST_S_MAX)
            before = self._passed()
            await self._until_all_get_on()
            self.passed_at_end = self._passed() - before
            self.is_over = True
            await self._until_all_read()
            nursery.cancel_scope.cancel()
        await self._check()

    async def _cut_clients(self) -> None:
        """Cut a client from a broker now and then."""
        net = self.world.env.world
        for _ in range(FAULTS // 2):
            await trio.sleep(self.rng.uniform(0, 5))
            client = self.rng.choice(["log", "jobs", "reader", "worker", "member"])
            machine = self.rng.choice(self.brokers).env.name
            net.cut(client, machine)
            await trio.sleep(self.rng.uniform(0, 20))
            net.heal(client, machine)

    def _passed(self) -> int:
        return passed(self.brokers)

    # --- clients -----------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        async with self.client("log") as client, client.producer("log", in_flight_max=self.in_flight) as producer:
            async with trio.open_nursery() as nursery:
                for partition in (0, 1):
                    nursery.start_soon(self._fill, producer, partition)

    async def _fill(self, producer: Producer, partition: int) -> None:
        number = 0
        confirmed = self.confirmed[f"log/{partition}"]
        while not self.is_over:
            several = [b"%d/%d" % (partition, number + more) for more in range(self.rng.randint(1, 5))]
            receipt = await producer.publish_many(several, partition=partition)
            assert receipt.count == len(several)
            confirmed += several
            number += len(several)
            await trio.sleep(self.rng.uniform(0, 2.0))

    async def _publish_jobs(self) -> None:
        async with self.client("jobs") as client, client.producer("jobs", in_flight_max=self.in_flight) as producer:
            number = 0
            while not self.is_over:
                value = b"job %d" % number
                await producer.publish(value)
                self.confirmed["jobs"].append(value)
                number += 1
                await trio.sleep(self.rng.uniform(0, 2.0))

    async def _read(self) -> None:
        async with self.client("reader") as client, client.consumer("log") as consumer:
            async for message in consumer:
                assert message.value is not None
                self.read[message.partition].append(message.value)

    async def _work(self) -> None:
        async with self.client("worker") as client, client.consumer("jobs") as consumer:
            while True:
                try:
                    message = await anext(consumer)
                    assert message.value not in self.acked, f"{message.value!r} came again after its ack"
                    await message.ack()
                except DiskFull:
                    # It has taken effect, and holds unless the broker dies before its disk has room.
                    assert message.value is not None
                    self.acked_for_now.add(message.value)
                except LinnError as error:
                    check(error, "delivery.")
                else:
                    assert message.value is not None
                    self.acked.add(message.value)

    async def _join(self) -> None:
        async with self.client("member") as client, client.consumer("log", group="g") as consumer:
            while True:
                try:
                    message = await anext(consumer)
                    assert message.value is not None
                    self.seen.add(message.value)
                    await message.ack()
                except LinnError as error:
                    check(error, "delivery.", "group.")

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _until_all_get_on(self) -> None:
        before = {name: len(values) for name, values in self.confirmed.items()}
        reads, acks, seen = [len(values) for values in self.read.values()], len(self.acked), len(self.seen)
        await until(lambda: all(len(values) > before[name] for name, values in self.confirmed.items()), QUIET_S)
        await until(lambda: all(len(self.read[at]) > count for at, count in enumerate(reads)), QUIET_S)
        await until(lambda: len(self.acked) > acks and len(self.seen) > seen, QUIET_S)

    async def _until_all_read(self) -> None:
        logged = {*self.confirmed["log/0"], *self.confirmed["log/1"]}
        await until(
            lambda: logged <= self.seen and {*self.confirmed["jobs"]} <= self.acked | self.acked_for_now, QUIET_S
        )
        await until(lambda: all(len(self.read[at]) >= len(self.confirmed[f"log/{at}"]) for at in (0, 1)), QUIET_S)

    async def _check(self) -> None:
        leaders = await until_led(self.brokers, "log", "jobs")
        client = await leaders["log"].client()
        for partition in (0, 1):
            confirmed = [value.decode() for value in self.confirmed[f"log/{partition}"]]
            stored = await read_all(client, "log", partition)
            assert stored[: len(confirmed)] == confirmed
            assert len(stored) == len(set(stored)), "a message is there twice"
            assert self.read[partition] == [value.encode() for value in stored][: len(self.read[partition])]
        assert self.passed_at_end == 0, f"{self.passed_at_end} bytes are passed on at the end"


def check(error: LinnError, *begins: str) -> None:
    """Check that a consumer may see an error while leaders change: its code begins so, or it is retriable."""
    assert error.retriable or error.code.startswith(begins), error


def run_seed(seed: int) -> LeadersRun:
    """Run a seed, in simulated time."""
    run = LeadersRun(seed)
    run_simulation(seed, run.run, virtual_s_max=VIRTUAL_S_MAX)
    return run


if __name__ == "__main__":
    run_named(run_seed)
