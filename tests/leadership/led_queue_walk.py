"""A random walk of a replicated queue over failovers: python led_queue_walk.py SEED.

The walk commits what it wants to when it wants to, also while consumers wait. At a failover the next leader's logs end
anywhere between the watermarks and the ends of the former one's, each log on its own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random

import trio
from led_topic import DATA, DEAD, LOGS, READ_ALL, STATE, LedTopic

from linn.core.batch.batch import RecordBatch
from linn.core.batch.steps import run_steps
from linn.core.delivery.delivery import Delivery
from linn.core.delivery.settlement import Settlement
from linn.core.delivery.vocabulary import Phase, Verdict
from linn.core.errors.replication import NotLeader
from linn.core.errors.tree import DeliveryFenced
from linn.core.log.partition import Partition
from linn.core.log.state_log import StateLog
from linn.core.log.storage import PartitionId
from linn.core.loop.waiting import WaitDeadline
from linn.core.queue.consumer import QueueConsumer
from linn.core.queue.dead_letter import OFFSET
from linn.core.queue.event import decode_events
from linn.core.queue.lease import LeaseSettings
from linn.core.queue.semantics import DeliverySemantics
from linn.core.queue.subscription import SharedSubscription
from linn.semantics.at_least_once import AtLeastOnce
from linn.semantics.at_most_once import AtMostOnce
from linn.semantics.exactly_once import ExactlyOnce
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

STEPS = 120
VERDICTS = Verdict.ACK, Verdict.ACK, Verdict.ACK, Verdict.NACK, Verdict.REJECT, Verdict.EXTEND
NAMES = "", "one", "two"


class LedQueueWalk:
    """One seed's walk, and what it knows of every record."""

    def __init__(self, seed: int, env: SimEnv, nursery: trio.Nursery) -> None:
        self.random = random = Random(seed)
        self.env = env
        self.nursery = nursery
        leases = LeaseSettings(lease_ms=2_000, max_deliveries=random.choice([None, 2]))
        choices: list[DeliverySemantics] = [AtLeastOnce(leases), AtMostOnce(), ExactlyOnce(leases)]
        self.semantics = random.choice(choices)
        self.names = NAMES[1:] if self.semantics.is_two_phase else NAMES
        self.topics = list[LedTopic]()
        self.free = list[QueueConsumer]()
        """Consumers that no task uses."""
        self.confirmed = set[int]()
        """Offsets with a confirmed ack, or a confirmed done."""
        self.decided: dict[int, tuple[str, int]] = {}
        """Offsets whose decision is confirmed, with its holder and delivery."""
        self.done = set[int]()
        """Offsets for which a done was sent."""
        self.delivered = set[int]()
        self.ids = set[int]()
        self.attempts = list[tuple[int, int, int]]()
        """(end of the state log at the delivery, offset, attempt) in this leadership."""
        self.floor: dict[int, int] = {}
        """Attempts, by offset, that no failover may forget."""
        self.bounds: list[dict[PartitionId, tuple[int, int]]] = []
        """The bounds of the logs of former leaders when they lost them."""

    @property
    def topic(self) -> LedTopic:
        return self.topics[-1]

    @property
    def subscription(self) -> SharedSubscription:
        return self.topic.queue.partition_queues[0].subscription

    # --- consumers ---------------------------------------------------------------------------------------------------

    async def consume(self) -> None:
        topic, random = self.topic, self.random
        consumer = self.free.pop() if self.free and random.random() < 0.7 else topic.consumer(random.choice(self.names))
        try:
            delivery = await consumer.next(random.randint(1, 4), READ_ALL, WaitDeadline(random.choice([0.0, 1.0])))
            if delivery.batches:
                self._note(topic, delivery)
                await trio.sleep(random.choice([0.0, 0.0, 0.5, 3.0]))
                self._settle(consumer, delivery)
        except DeliveryFenced:
            return  # Another one has its name.
        except NotLeader:
            self.expect(topic.queue.closed or not topic.partitions[STATE].leads, "a leader serves its consumers")
            return
        if topic is self.topic and not consumer.ended:
            self.free.append(consumer)

    def expect(self, holds: bool, law: str) -> None:
        assert holds, law

    def _note(self, topic: LedTopic, delivery: Delivery) -> None:
        offsets = offsets_of(delivery)
        for offset in offsets:
            assert offset not in self.confirmed, f"{offset} is delivered again, and its ack was confirmed"
            if self.semantics.settles_on_delivery:
                assert offset not in self.delivered, f"{offset} is delivered a second time"
        self.delivered.update(offsets)
        if delivery.phase == Phase.COMMIT:
            return
        assert delivery.delivery_id not in self.ids, "delivery ids are given once"
        self.ids.add(delivery.delivery_id)
        for offset in offsets:
            least = self.floor.get(offset, 0)
            assert delivery.attempt > least, f"{offset} has had {least} attempts, and this is {delivery.attempt}"
            if topic is self.topic and topic.partitions[STATE].leads:
                self.attempts.append((topic.end(STATE), offset, delivery.attempt))

    def _settle(self, consumer: QueueConsumer, delivery: Delivery) -> None:
        random, verdict = self.random, self.random.choice(VERDICTS)
        if self.semantics.settles_on_delivery:
            return
        if delivery.phase == Phase.COMMIT:
            verdict = Verdict.DONE
        elif self.semantics.is_two_phase and verdict == Verdict.ACK:
            verdict = Verdict.READY
        offsets = [offset for offset in offsets_of(delivery) if random.random() < 0.8]
        ms = 1_500 if verdict == Verdict.EXTEND else 0
        asked = [Settlement(0, delivery.delivery_id, offset, offset + 1, verdict, ms) for offset in offsets]
        outcome = run_steps(consumer.settle(asked))
        refused = {index for index, _ in outcome.refused}
        taken = [offset for index, offset in enumerate(offsets) if index not in refused]
        if verdict == Verdict.DONE:
            self.done.update(taken)

        def passed(failure: Exception | None) -> None:
            if failure is not None:
                assert isinstance(failure, NotLeader)
            elif verdict in (Verdict.ACK, Verdict.DONE):
                self.confirmed.update(taken)
            elif verdict == Verdict.READY:
                self.decided.update(dict.fromkeys(taken, (consumer.name, delivery.delivery_id)))

        for mark, end in outcome.awaits:
            mark.when_passed(end, passed)

    # --- the leader --------------------------------------------------------------------------------------------------

    async def commit_some(self) -> None:
        topic = self.topic
        for id, end in (await self._some_ends()).items():
            if not topic.queue.closed and topic.partitions[id].leads:
                topic.partitions[id].commit(end)

    async def _some_ends(self) -> dict[PartitionId, int]:
        """Ends of batches from the watermark on, one of each log."""
        topic = self.topic
        return {id: self.random.choice([topic.committed(id), *await topic.batch_ends(id)]) for id in LOGS}

    async def compact(self) -> None:
        log = self.topic.queue.partition_queues[0].log
        assert log.state is not None
        with suppress(NotLeader):
            await log.state.compact(log._snapshot, force=True)

    async def fail_over(self) -> None:
        old, random = self.topic, self.random
        ends = await self._some_ends()
        number, epoch = old.number + 1, old.epoch + 1
        knows_first = random.random() < 0.5
        if knows_first:
            old.queue.abandon(NotLeader("told", leader=number, epoch=epoch))
        new = await old.copied(number, ends)
        if not knows_first and random.random() < 0.3:
            old.lose_logs(number)
            await trio.lowlevel.checkpoint()
        old.lose(number)
        self.bounds.append({id: partition.log.bounds() for id, partition in old.partitions.items()})
        for end, offset, attempt in self.attempts:
            if end <= ends[STATE]:
                self.floor[offset] = max(attempt, self.floor.get(offset, 0))
        self.attempts.clear()
        self.free.clear()
        new.lead(epoch)
        self.topics.append(new)
        await self._check_trimmed(new)
        await new.open_queue(self.semantics)
        self._check_state()

    async def _check_trimmed(self, topic: LedTopic) -> None:
        fresh, start = SharedSubscription(self.semantics, 0), topic.partitions[DATA].start_offset
        async for record in StateLog(topic.partitions[STATE], self.env.clock).replay():
            for event in decode_events(record):
                fresh.apply(event)
        assert fresh.settled_before() >= start, "only what is settled in the committed state is trimmed"

    def _check_state(self) -> None:
        self.subscription.check()
        for offset in self.confirmed:
            assert not self.subscription.unsettled(offset, offset + 1), f"the confirmed ack of {offset} is lost"
        now = {offset: it.decision for it in self.subscription.decided() for offset in range(it.first, it.end)}
        for offset, (name, delivery_id) in self.decided.items():
            if offset in now:
                assert (now[offset].holder.name, now[offset].delivery_id) == (name, delivery_id)
            else:
                assert offset in self.done, f"the confirmed decision of {offset} is lost"

    # --- the walk ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        topic = await LedTopic(self.env, self.nursery).make()
        topic.lead(1)
        self.topics.append(topic)
        await topic.open_queue(self.semantics)
        steps: list[tuple[int, Callable[[], object]]] = [
            (20, lambda: self.topic.publish(self.random.randint(1, 3))),
            (40, lambda: self.nursery.start_soon(self.commit_some)),
            (40, lambda: self.nursery.start_soon(self.consume)),
            (4, lambda: self.nursery.start_soon(self.compact)),
        ]
        for _ in range(STEPS):
            (step,) = self.random.choices([step for _, step in steps], [weight for weight, _ in steps])
            step()
            if self.random.random() < 0.05:
                await self.fail_over()
            await trio.sleep(self.random.choice([0.0, 0.0, 0.0, 0.1, 1.0]))
        await self.fail_over()
        await self._finish()

    async def _finish(self) -> None:
        """Drain the queue, and check the end."""
        topic = self.topic
        topic.commits_at_once = True
        topic.commit()
        for _ in range(400):
            self._join_all()
            if self.subscription.unsettled_count(topic.end(DATA)) == 0:
                break
            await self.consume()
            await trio.sleep(0.3)
        else:
            raise AssertionError("a record is not delivered")
        await trio.sleep(10)
        for former, bounds in zip(self.topics, self.bounds, strict=False):
            assert {id: it.log.bounds() for id, it in former.partitions.items()} == bounds, "a former leader writes"
            assert former.running == 0, "a task of a former leader goes on"
        copied = await labels(topic.partitions[DEAD])
        assert len(copied) == len({*copied}), "a dead letter was copied twice"
        everything = range(topic.end(DATA))
        if not self.semantics.settles_on_delivery:
            # An attempt counts from the lease on, so that a leader's death may take the last one.
            assert self.delivered.union(copied).issuperset(everything), "a record was never delivered"

    def _join_all(self) -> None:
        for name in NAMES[1:]:
            if not self.topic.queue.is_connected(name):
                self.free.append(self.topic.consumer(name))


def offsets_of(delivery: Delivery) -> list[int]:
    return [offset for batch in delivery.batches for offset in range(batch.base_offset, batch.end_offset)]


async def labels(dead: Partition) -> list[int]:
    """The offsets of which there are copies."""
    found, (offset, end) = list[int](), dead.log.bounds()
    while offset < end:
        for batch in await dead.log.read(offset, READ_ALL):
            opened = RecordBatch(batch.message)
            found += [int(opened.record(index).labels[OFFSET]) for index in range(opened.count)]
            offset = batch.end_offset
    return found


@contextmanager
def without_a_line() -> Iterator[None]:
    """Nothing that a walk does is worth a warning."""
    lines, handler = list[str](), logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("linn").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("linn").removeHandler(handler)
    assert not lines, lines[0]


def walk(seed: int) -> None:
    async def scenario(env: SimEnv) -> None:
        async with trio.open_nursery() as nursery:
            await LedQueueWalk(seed, env, nursery).run()
            nursery.cancel_scope.cancel()

    with without_a_line():
        run_simulation(seed, scenario)


if __name__ == "__main__":
    walk(int(sys.argv[1]))
