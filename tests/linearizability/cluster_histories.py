"""Runs of three brokers under faults whose histories are checked: a partition as a log, and one as a queue with acks.

Laws: a log is a list of records. An append puts one at its end, at one moment between its call and its confirmation by
all replicas; a read returns the whole list, as it was at one moment before its return. In a queue, a record is taken
while it is there, as often as leases end, and an ack removes it. In the end nothing is left in the queue, and the log
has what its last reader sees.

A read may be old: a leader that was replaced, and does not know it yet, has what was committed before. An ack whose
client was not told happens at any time after its call, or never.

    python tests/linearizability/cluster_histories.py SEED [SEED ...] > HISTORIES
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    TESTS = Path(__file__).parents[1]
    sys.path[:0] = [str(TESTS), str(TESTS / "broker"), str(TESTS / "cluster")]

import trio
from broker_world import BrokerWorld, SimBroker, broker_world
from cluster_world import until
from faulty_clients import PATIENCE_S, Worker
from history import History
from raw_client import RawClient, records, values
from replicas_seen import ALL, in_sync
from trouble import ALL_FAULTS, Trouble

from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

REPLICAS = 3
FAULTS = 8
SESSION_S = 6.0
QUIET_S = 180.0
LEASE_S = 3.0
VIRTUAL_S_MAX = 3600.0
WRITERS, READERS, CONSUMERS = 2, 2, 2
SYNCED = '[storage.segmented-log]\nfsync = "always"\n'
TOPICS: dict[str, dict[str, object]] = {
    "log": {"kind": "stream"},
    "queue": {"kind": "queue", "lease": f"{LEASE_S:.0f}s"},
}
NOT_CURRENT = "delivery.not_current"


class ClusterRun:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"histories {seed}")
        self.history = History()
        self.tags = 0
        self.is_synced = self.rng.random() < 0.5
        self.trouble: Trouble

    async def run(self, env: SimEnv) -> None:
        """Live with faults; then empty the queue, and read the log once more."""
        async with broker_world(env, self.seed) as world:
            brokers = await world.brokers(REPLICAS, SYNCED if self.is_synced else "")
            admin = await brokers[0].client()
            for name, settings in TOPICS.items():
                await admin.administer("topic.create", name=name, settings={"replicas": REPLICAS, **settings})
            self.trouble = Trouble(world, brokers, self.rng, is_synced=self.is_synced)
            try:
                await self._live(world, brokers)
            except BaseException as error:
                error.add_note("; ".join(self.trouble.said))
                raise

    async def _live(self, world: BrokerWorld, brokers: Sequence[SimBroker]) -> None:
        kinds = [Writer] * WRITERS + [Reader] * READERS + [Taker] * CONSUMERS
        clients = [kind(self, number, world, brokers) for number, kind in enumerate(kinds)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.run)
            await self.trouble.run(ALL_FAULTS, FAULTS)
            await trio.sleep(2 * SESSION_S)  # The last fault may yet cost a node its session.
            await until(lambda: all(len(in_sync(it, name)) == REPLICAS for it in brokers for name in TOPICS), QUIET_S)
            for client in clients:
                client.is_over = True
        await self._finish(brokers[0], len(clients))

    async def _finish(self, broker: SimBroker, number: int) -> None:
        taker = Taker(self, number, None, [broker])
        client = await broker.client()
        subscription = (await client.call(m.Subscribe("queue"))).subscription
        empty = 0
        while empty < 2 * LEASE_S:
            empty = 0 if await taker.take(client, subscription) else empty + 1
        self.history.call("queue", number, "read").end()
        await Reader(self, number, None, [broker]).read(client, is_last=True)


class _Client(Worker):
    """A client that notes what it does in the history."""

    def __init__(self, run: ClusterRun, number: int, world: BrokerWorld | None, brokers: Sequence[SimBroker]) -> None:
        super().__init__(world, brokers, random.Random(f"{run.seed}/{number}"), "")  # type: ignore[arg-type]
        self.number = number
        self.of = run
        self.history = run.history


class Writer(_Client):
    """Appends records, each again until it is confirmed by all replicas."""

    id = key = 0

    def __init__(self, run: ClusterRun, number: int, world: BrokerWorld | None, brokers: Sequence[SimBroker]) -> None:
        super().__init__(run, number, world, brokers)
        self._sequences = dict.fromkeys(TOPICS, 0)
        self._appends: dict[str, int] = {}
        """The tag of the append that is not confirmed, by topic."""

    async def work(self, client: RawClient) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.greet("writer", self.id, self.key)
        if not self.id:
            self.id, self.key = client.welcome.producer_id, client.welcome.producer_key
        while not self.is_over:
            for topic in TOPICS:
                await self._append(client, topic)
            await self.pause(1.5)

    async def _append(self, client: RawClient, topic: str) -> None:
        if topic not in self._appends:
            self.of.tags += 1
            self._appends[topic] = self.of.tags
            self.history.call(topic, self.number, "append", self.of.tags)
        tag = self._appends[topic]
        batch = records([str(tag)])
        batch.number(self.id, 0, self._sequences[topic], 0)
        with trio.fail_after(PATIENCE_S):
            await client.call(m.Publish(topic, acks=ALL, partition=0), [batch])
        next(it for it in self.history.operations if (it.partition, it.tag, it.kind) == (topic, tag, "append")).end()
        self._sequences[topic] += 1
        del self._appends[topic]


class Reader(_Client):
    """Reads the whole log now and then."""

    async def work(self, client: RawClient) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.greet("reader")
        while not self.is_over:
            with trio.fail_after(PATIENCE_S):
                await self.read(client)
            await self.pause(4.0)

    async def read(self, client: RawClient, *, is_last: bool = False) -> None:
        """Read the log; the last reader sees all that was confirmed before."""
        read = self.history.call("log", self.number, "read")
        try:
            while found := await client.fetch("log", offset=len(read.read)):  # The log only grows.
                read.read += map(int, found)
        except BaseException:
            self.history.forget([read])
            raise
        read.end()
        if not is_last:
            read.called_at = 0


class Taker(_Client):
    """Takes records of the queue one by one, and acks most of them."""

    async def work(self, client: RawClient) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.greet("taker")
            subscription = (await client.call(m.Subscribe("queue"))).subscription
        while not self.is_over:
            with trio.fail_after(PATIENCE_S):
                await self.take(client, subscription, acks_at=0.7)
            await self.pause(0.7)

    async def take(self, client: RawClient, subscription: int, acks_at: float = 1.0) -> bool:
        """Take one record, and ack it with this probability; returns whether there was one."""
        take = self.history.call("queue", self.number, "take")
        try:
            event = await client.pull(subscription, 1, wait_max_ms=1000)
        except BaseException:
            self.history.forget([take])
            raise
        if not event.batches:
            self.history.forget([take])
            return False
        take.tag = int(values(event.batches)[0])
        take.end()
        if self.rng.random() < acks_at:
            ack = self.history.call("queue", self.number, "ack", take.tag)
            refused = await client.settle(subscription, event)
            if not refused:
                ack.end()
            elif refused[0].code == NOT_CURRENT:
                self.history.forget([ack])  # The lease had ended before.
        return True


def history_of(seed: int) -> History:
    """The history of a seed."""
    run = ClusterRun(seed)
    run_simulation(seed, run.run, virtual_s_max=VIRTUAL_S_MAX)
    return run.history


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print("\n".join(history_of(int(text)).lines(text)))
