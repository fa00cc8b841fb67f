"""A queue with replicas whose logs are thinned while brokers die: everything follows from the seed.

Every twentieth message is stuck: workers take it, and settle all others. One producer publishes all the time, and sends
its last batches again to each leader; another one begins, and goes on in the end. Brokers are killed, some lose their
disks, and others lead next.

Laws: at the end each broker can lead. It has each message that is not settled, where it was confirmed, and none twice,
and it stores no batch again. The epochs of its log are those of the batches. All replicas become smaller.

    python tests/cluster/thinned_replicas_run.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "broker")]

import trio
from broker_world import SimBroker, broker_world
from cluster_world import until
from raw_client import RawClient, Refused, records
from replicas_seen import ALL, in_sync, replica_at
from replicated_topic import made, next_leader, until_alike
from test_operated_brokers import operate

from linn.core.batch.batch import RecordBatch
from linn.core.errors.tree import LinnError
from linn.core.log.facts import LogFacts
from linn.core.log.partition import Partition
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m

SMALL = 'segment_bytes_max = "16KiB"\nindex_interval_bytes = 512\n'
VALUE_BYTES = 400
STUCK = 20
"""One in so many messages is not settled."""
WINDOW = 3
"""Batches that are sent again."""
LOST = (Refused, EOFError, trio.BrokenResourceError, trio.TooSlowError, LinnError)


def toml_of(fsync: str) -> str:
    return f'[storage.segmented-log]\nfsync = "{fsync}"\n{SMALL}'


def log_at(broker: SimBroker, number: int = 0) -> Partition:
    replica = replica_at(broker, "t")
    assert replica is not None
    return replica.logs[number]


async def stored_at(broker: SimBroker, number: int = 0) -> list[RecordBatch]:
    """All batches of one log."""
    log, found = log_at(broker, number).log, list[RecordBatch]()
    offset, end = log.bounds()
    while offset < end:
        found += await log.read(offset, 1 << 40)
        offset = found[-1].end_offset
    return found


def values_by_offset(batches: list[RecordBatch]) -> dict[int, int]:
    return {batch.offset(index): int(batch.value(index) or b"") for batch in batches for index in range(batch.count)}


class Messages:
    """The messages of all publishers, by their numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.offsets: dict[int, int] = {}
        """The offset of each confirmed message."""

    def take(self, count: int) -> range:
        """The numbers of the next messages."""
        self.count += count
        return range(self.count - count, self.count)

    def confirmed(self, numbers: range, base_offset: int) -> None:
        for offset, number in enumerate(numbers, base_offset):
            assert self.offsets.setdefault(number, offset) == offset, f"message {number} was stored again"


class Publisher:
    """One producer, which numbers its batches, at whichever broker leads."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._ids = (0, 0)
        self._sequence = 0
        self._batches: list[tuple[int, range]] = []
        """The sequence and the messages of each batch, the last one perhaps without an answer."""

    async def connected(self, broker: SimBroker) -> RawClient:
        client = RawClient(await broker.world.env.net.connect(broker.address))
        welcome = await client.greet("raw", *self._ids)
        if not self._ids[0]:
            self._ids = welcome.producer_id, welcome.producer_key
        return client

    async def publish(self, client: RawClient, count: int) -> None:
        """Publish the next messages as one batch."""
        self._batches.append((self._sequence, self._messages.take(count)))
        self._sequence += count
        await self._send(client, *self._batches[-1])

    async def repeat(self, client: RawClient) -> None:
        """Send the last batches again, in order."""
        for batch in self._batches[-WINDOW:]:
            await self._send(client, *batch)

    async def _send(self, client: RawClient, sequence: int, numbers: range) -> None:
        batch = records([f"{number:<{VALUE_BYTES}}" for number in numbers])
        batch.number(self._ids[0], 0, sequence, 0)
        (placement,) = (await client.call(m.Publish("t", partition=0, acks=ALL), [batch])).placements
        self._messages.confirmed(numbers, placement.base_offset)


class Worker:
    """Settles all but the stuck messages."""

    def __init__(self) -> None:
        self.asked: set[int] = set()
        """Messages whose settlement was asked for, and may have come."""
        self.settled: set[int] = set()

    async def work(self, client: RawClient, is_enough: Callable[[], bool]) -> None:
        subscription = (await client.call(m.Subscribe("t"))).subscription
        while not is_enough():
            event = await client.pull(subscription, 16, wait_max_ms=100)
            if event.batches:
                await self._settle(client, subscription, event.message, values_by_offset(event.batches))

    async def _settle(self, client: RawClient, subscription: int, deliver: m.Deliver, found: dict[int, int]) -> None:
        assert not self.settled & set(found.values()), "a settled message came again"
        done = {offset: number for offset, number in found.items() if number % STUCK}
        about = deliver.partition, deliver.delivery_id
        self.asked.update(done.values())
        if done:
            entries = [m.Settlement(*about, offset, offset + 1) for offset in done]
            assert (await client.call(m.Settle(subscription, entries))).refused == []
            self.settled.update(done.values())


class Run:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"thinned replicas {seed}")
        self.messages, self.worker = Messages(), Worker()
        self.publisher, self.early = Publisher(self.messages), Publisher(self.messages)
        self.said: list[str] = []

    async def run(self, env: SimEnv) -> None:
        async with broker_world(env, self.seed) as world:
            self.brokers = await world.brokers(toml=toml_of(self.rng.choice(["os", "always"])))
            leader = await made(self.brokers, lease="1h", min_in_sync=2)
            await self.early.publish(await self.early.connected(leader), 3)
            try:
                for keeps_disk in (*self.rng.choices([True, False], k=3), False):
                    leader, last = await self._live(leader, keeps_disk=keeps_disk)
                await self._end(leader, last)
            except BaseException as error:
                error.add_note("; ".join(self.said))
                raise

    async def _live(self, leader: SimBroker, *, keeps_disk: bool) -> tuple[SimBroker, SimBroker]:
        """Publish and work until a broker dies, and then until it is in sync again; returns the next leader, and it."""
        dead = self.rng.choice(self.brokers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._session, leader, 40)
            await trio.sleep(self.rng.choice([0.01, 0.1, 0.5, 20]))
            self.said.append(f"{dead.number} dies{'' if keeps_disk else ' with its disk'}, {leader.number} leads")
            dead.env.kill()
            await dead.ended()
        if not keeps_disk:
            dead.replace_disk()
        leader = await next_leader([it for it in self.brokers if it is not dead])
        await self._session(leader, 40)
        await trio.sleep(self.rng.choice([0, 1, 15, 25]))
        await until(lambda: dead.number not in in_sync(leader))
        await dead.start()
        await until(lambda: len(in_sync(leader)) == 3)
        return leader, dead

    async def _session(self, leader: SimBroker, batches: int) -> None:
        """Publish and settle at a leader until so many batches are there, or it has died."""
        try:
            client = await self.publisher.connected(leader)
            other = await leader.client()
            await self.publisher.repeat(client)
            is_over = False
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.worker.work, other, lambda: is_over)
                for _ in range(batches):
                    await self.publisher.publish(client, self.rng.randint(1, 5))
                    if self.rng.random() < 0.1:
                        await trio.sleep(self.rng.uniform(0, 6))
                is_over = True
        except* LOST as errors:
            self.said.append(f"{errors.exceptions[0]!r}")

    async def _end(self, leader: SimBroker, last: SimBroker) -> None:
        """Let all replicas be thinned, and check them; then let each of them lead, the last one that died first."""
        await self._session(leader, 1)
        await trio.sleep(40)
        await until_alike(leader, self.brokers)
        size = VALUE_BYTES * self.messages.count
        for broker in self.brokers:
            await self._check(broker)
            kept = log_at(broker).log.size_bytes()
            assert kept < size / 2, f"node {broker.number} keeps {kept} bytes of {size}"
        for broker in (last, *[it for it in self.brokers if it is not last]):
            await operate(broker, "elect", topic="t", leader=broker.number)
            await until(lambda broker=broker: broker.broker.topic("t").led_by is None)  # type: ignore[misc]
            for publisher in (self.early, self.publisher):
                client = await publisher.connected(broker)
                await publisher.repeat(client)
                await publisher.publish(client, 1)
        left = [int(value) for value in await client.taken("t", count=10_000)]
        expected = [number for number in range(self.messages.count) if number not in self.worker.asked]
        assert sorted(set(left) - self.worker.asked) == expected, "each message that is not settled comes"
        assert len(left) == len(set(left)), "none comes twice"

    async def _check(self, broker: SimBroker) -> None:
        batches = await stored_at(broker)
        there, where = values_by_offset(batches), f"at node {broker.number}"
        assert len(set(there.values())) == len(there), f"a message is there twice {where}"
        offsets = {number: offset for offset, number in there.items()}
        for number, offset in self.messages.offsets.items():
            assert offsets.get(number, offset) == offset, f"message {number} has moved {where}"
            assert number in offsets or number in self.worker.asked, f"message {number} is lost {where}"
        log = log_at(broker).log
        rows, found = log.facts.epochs.rows(), LogFacts.of(batches).epochs.rows()
        later = [row for row in rows if row[1] > batches[0].base_offset]
        assert found[1:] == later, f"the batches are of other epochs {where}: {found}, not {rows}"


def run_seed(seed: int) -> Run:
    """Run one seed. Raises AssertionError."""
    run = Run(seed)
    run_simulation(seed, run.run)
    return run


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run_seed(int(argument))
        print(argument, "passed")
