"""A run of transactions whose history is checked: clients that die, a broker that dies and loses power, a bad network.

Law: a partition is a log of entries. A transaction's first publish there puts an open one at its end, whose place is
taken in between the call and the confirmation; the transaction's end commits or aborts it. A read returns the committed
entries before the first open one, in order. Each of these happens at one moment between its call and its return, and
linearizability is local, so each partition is checked by itself.

A set of committed transactions would not do. A reader waits for an open transaction, and meanwhile does not see one
that was committed behind it: "a commit that was answered is in each later read" is not promised, and a read that waits
until all is decided that was stored when it began may still see a commit without one that was answered before, because
that one lies behind another open transaction. With the open entries in the model no read needs to wait, and it is known
exactly what each may see.

An operation whose client was not told happens at any time after its call, or never, but before a later transaction of
the same name has begun. The broker may abort what is not told to be committed, so that is an operation of each
transaction.

    python tests/linearizability/linearizable_run.py SEED [SEED ...] > HISTORIES
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.path.insert(0, str(Path(__file__).parents[1] / "broker"))

import trio
from history import History, Operation
from raw_client import ADDRESS, after_power_loss, broker_on

import linn
from linn.client import Client
from linn.core.broker.broker import Broker
from linn.core.errors.tree import (
    ConnectionLost,
    LinnError,
    RequestTimeout,
    SyncFailed,
    TransactionAborted,
    TransactionFenced,
)
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

PARTITIONS = ("left", "right")
"""Two topics of one partition each."""
NAMES = ("ann", "bob", "cid", "ann")
"""The names of the writers' transactions: two of them fence one another."""
READERS = 3
ROUNDS = 7
"""Number of a writer's transactions and single publishes."""
READS = 12
"""Number of a reader's reads while the writers work, all along."""
TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 1.5
DONE_S_MAX = 400.0
TOML = """
[storage.segmented-log]
fsync = "always"
segment_bytes_max = 4096
[topics.left]
kind = "stream"
retention = "forever"
[topics.right]
kind = "both"
retention = "forever"
"""


class Run:
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.history = History()
        self.attempts: dict[str, list[Attempt]] = {name: [] for name in NAMES}
        self.tags = 0
        self.faults = self.rng.choices(FAULTS, k=self.rng.choice([1, 3, 6, 10]))
        self.sync_delay_s = self.rng.choice([0.0, 0.005, 0.05])
        self.aborts_at = self.rng.choice([0.05, 0.2, 0.5])
        self.danger = self.rng.choice([0.0, 0.05, 0.2])
        """Probability that something happens while a commit is not answered."""
        self.pauses_s = self.rng.choice([[0.0, 0.001, 0.01], [0.0, 0.02, 0.2], [0.0, 0.3, 1.0]])
        self.running: Broker | None = None
        self.broker: SimEnv

    async def run(self, env: SimEnv) -> None:
        """Live until each client has done its rounds."""
        self.broker = SimEnv(self.seed, name="broker", world=env.world)
        self.writers = [Writer(self, number, f"writer {number}", env) for number in range(len(NAMES))]
        self.readers = [Reader(self, len(NAMES) + number, f"reader {number}", env) for number in range(READERS)]
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            nursery.start_soon(self._serve)
            nursery.start_soon(self._disturb)
            with trio.fail_after(DONE_S_MAX):
                async with trio.open_nursery() as working:
                    for each in (*self.writers, *self.readers):
                        working.start_soon(each.live)
            nursery.cancel_scope.cancel()

    async def _serve(self) -> None:
        async def process(env: SimEnv) -> None:
            async with broker_on(env, TOML) as broker:
                self.running = broker
                await broker.wait_stopped()

        while True:
            self.broker.disk.sync_delay_s_max = self.sync_delay_s
            try:
                if not await self.broker.run_until_death(process):
                    self.broker.kill()  # What an ended process leaves open, the system closes.
            except* SyncFailed:
                self.broker.kill()
                self.broker = self.broker.restart()
                self.broker.crash()
            await trio.sleep(self.rng.choice([0.05, 0.5, 2.5]))
            self.broker = await after_power_loss(self.broker, TOML)

    async def _disturb(self) -> None:
        async with trio.open_nursery() as nursery:
            for fault in self.faults:
                await trio.sleep(self.rng.choice([0.05, 0.3, 1.0, 3.0]))
                nursery.start_soon(fault, self)

    async def endanger(self, writer: Writer) -> None:
        """Have something happen while a writer waits to be told of its commit."""
        await trio.sleep(self.rng.choice([0.0, 0.0005, 0.002, 0.01, 0.05]))
        await self.rng.choice(DANGERS)(self)
        if self.rng.random() < 0.5:
            self.broker.world.sever(writer.node, "broker")

    # --- faults ---

    async def kill_the_broker(self) -> None:
        self.broker.kill()

    async def lose_power(self) -> None:
        self.broker.crash()

    async def die_in_an_operation(self) -> None:
        disk = self.broker.disk
        disk.crash_at = len(disk.operations) + self.rng.randint(0, 25)

    async def fail_a_sync(self) -> None:
        self.broker.disk.fail_sync_at = self.broker.disk.sync_count + self.rng.randint(0, 10)

    async def stop(self) -> None:
        if self.running is not None:
            self.running.stop()

    async def kill_a_writer(self) -> None:
        self.rng.choice(self.writers).env.kill()

    async def sever(self) -> None:
        self.broker.world.sever(self._client(), "broker")

    async def cut(self) -> None:
        link = (self._client(), "broker")
        self.broker.world.cut(*link)
        await trio.sleep(self.rng.uniform(0.05, 6))
        self.broker.world.heal(*link)

    def _client(self) -> str:
        return self.rng.choice([*self.writers, *self.readers]).node


FAULTS: list[Callable[[Run], Awaitable[None]]] = [
    Run.kill_the_broker,
    Run.lose_power,
    Run.die_in_an_operation,
    Run.fail_a_sync,
    Run.stop,
    Run.kill_a_writer,
    Run.sever,
    Run.sever,
    Run.cut,
]
DANGERS = FAULTS[:4]


class Machine:
    """A client's machine, which is on again soon after it was killed."""

    def __init__(self, run: Run, number: int, node: str, probe: SimEnv) -> None:
        self.node = node
        self.env = SimEnv(run.seed, name=node, world=probe.world)
        self.number = number
        self.rng = random.Random(f"{run.seed}/{node}")
        self.world = run
        self.history = run.history
        self.is_done = False

    async def live(self) -> None:
        """Work until all is done."""
        while not self.is_done:
            if await self.env.run_until_death(self._process):
                await trio.sleep(self.rng.choice([0.05, 0.5]))
                self.env = self.env.restart()

    async def _process(self, env: SimEnv) -> None:
        while not self.is_done:
            with suppress(LinnError):
                options: dict[str, Any] = {"request_timeout_s": REQUEST_TIMEOUT_S, "connect_timeout_s": 1.0}
                async with linn.connect(f"linn://{ADDRESS}", env=env, **options) as client:
                    while not self.is_done:
                        await self.pause()
                        await self.work(client)
            await trio.sleep(0.05)

    async def pause(self) -> None:
        """Wait, perhaps."""
        await trio.sleep(self.rng.choice(self.world.pauses_s))

    async def work(self, client: Client) -> None:
        """Do one thing. Raises LinnError: go on with another client."""
        raise NotImplementedError


class Reader(Machine):
    """Reads whole partitions: some while the writers work, and each of them in the end."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self._last = [*PARTITIONS]
        self._count = 0

    async def work(self, client: Client) -> None:
        """Read one partition."""
        if all(writer.is_done for writer in self.world.writers):
            await self._read(client, self._last[-1])
            self._last.pop()
            self.is_done = not self._last
        elif self.world.tags * READS > self._count * ROUNDS * len(NAMES):
            self._count += 1
            await self._read(client, self.rng.choice(PARTITIONS))
        else:
            await trio.sleep(self.rng.choice([0.01, 0.05]))

    async def _read(self, client: Client, partition: str) -> None:
        """Read a partition from its beginning, until the broker has nothing more that may be read."""
        read = self.history.call(partition, self.number, "read")
        bytes_max = self.rng.choice([1, 500, 1 << 20])
        try:
            values, at = list[str](), 0
            while True:
                fetched = await client.fetch(partition, 0, at, bytes_max=bytes_max)
                values += [(value or b"").decode() for batch in fetched.batches for value in batch.values]
                if not fetched.batches and fetched.next_offset == at:
                    break
                at = fetched.next_offset
        except BaseException:
            self.history.forget([read])
            raise
        read.read = list(dict.fromkeys(map(int, values)))
        read.end()


class Writer(Machine):
    """Publishes in transactions, and by itself now and then."""

    count = 0

    async def work(self, client: Client) -> None:
        """Do one transaction, or publish one record."""
        if self.count == ROUNDS:
            self.is_done = True
            return
        self.count += 1
        self.world.tags += 1
        tag = self.world.tags
        if self.rng.random() < 0.15:
            await self._append(client, tag)
        else:
            await self._transact(client, Attempt(self, tag))

    async def _append(self, client: Client, tag: int) -> None:
        append = self.history.call(self.rng.choice(PARTITIONS), self.number, "append", tag)
        async with client.producer(append.partition, linger_ms=0) as producer:
            await producer.publish(b"%d" % tag)
            append.end()

    async def _transact(self, client: Client, attempt: Attempt) -> None:
        try:
            async with client.transaction(NAMES[self.number], timeout_s=TIMEOUT_S) as tx:
                for partition in self.rng.choice([["left"], ["right"], ["left", "right"], ["right", "left", "right"]]):
                    await self.pause()
                    with attempt.publishing(partition):
                        await tx.publish(partition, b"%d" % attempt.tag)
                await self.pause()
                if self.rng.random() < 0.1:
                    await trio.sleep(TIMEOUT_S * self.rng.choice([0.9, 1.0, 1.5]))
                if self.rng.random() < self.world.aborts_at:
                    await tx.abort()
                else:
                    attempt.ask_for_commit()
                    if self.rng.random() < self.world.danger:
                        self.world.nursery.start_soon(self.world.endanger, self)
            attempt.end(is_committed=bool(attempt.commits))
        except TransactionAborted:
            attempt.end(is_committed=False)
            raise
        except (ConnectionLost, RequestTimeout):
            raise
        except TransactionFenced:
            if not attempt.commits:
                attempt.end(is_committed=False)
            raise  # Otherwise the answer may have been lost, and the broker knows the last commit of a name only.
        except LinnError:
            self.history.forget(attempt.commits)
            raise


class Attempt:
    """A transaction, as its client knows it: what it did in each partition."""

    def __init__(self, writer: Writer, tag: int) -> None:
        self.tag = tag
        self.commits: list[Operation] = []
        self._history = writer.history
        self._client = writer.number
        self._begins: dict[str, Operation] = {}
        self._aborts: list[Operation] = []
        self._opened_at = self._history.tick()
        self._others = writer.world.attempts[NAMES[writer.number]]
        """The transactions of its name."""
        self._others.append(self)

    @contextmanager
    def publishing(self, partition: str) -> Iterator[None]:
        """Note a publish to a partition, of which the first one begins the transaction there."""
        if partition in self._begins:
            yield
            return
        begin = self._begins[partition] = self._call(partition, "begin")
        self._aborts.append(self._call(partition, "abort"))
        yield
        begin.end()
        for other in self._others:
            if any(each.called_at < self._opened_at for each in other._begins.values()):
                other._end_unsure()

    def _end_unsure(self) -> None:
        """Note that the next transaction of its name has begun: before, this one has ended everywhere."""
        for operation in (*self._begins.values(), *self._aborts, *self.commits):
            operation.end_unsure()

    def ask_for_commit(self) -> None:
        """Note that the client is about to ask for the commit."""
        self.commits = [self._call(partition, "commit") for partition in self._begins]

    def end(self, *, is_committed: bool) -> None:
        """Note what the client was told."""
        self._history.forget(self._aborts if is_committed else self.commits)
        for operation in self.commits if is_committed else self._aborts:
            operation.end()

    def _call(self, partition: str, kind: str) -> Operation:
        return self._history.call(partition, self._client, kind, self.tag)


def history_of(seed: int) -> History:
    """The history of a seed."""
    run = Run(seed)
    run_simulation(seed, run.run, virtual_s_max=2 * DONE_S_MAX)
    return run.history


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print("\n".join(history_of(int(text)).lines(text)))
