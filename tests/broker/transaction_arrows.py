"""One run of transactions, in which single messages and log records go wrong: one seed is one run.

Workers take orders from a queue and visits from a stream, and publish what they make of them to two topics, in
transactions by hand and with `client.process`. Others take over their names. In some runs a job of several tasks writes
to the same topics. In the end each input has been made into one output, each transaction has taken effect whole or not
at all, as its client was told, nobody has read anything of one that was not to be committed, and the job has written
each row once.

    python tests/broker/transaction_arrows.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import product
from typing import Any

import trio
from arrow_world import DONE_S_MAX, PROXY, REQUEST_TIMEOUT_S, ArrowWorld, Fault, Mortal, deaths_at
from raw_client import ADDRESS, RawClient, Refused, records, values
from shared_job import NAME, Checkpoint, SharedJob, expected

import linn
from linn.client import Batch, Client, Message, Output
from linn.core.batch.batch import CONTROL, TRANSACTIONAL, RecordBatch
from linn.core.broker.broker import Broker
from linn.core.errors.tree import DeliveryNotCurrent, GroupFenced, LinnError, TransactionAborted
from linn.core.groups.event import OffsetPending, PendingEnded, decode_group_events
from linn.core.queue.event import Decided, Returned, Settled, decode_events, single_events
from linn.core.queue.event_run import Snapshot
from linn.core.transactions.event import decode_transaction_events
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

REQUESTS = {
    m.OpenTransactions: ("open",),
    m.AddBranch: ("branch",),
    m.SettleInTransaction: ("ack", "offset"),
    m.EndTransaction: ("commit", "abort"),
}
"""The arrows that each request of the protocol may be; a publish of transactional batches is one besides."""
LOGGED = {
    "Named": "named",
    "Branches": "branch noted",
    "Committed": "decided",
    "Aborted": "abort decided",
    "NameForgotten": "",
    "Started": "",
    "Joined": "",
    "Led": "",
}
"""The arrow that each kind of event in the transactions' log is; "": none. A broker alone writes no Joined and no Led:
`tests/cluster/test_killed_in_transactions.py` is about those.
"""
TO_BROKER = ("publish", *(arrow for arrows in REQUESTS.values() for arrow in arrows))
TO_CLIENT = tuple(f"answer to {arrow}" for arrow in TO_BROKER)
IN_THE_LOGS = (
    *filter(None, LOGGED.values()),
    "snapshot",
    "data",
    "commit marker",
    "abort marker",
    "held",
    "settled",
    "returned",
    "position noted",
    "position",
)
"""Records of the transactions' log, of the topics', of the queue's and of the groups'."""
ARROWS = (*TO_BROKER, *TO_CLIENT, *IN_THE_LOGS)
RARE = tuple(arrow for arrow in ARROWS if not arrow.endswith(("publish", "commit", "data", "commit marker", "decided")))
"""Arrows of which a run has a few at most."""
SETTLING = {
    "orders": ("ack", "answer to ack", "held", "settled", "returned"),
    "visits": ("offset", "answer to offset", "position noted", "position"),
}
"""Arrows that come of what is settled, by topic."""
TAKE_OVER = "another takes over the name"
FAULTS: list[Fault] = [
    *deaths_at(ARROWS),
    *product((*TO_BROKER, *TO_CLIENT), ["lose it", "cut it in the middle", "stall it"]),
    *product(TO_BROKER, ["send it over a fenced connection", "send it twice", "send it late as well"]),
    *product(TO_BROKER, ["fill the disk before it", f"{TAKE_OVER} before it", f"{TAKE_OVER} after it"]),
]
"""Each arrow of the protocol with all that may happen to it."""
INPUTS = 16
PARTITIONS = 2
TIMEOUT_S = 3.0
TARGETS = ("out", "copies")
TOML = """
[storage.segmented-log]
fsync = "always"
segment_bytes_max = 4096
[topics.orders]
kind = "queue"
retention = "forever"
lease = "5s"
[topics.visits]
kind = "stream"
retention = "forever"
partitions = 2
[topics.out]
kind = "stream"
retention = "forever"
partitions = 2
[topics.copies]
kind = "both"
retention = "forever"
partitions = 2
"""


class Failed(Exception):
    """An application's own error."""


class Attempt:
    """One transaction by hand, as its client knows it."""

    def __init__(self, tag: str, inputs: Sequence[str]) -> None:
        self.text = "|".join([tag, *inputs])
        """The value of its records: a name that no other has, and its inputs."""
        self.published = Counter[str]()
        """The number of its records by topic."""
        self.is_asked = False
        """Whether it may have been committed."""
        self.outcome = ""
        """The word that its client got: "committed", "aborted"; "": none, and it does not know."""


class TransactionWorld(ArrowWorld):
    """The world of one seed."""

    faults_of_protocol = FAULTS
    rare = RARE

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        arrow = FAULTS[seed % len(FAULTS)][0]
        self.aborts_at = 0.5 if "abort" in arrow or arrow == "returned" else 0.1
        """Probability that a transaction is aborted by its client, in one way or another."""
        self.oversleeps_at = 0.03
        """Probability that a transaction is open for longer than it may be."""
        self.compacts = arrow == "snapshot"
        self.begins_with = next((topic for topic, arrows in SETTLING.items() if arrow in arrows), "")
        """The topic whose messages a worker takes first; "": either, or none."""
        self.sync_delay_s = self.rng.choice([0.0, 0.005, 0.05])
        self.text = TOML
        self.published: list[str] = []
        """The inputs that are stored for certain."""
        self.attempts: dict[str, Attempt] = {}
        """Transactions by the value of their records."""
        self.read: dict[tuple[str, int, int], str] = {}
        """Values by topic, partition and offset, as consumers have read them."""
        self.stored: dict[tuple[str, int], list[tuple[int, str]]] = {}
        """Offsets and values by topic and partition, as they are in the end."""
        self.is_stopping = False
        self.jobs = random.Random(f"{seed}/jobs").choice([0, 0, 1, 2])
        """The number of machines that run the job: with two, each takes it over from the other."""
        self.checkpoint = Checkpoint()

    def make_clients(self) -> Sequence[Mortal]:
        self.workers = [Worker(self, name) for name in ("ann", "bob")]
        self.other = Worker(self, "ann", "zombie", ADDRESS)
        return [*self.workers, *map(self._make_job, range(self.jobs))]

    def _make_job(self, number: int) -> SharedJob:
        env = SimEnv(self.seed, name=f"job {number}", world=self.probe.world)
        return SharedJob(self.seed, env, self.checkpoint, connected, TARGETS, TIMEOUT_S)

    # --- what the broker logs ---

    def look_at(self, broker: Broker) -> None:
        """Watch the logs of everything that transactions touch."""
        log: Any = broker.transactions.log
        if log.state is not None:
            self.watch(log.state, "append", decisions_logged)
        else:
            make = log._make

            async def made() -> Any:
                state = await make()
                self.watch(state, "append", decisions_logged)
                return state

            log._make = made
        for topic in TARGETS:
            for partition in broker.topics[topic].partitions.values():
                self.watch(partition, "append", batch_logged)
        orders = broker.topics["orders"].queue
        assert orders is not None
        self.watch(orders.partition_queues[0].log.state, "append", holds_logged)
        for topic in broker.topics.values():
            if topic.positions is not None:
                self.watch(topic.positions, "append", positions_logged)
        adopt = broker.groups.adopt

        async def adopted(topic: str, state: Any, ends: Any) -> Any:
            self.watch(state, "append", positions_logged)
            return await adopt(topic, state, ends)

        groups: Any = broker.groups
        groups.adopt = adopted

    async def disturb(self) -> None:
        while self.compacts and not self.is_over:
            await trio.sleep(0.2)
            log: Any = self.running.transactions.log
            if (state := log.state) is not None:
                with suppress(RuntimeError):  # The broker has ended, and the next one does not run yet.
                    log._spawn(partial(state.compact, log._snapshot, force=True))

    # --- messages ---

    def request_arrow(self, event: Event) -> str:
        match event.message:
            case m.Publish():
                return "publish" if event.batches[0].attributes & TRANSACTIONAL else ""
            case m.SettleInTransaction(entries=entries):
                # Ids of deliveries begin far above the epochs of groups.
                return "ack" if entries[0].delivery_id >> 32 else "offset"
            case m.EndTransaction(is_commit=is_commit):
                return "commit" if is_commit else "abort"
        return REQUESTS.get(type(event.message), ("",))[0]

    def answer_arrow(self, event: Event, asked: str) -> str:
        return f"answer to {asked}" if asked else ""

    def do_else(self, what: str) -> None:
        assert what.startswith(TAKE_OVER), what
        self.nursery.start_soon(self._take_over)

    async def _take_over(self) -> None:
        """Have another process do a transaction of a worker's name, and perhaps hang in the middle."""
        if self.is_stopping:
            return
        if self.other.env.is_dead:
            self.other.env = self.other.env.restart()
        self.other.name = self.rng.choice(["ann", "bob", "ann/0", "bob/0"])
        with trio.move_on_after(self.rng.choice([0.1, 1, 10])):
            await self.other.env.run_until_death(self.other.take_over)

    # --- work ---

    async def work(self) -> None:
        self.nursery.start_soon(self._read, "out")
        self.nursery.start_soon(self._read, "copies")
        await self._publish()
        await self._until(self._is_settled)
        while self.jobs and not self.checkpoint.is_complete:
            await trio.sleep(0.2)
        self.is_stopping = True
        for each in (*self.workers, self.other):
            each.env.kill()
        await self._until(self._is_ended)
        await self._until(self._fetch)

    async def _publish(self) -> None:
        number, firsts = 0, ["orders", "visits"]
        while number < INPUTS:
            with suppress(LinnError, EOFError, Refused):
                client = RawClient(await self.probe.net.connect(ADDRESS))
                await client.greet()
                while number < INPUTS:
                    topic = firsts.pop() if firsts else self.rng.choice(["orders", "visits"])
                    some = [f"{topic}-{number + at}" for at in range(self.rng.randint(1, 3))]
                    number += len(some)
                    # Sent once: a batch that no answer has come for may be stored or not.
                    partition = number % (1 if topic == "orders" else PARTITIONS)
                    await client.call(m.Publish(topic, partition=partition), [records(some)])
                    self.published += some
                    await trio.sleep(self.rng.choice([0.0, 0.01, 0.1, 0.5]))
            await trio.sleep(0.1)

    async def _read(self, topic: str) -> None:
        """Read what is committed, from the beginning, and see that it stays as it is."""
        kind: dict[str, Any] = {"shared": None} if topic == "copies" else {"start": "earliest"}
        while True:
            with suppress(LinnError):
                async with linn.connect(f"linn://{ADDRESS}", env=self.probe, request_timeout_s=5) as client:
                    async with client.consumer(topic, **kind) as consumer:
                        async for message in consumer:
                            self._see(topic, message.partition, message.offset, message.text)
                            if topic == "copies":
                                await message.ack()
            await trio.sleep(0.2)

    def _see(self, topic: str, partition: int, offset: int, value: str) -> None:
        before = self.read.setdefault((topic, partition, offset), value)
        if before != value:
            self.untrue = f"offset {offset} of {topic}/{partition} was {before}, and is {value}"
        attempt = self.attempts.get(value)
        if attempt is not None and not attempt.is_asked:
            self.untrue = f"{value} is read, and nobody has asked for its commit"

    async def _until(self, condition: Callable[[RawClient], Any]) -> None:
        while True:
            with suppress(LinnError, EOFError, Refused), trio.move_on_after(5):
                client = RawClient(await self.probe.net.connect(ADDRESS))
                await client.greet()
                is_so = await condition(client)
                await client.stream.aclose()
                if is_so:
                    return
            await trio.sleep(0.2)

    async def _is_settled(self, client: RawClient) -> bool:
        groups = await client.administer("group.list", topic="visits")
        orders = (await client.administer("topic.show", name="orders"))["queue"]
        return not orders["unsettled"] and [group["lag"] for group in groups] == [0]

    async def _is_ended(self, client: RawClient) -> bool:
        shown = [await client.administer("transaction.list", state=state) for state in ("open", "ending")]
        # What a start has found open and is decided waits for room to be marked.
        places = [place for topic in TARGETS for place in self.running.topics[topic].partitions.values()]
        is_marked = all(place.stable_offset == place.log.bounds()[1] for place in places)
        return is_marked and not any(some["transactions"] for some in shown)

    async def _fetch(self, client: RawClient) -> bool:
        for place in product(TARGETS, range(PARTITIONS)):
            self.stored[place] = await stored_values(client, *place)
        return True

    # --- what has come of it ---

    async def check(self) -> None:
        for place, found in self.stored.items():
            for offset, value in found:
                self._see(*place, offset, value)
        assert not self.untrue, self.untrue
        assert sum(map(len, self.stored.values())) == len(self.read), "what was read is not stored any more"
        counts = {topic: Counter[str]() for topic in TARGETS}
        for (topic, _), found in self.stored.items():
            counts[topic].update(value for _, value in found)
        for attempt in self.attempts.values():
            found = Counter({topic: counts[topic][attempt.text] for topic in TARGETS})
            whole, nothing = found == attempt.published, not found.total()
            assert whole or nothing, f"{attempt.text} took effect in part: {found}, not {attempt.published}"
            assert attempt.outcome != "committed" or whole, f"{attempt.text} was committed, and is not there"
            assert not attempt.outcome or attempt.outcome == "committed" or nothing, f"{attempt.text} was aborted"
            assert attempt.is_asked or nothing, f"{attempt.text} was never to be committed"
        for topic in TARGETS:
            made = Counter(name for value, count in counts[topic].items() for name in set(value.split("|")[1:]))
            for value, count in counts[topic].items():
                assert count == 1 or value in self.attempts or value.startswith(NAME), (
                    f"{value} was published {count} times to {topic}"
                )
            twice = {name: count for name, count in made.items() if count > 1 and name}
            assert not twice, f"made more than once into {topic}: {twice}"
            missing = [name for name in self.published if not made[name]]
            assert not missing, f"never made into {topic}: {missing}"
        for topic, rows in expected(TARGETS) if self.jobs else ():
            found = Counter({value: count for value, count in counts[topic].items() if value.startswith(NAME)})
            assert found == rows, f"the job has written {found} to {topic}, not {rows}"


def connected(env: SimEnv, address: str = PROXY) -> Client:
    """A client of the broker, which is impatient."""
    return linn.connect(f"linn://{address}", env=env, request_timeout_s=REQUEST_TIMEOUT_S, connect_timeout_s=1)


class Worker:
    """One worker by its name, which may be killed and started again."""

    def __init__(self, world: TransactionWorld, name: str, node: str = "", address: str = PROXY) -> None:
        """`node`: the name of its machine, if that is another."""
        self.name = name
        self.env = SimEnv(world.seed, name=node or name, world=world.probe.world)
        self._node = node or name
        self._world = world
        self._rng = random.Random(f"{world.seed}/{self._node}")
        self._address = address

    async def run(self) -> None:
        while not self._world.is_stopping:
            if not await self.env.run_until_death(self._live):
                return
            await trio.sleep(self._rng.choice([0.05, 0.5, 3.0]))
            if not self._world.is_stopping:
                self.env = self.env.restart()

    @contextmanager
    def _suppressed(self) -> Iterator[None]:
        with suppress(LinnError, Failed):
            yield

    async def _live(self, env: SimEnv) -> None:
        first = {"orders": [self._orders], "visits": [self._visits], "": []}[self._world.begins_with]
        while True:
            work = self._rng.choice(first or [self._orders, self._visits, self._alone, self._process])
            first = []
            with self._suppressed():
                async with connected(env, self._address) as client:
                    await work(client)
            await trio.sleep(0.1)

    async def take_over(self, env: SimEnv) -> None:
        """Do a transaction of the name it has now."""
        with self._suppressed():
            async with connected(env, self._address) as client:
                await self._transact(client, None, None)

    async def _orders(self, client: Client) -> None:
        async with client.consumer("orders", prefetch=self._rng.choice([1, 4, 20])) as consumer:
            for _ in range(self._rng.randint(1, 5)):
                with trio.move_on_after(1) as idle:
                    batch = await consumer.next_batch()
                if not idle.cancelled_caught:
                    await self._transact(client, batch, "ack")

    async def _visits(self, client: Client) -> None:
        async with client.consumer("visits", "readers", prefetch=self._rng.choice([1, 4, 20])) as consumer:
            for _ in range(self._rng.randint(1, 5)):
                with trio.move_on_after(2) as idle:
                    batch = await consumer.next_batch()
                if not idle.cancelled_caught:
                    await self._transact(client, batch, "commit")

    async def _alone(self, client: Client) -> None:
        for _ in range(self._rng.randint(1, 3)):
            await self._transact(client, None, None)

    async def _process(self, client: Client) -> None:
        source, group = self._rng.choice([("orders", None), ("visits", "readers")])
        prefetch = self._rng.choice([1, 4, 20])
        with trio.move_on_after(self._rng.uniform(1, 4)):
            await client.process(
                source, self._make, "out", name=self.name, group=group, prefetch=prefetch, timeout_s=TIMEOUT_S
            )

    async def _make(self, message: Message) -> list[Output]:
        if self._rng.random() < 0.2:
            await trio.sleep(self._rng.choice([0.001, 0.01, 0.3]))
        if self._rng.random() < self._world.aborts_at / 4:
            raise Failed
        value = f"|{message.text}".encode()
        return [Output(value, key=value), Output(value, topic="copies", key=value)]

    async def _transact(self, client: Client, batch: Batch | None, settle: str | None) -> None:
        """Publish in one transaction, and settle a batch with it. Raises LinnError, Failed."""
        inputs = [] if batch is None else [(value or b"").decode() for value in batch.values]
        attempt = Attempt(f"{self._node}-{len(self._world.attempts)}", inputs)
        self._world.attempts[attempt.text] = attempt
        try:
            async with client.transaction(self.name, timeout_s=TIMEOUT_S) as tx:
                if batch is not None:
                    getattr(tx, str(settle))(batch)
                for topic in self._rng.choice([["out", "copies"], ["copies", "out"], ["out", "copies", "out"]]):
                    some = [attempt.text.encode()] * self._rng.choice([1, 1, 2])
                    attempt.published[topic] += len(some)
                    await tx.publish_many(topic, some, keys=[b"%d" % self._rng.randint(0, 9) for _ in some])
                if self._rng.random() < self._world.oversleeps_at:
                    await trio.sleep(TIMEOUT_S * self._rng.choice([0.9, 1.0, 1.5]))
                if self._rng.random() < self._world.aborts_at:
                    if self._rng.random() < 0.5:
                        raise Failed
                    await tx.abort()
                else:
                    attempt.is_asked = True
            attempt.outcome = "committed" if attempt.is_asked else "aborted"
        except (TransactionAborted, DeliveryNotCurrent, GroupFenced):
            attempt.outcome = "aborted"
            raise


# --- arrows in the logs ---


def decisions_logged(record: bytes) -> list[str]:
    """The arrows that a record of the transactions' log is."""
    is_restart, events = decode_transaction_events(record)
    return ["snapshot"] if is_restart else list(filter(None, [LOGGED[type(event).__name__] for event in events]))


def batch_logged(batch: RecordBatch) -> list[str]:
    """The arrow that a batch of a topic is."""
    if not batch.attributes & TRANSACTIONAL:
        return []
    if not batch.attributes & CONTROL:
        return ["data"]
    return ["commit marker" if batch.first_sequence else "abort marker"]


def holds_logged(record: bytes) -> list[str]:
    """The arrows that a record of the queue's state log is."""
    events = decode_events(record)
    if isinstance(events[0], Snapshot):
        return []
    names = {Decided: "held", Settled: "settled", Returned: "returned"}
    return list(dict.fromkeys(names[type(event)] for event in single_events(events) if type(event) in names))


def positions_logged(record: bytes) -> list[str]:
    """The arrows that a record of a groups' log is."""
    is_restart, entries = decode_group_events(record)
    events = [event for _, some in entries for event in some]
    if is_restart:
        return []
    names = {OffsetPending: "position noted", PendingEnded: "position"}
    return list(dict.fromkeys(names[type(event)] for event in events if type(event) in names))


async def stored_values(client: RawClient, topic: str, partition: int) -> list[tuple[int, str]]:
    """All committed values of a partition with their offsets."""
    found: list[tuple[int, str]] = []
    offset = 0
    while True:
        event = await client.ask(m.Fetch(topic, partition, offset))
        for batch in event.batches:
            texts = values([batch])
            found += [(batch.offset(index), text) for index, text in enumerate(texts)]
        if not event.batches:
            return found
        offset = event.batches[-1].end_offset


def walk(seed: int) -> TransactionWorld:
    """Run a seed. Raises what went wrong."""
    world = TransactionWorld(seed)
    run_simulation(seed, world.run, virtual_s_max=2 * DONE_S_MAX)
    return world


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print(f"seed {text} holds, with {dict(walk(int(text)).made)}")
