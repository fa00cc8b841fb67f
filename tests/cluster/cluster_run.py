"""A cluster under faults, with clients: everything follows from the seed.

Topics: a stream, which a group reads; a queue with dead letters; and one that is both, with two partitions. Producers
publish with acks of all, and numbers.

Laws, all along: no record comes again after its settlement was confirmed; attempts do not go down; a group's positions
do not go back; what is committed never changes; an epoch has one leader. At the end, without faults: all replicas are
in sync and agree; everything is available again; each confirmed record is there once, in the order of its producer; the
queues have delivered it or still do, for every lease ends; a rejected one is a dead letter, once.

    python tests/cluster/cluster_run.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "broker")]

import trio
from broker_world import BrokerWorld, broker_world, until_led
from cluster_world import until
from committed_records import CommittedRecords
from faulty_clients import Consumer, GroupReader, Producer, Told, Worker
from raw_client import RawClient
from replicas_seen import agree, holders, is_whole
from trouble import ALL_FAULTS, Trouble, run_named

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

QUIET_S = 180.0
SESSION_S = 6.0
VIRTUAL_S_MAX = 3600.0
FAULTS = 10
STORAGE = '[storage.segmented-log]\nfsync = "{}"\nsegment_bytes_max = {}\n'
DROPS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "the oldest, to make room": {"bytes_max": 10_000, "message_bytes_max": 2_000, "overflow": "drop-head"},
    "what is old": {"retention_bytes": 5_000},
}
"""Settings of the topic that is both."""
TOPICS: dict[str, dict[str, Any]] = {
    "dead": {"kind": "stream"},
    "stream": {"kind": "stream"},
    "queue": {"kind": "queue", "dead_letter": "dead", "lease": "5s"},
    "both": {"kind": "both", "partitions": 2, "lease": "5s"},
}


class ClusterRun:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"cluster {seed}")
        self.nodes = 5 if seed % 4 == 3 else 3
        self.replicas = rng.choice([2, 3, 3])
        self.min_in_sync = rng.randint(1, 2)
        self.is_synced = rng.random() < 0.5
        self.segment_bytes = rng.choice([4096, 1 << 20])
        self.troubles = rng.choice([1, 2])
        self.drops = rng.choice(["nothing", *DROPS])
        self.queues = {"queue": Told(), "both": Told()}
        self.trouble: Trouble

    def __str__(self) -> str:
        synced = "synced" if self.is_synced else "not synced"
        about = f"{self.nodes} brokers, {self.replicas} replicas, {self.min_in_sync} in sync, {synced}"
        return f"{about}, drops {self.drops}, segments of {self.segment_bytes}"

    async def run(self, env: SimEnv) -> None:
        """Live with faults, then without, and check."""
        async with broker_world(env, self.seed) as world:
            self.brokers = await world.brokers(
                self.nodes, STORAGE.format("always" if self.is_synced else "os", self.segment_bytes)
            )
            self.trouble = Trouble(world, self.brokers, self.rng, is_synced=self.is_synced)
            try:
                await self._live(world)
            except BaseException as error:
                error.add_note(f"{self}: {'; '.join(self.trouble.said)}")
                raise

    async def _live(self, world: BrokerWorld) -> None:
        admin = await self.brokers[0].client()
        about = {"replicas": self.replicas, "min_in_sync": self.min_in_sync}
        for name, settings in TOPICS.items():
            keeping = DROPS[self.drops] if name == "both" else {}
            await admin.administer("topic.create", name=name, settings=settings | about | keeping)
        workers = self._workers(world)
        self.committed = CommittedRecords(world, self.brokers)
        async with trio.open_nursery() as nursery:
            for worker in workers:
                nursery.start_soon(worker.run)
            async with trio.open_nursery() as looking:
                looking.start_soon(self.committed.run)
                async with trio.open_nursery() as troubles:
                    for _ in range(self.troubles):
                        troubles.start_soon(self.trouble.run, ALL_FAULTS, FAULTS // self.troubles)
                await trio.sleep(2 * SESSION_S)  # The last fault may yet cost a node its session.
                await self._until_available()
                looking.cancel_scope.cancel()
            for worker in workers:
                worker.is_over = True
        await self._check()

    def _workers(self, world: BrokerWorld) -> Sequence[Worker]:
        about = world, self.brokers, self.rng
        names = [name for name in TOPICS if name != "dead"]
        self.producers = {name: Producer(*about, name, TOPICS[name].get("partitions", 1)) for name in names}
        self.reader = GroupReader(*about, "stream")
        consumers = [Consumer(*about, name, told) for name, told in self.queues.items() for _ in range(2)]
        return [*self.producers.values(), self.reader, *consumers]

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _until_available(self) -> None:
        """Wait until all replicas are in sync, and each client has got on."""
        await until(lambda: all(is_whole(self.brokers, name, self.replicas) for name in TOPICS), QUIET_S)
        before = [list(it.counts) for it in self.producers.values()]
        delivered = [it.delivered for it in self.queues.values()]

        def go_on() -> bool:
            has_published = all(
                now > then
                for it, counts in zip(self.producers.values(), before, strict=True)
                for now, then in zip(it.counts, counts, strict=True)
            )
            has_consumed = all(it.delivered > then for it, then in zip(self.queues.values(), delivered, strict=True))
            return has_published and has_consumed and self.reader.seen >= self.producers["stream"].all_confirmed()

        await until(go_on, QUIET_S)

    async def _check(self) -> None:
        await until(lambda: all(agree(holders(self.brokers, name), name) for name in TOPICS), QUIET_S)
        await self.committed.look()
        self.committed.check_epochs()
        leaders = await until_led(self.brokers, *TOPICS)
        for name, producer in self.producers.items():
            if name != "queue":
                client = await leaders[name].client()
                for partition in range(len(producer.counts)):
                    start = leaders[name].broker.topic(name).partitions[partition].log.bounds()[0]
                    await check_stream(client, producer, partition, start)
        client = await leaders["queue"].client()
        for name, told in self.queues.items():
            await self._check_queue(client, name, told)

    async def _check_queue(self, client: RawClient, name: str, told: Told) -> None:
        dead: list[str] = []
        if TOPICS[name].get("dead_letter"):
            with trio.fail_after(QUIET_S):
                while not told.rejected <= set(dead := await read_all(client, "dead", 0)):
                    await trio.sleep(1)
        await trio.sleep(6)
        taken = await client.taken(name, count=1 << 20)
        assert len({*taken, *dead}) == len(taken) + len(dead), "a record is there twice"
        assert not told.acked.intersection([*taken, *dead]), "a record came again after its ack was confirmed"
        assert not told.rejected.intersection(taken), "a record came again after its rejection was confirmed"
        missing = self.producers[name].all_confirmed() - told.maybe - set(taken) - set(dead)
        if name == "queue" or self.drops == "nothing":
            assert not missing, f"the queue lacks confirmed records {sorted(missing)}"


async def read_all(client: RawClient, topic: str, partition: int, start: int = 0) -> list[str]:
    """All records of a partition."""
    found, offset = list[str](), start
    while more := await client.fetch(topic, partition, offset):
        found += more
        offset += len(more)
    return found


async def check_stream(client: RawClient, producer: Producer, partition: int, start: int) -> None:
    """Check that a partition has what was confirmed, in order, from its start on: each batch has one record."""
    found = await read_all(client, producer.topic, partition, start)
    confirmed = producer.confirmed(partition)[start:]
    assert found[: len(confirmed)] == confirmed, f"{producer.topic}/{partition} lacks a confirmed record"
    # The last batch may have been stored without its producer having been told so.
    assert len(found) <= len(confirmed) + 1, f"{producer.topic}/{partition} has a record twice"


def run_seed(seed: int) -> ClusterRun:
    """Run a seed, in simulated time."""
    run = ClusterRun(seed)
    run_simulation(seed, run.run, virtual_s_max=VIRTUAL_S_MAX)
    return run


if __name__ == "__main__":
    run_named(run_seed)
