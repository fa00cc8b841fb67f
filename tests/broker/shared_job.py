"""A job of several tasks that writes numbered batches in shared transactions, as a streaming query of Spark does.

Each life of the job has a run of its own, which fences the one before. Tasks fail, and run twice; a life ends at the
first error, and the next one repeats the batch that the last one did not know to be done, with the same sequence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import trio

from linn.client import Client
from linn.client.transactions.shared import SharedTransactions, TransactionTicket
from linn.core.errors.tree import LinnError
from linn.testing.sim_env import SimEnv

BATCHES = 4
TASKS = 2
NAME = "job"


class TaskFailed(Exception):
    """A task failed by itself."""


class Checkpoint:
    """State that outlives each life of the job."""

    def __init__(self) -> None:
        self.done = 0
        """The number of batches that are done for certain."""

    @property
    def is_complete(self) -> bool:
        return self.done == BATCHES


class SharedJob:
    """The job on one machine. Several of them with the same checkpoint are the job and those that it has replaced."""

    def __init__(
        self,
        seed: int,
        env: SimEnv,
        checkpoint: Checkpoint,
        connect: Callable[[SimEnv], Client],
        targets: tuple[str, ...],
        timeout_s: float,
    ) -> None:
        self.env = env
        self._checkpoint = checkpoint
        self._connect = connect
        self._targets = targets
        self._timeout_s = timeout_s
        self._rng = random.Random(f"{seed}/{env.name}")

    async def run(self) -> None:
        """Live until all batches are done."""
        while not self._checkpoint.is_complete:
            has_died = await self.env.run_until_death(self._live)
            await trio.sleep(self._rng.choice([0.05, 0.5, 3.0]))
            if has_died:
                self.env = self.env.restart()

    async def _live(self, env: SimEnv) -> None:
        run = self._rng.getrandbits(63) + 1
        with suppress(LinnError, TaskFailed):
            async with self._connect(env) as client:
                shared = client.shared_transactions(NAME, run=run, timeout_s=self._timeout_s)
                while not self._checkpoint.is_complete:
                    batch = self._checkpoint.done
                    await self._write(shared, batch)
                    if self._rng.random() < 0.2:
                        raise TaskFailed  # It does not know that the batch is done.
                    self._checkpoint.done = max(self._checkpoint.done, batch + 1)
                    await trio.sleep(self._rng.choice([0.0, 0.1, 0.5]))

    async def _write(self, shared: SharedTransactions, batch: int) -> None:
        """Write a batch and commit it. Raises LinnError, TaskFailed."""
        counted: list[tuple[int, TransactionTicket]] = []
        for task in range(TASKS):
            for is_counted in self._rng.choice([[True], [True], [False, True], [True, False]]):
                ticket = await shared.join()
                with suppress(TaskFailed):
                    async with shared.producer(ticket, self._targets[task % len(self._targets)]) as producer:
                        await producer.publish_many(rows_of(batch, task))
                        if not is_counted and self._rng.random() < 0.5:
                            raise TaskFailed
                if is_counted:
                    counted.append((producer.id, ticket))
        (_, ticket), *_ = counted  # Not that of an attempt that does not count, which may be of a later transaction.
        if any(other != ticket for _, other in counted):
            raise TaskFailed  # The broker was restarted, or the transaction timed out.
        producers = [producer_id for producer_id, _ in counted]
        await shared.commit(ticket, producers, sequence=batch + 1, identity=f"batch {batch}")


def rows_of(batch: int, task: int) -> list[bytes]:
    """The rows of a task in a batch."""
    return [b"%s-%d-%d-%d" % (NAME.encode(), batch, task, row) for row in range(1 + (batch + task) % 3)]


def expected(targets: tuple[str, ...]) -> Iterator[tuple[str, Counter[str]]]:
    """List the rows that each topic has of the job when it is done."""
    for index, topic in enumerate(targets):
        tasks = range(index, TASKS, len(targets))
        yield topic, Counter(row.decode() for batch in range(BATCHES) for task in tasks for row in rows_of(batch, task))
