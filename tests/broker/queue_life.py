"""A random life of one queue with everything at once, and what must hold of it: python queue_life.py SEED [SEED ...].

Publishers and consumers, whose topic has an order, limits, times to live, ids and dead letters, and one or two phases;
transactions; changes of kind, order and limits while records are leased; clocks that jump; kills and losses of power.
The model is what clients were answered, in plain lists. It checks what is delivered, each choice of an order against
all that was ready at that moment, and in the end that each record has come to one end that its topic allows.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import trio
from choices_of_orders import KEYLESS, check_choice
from raw_client import ALWAYS, HAND_ID, RawClient, Refused, after_power_loss, broker_on, connected
from test_transactions import Owner

from linn.core.batch.batch import CONTROL
from linn.core.batch.builder import build_from_records, with_key_hashes
from linn.core.batch.record import Record
from linn.core.broker.broker import Broker
from linn.core.env.steady_clock import SteadyClock
from linn.core.errors.tree import LinnError
from linn.core.queue.lease import Lease
from linn.core.queue.partition_queue import PartitionQueue
from linn.core.queue.subscription import SharedSubscription
from linn.core.queue.subscription_log import SubscriptionLog
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

DEEDS = 20
"""Deeds in each life of the broker."""
FOR_EVER_MS = 1 << 60
IN_FLIGHT_MS = 500
"""Time from a delivery to its arrival, at most."""
JUMP_MS = 3_000
"""The largest jump of the clock."""
KEYS = 4
ORDERS = ("fifo", "fifo", "priority", "fair", "key")
OVERFLOWS = ("block", "reject", "drop-head", "dead-letter")
LIMITS = ("unlimited", "unlimited", 5, 9, 20)
TTLS = ("unlimited", "unlimited", "15s")


@dataclass
class Sent:
    """A record that was published, and what its publisher knows of it."""

    ttl_ms: int
    id: UUID
    state: str = "unknown"
    """"stored", "refused", "aborted"; "unknown": it may be stored."""


@dataclass(eq=False)
class Consumer:
    """A consumer, and the deliveries that it has not settled, with their values."""

    name: str
    client: RawClient
    subscription: int
    held: list[tuple[Event, list[str]]] = field(default_factory=list)


class QueueLife:
    """The life of one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.sent: dict[str, Sent] = {}
        self.at: dict[tuple[int, int], str] = {}
        """Values by partition and offset, as far as they are known."""
        self.known_end: dict[int, int] = {}
        self.settled: set[str] = set()
        """Records whose settlement was answered."""
        self.asked: set[str] = set()
        """Records that a consumer may have settled, or rejected."""
        self.dropped: set[tuple[int, int]] = set()
        """Partitions and offsets of records that made room for others."""
        self.holder: dict[str, str] = {}
        """The consumers, by name, to which records were decided."""
        self.open: tuple[list[str], list[str]] = [], []
        """Records that the open transaction has published, and those that it settles."""
        self.in_doubt: set[str] = set()
        """Records of transactions of which nobody was told the end: one that was aborted may be sent once more."""
        self.lives = 3 if seed % 4 == 0 else 2
        self.two_phase = rng.random() < 0.25
        self.has_dedup = rng.random() < 0.5
        self.partitions = rng.choice([1, 1, 2])
        self.ttl_ms = FOR_EVER_MS
        self.settings: dict[str, object] = {
            "kind": rng.choice(["queue", "queue", "both"]),
            "partitions": self.partitions,
            "lease": "10s",
            "dead_letter": "dead",
            "delivery": "exactly-once" if self.two_phase else "at-least-once",
            "max_deliveries": rng.choice([2, 3, 20]),
            "redelivery_delay": rng.choice(["0s", "0s", "2s"]),
            "order": rng.choice(ORDERS),
            "order_by": "label.tenant",
        }
        if self.has_dedup:
            self.settings["dedup"] = "1h"
        self.env: SimEnv
        self.broker: Broker
        self.publisher: RawClient
        self.consumers: list[Consumer] = []
        self.wrong: list[str] = []
        self.is_ending = False
        self.branch = HAND_ID
        """The producer id of the last transaction."""

    # --- lives -------------------------------------------------------------------------------------------------------

    async def live(self, env: SimEnv) -> None:
        """All lives of the broker."""
        for life in range(self.lives):
            is_last = life == self.lives - 1
            if not is_last and self.rng.random() < 0.7:
                env.disk.crash_at = len(env.disk.operations) + self.rng.randint(5, 250)
            await env.run_until_death(lambda env, life=life, is_last=is_last: self._work(env, life, is_last))  # type: ignore[misc]
            if is_last:
                assert not env.is_dead
                return
            if not env.is_dead:
                self.rng.choice([env.kill, env.crash])()
            env = await after_power_loss(env, ALWAYS)
            env.clock.jump(self.rng.choice([0, 0, -JUMP_MS, JUMP_MS]))

    async def _work(self, env: SimEnv, life: int, is_last: bool) -> None:
        self.env = env
        if self.open[0] or self.open[1]:  # The connection of its owner is gone, and nobody goes on with it.
            self._end_open("aborted")
        async with broker_on(env, ALWAYS + '[topics.dead]\nkind = "stream"\n') as self.broker:
            self.publisher, self.consumers = await connected(env), []
            with suppress(Refused):  # It was made in an earlier life.
                await self.publisher.administer("topic.create", name="t", settings=self.settings)
            with noted_drops(self), checked_grants(self):
                for name in ("ann", "bob"):
                    await self._join(name)
                for _ in range(DEEDS):
                    await self.rng.choice(_DEEDS)(self)
                    assert not self.wrong, self.wrong
                await self._replay()
                if is_last:
                    await self._end()
                    assert not self.wrong, self.wrong

    async def _join(self, name: str) -> None:
        client = await connected(self.env)
        options: dict[str, Any] = {"member": name, "two_phase": True} if self.two_phase else {}
        shared = {"shared": ""}
        made = await client.call(m.Subscribe("t", **options, **shared))
        self.consumers.append(Consumer(name, client, made.subscription))

    # --- publishing --------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        """Publish new records, or some once more whose ids the topic knows."""
        rng, resent = self.rng, list[str]()
        if self.has_dedup and rng.random() < 0.3:
            again = [value for value, sent in self.sent.items() if sent.state in ("stored", "unknown")]
            resent = rng.sample(again, min(len(again), rng.randint(1, 3)))
        values = resent or [self._new_value() for _ in range(rng.randint(1, 4))]
        partition = partition_of(values[0]) if resent else None
        values = [value for value in values if partition in (None, partition_of(value))]
        await self._send(values)

    def _new_value(self, *, is_plain: bool = False) -> str:
        """A value that says all about its record; `is_plain`: it goes to the first partition, and has no properties."""
        rng, number = self.rng, len(self.sent)
        partition = 0 if is_plain else rng.randrange(self.partitions)
        priority = 0 if is_plain or self.settings["order"] == "fifo" else rng.randrange(10)
        ttl_ms = 0 if is_plain else rng.choice([0, 0, 0, 2_000, 20_000])
        value = f"{partition}/{priority}/{KEYLESS if is_plain else rng.randrange(KEYS)}/{number}"
        self.sent[value] = Sent(ttl_ms or FOR_EVER_MS, UUID(int=number + 1))
        return value

    async def _send(self, values: list[str]) -> None:
        for partition in range(self.partitions):
            some = [value for value in values if partition_of(value) == partition]
            if not some:
                continue
            # With hashes, as clients send them: an order by key that comes later needs them.
            batch = with_key_hashes(build_from_records(list(map(self._record, some)), base_id=len(self.sent) << 64))
            asked = await self.publisher.send(m.Publish("t", partition=partition), [batch])
            with trio.move_on_after(1):
                try:
                    answer = (await self.publisher.answer(asked)).message
                except Refused as refused:
                    self._refused(some, refused)
                    continue
                assert isinstance(answer, m.Published)
                (placement,) = answer.placements
                if placement.refused:  # Those with priorities, if it has no order; or all.
                    refused = [value for value in some if value.split("/")[1] != "0" or not placement.copies]
                    self._refused(refused, Refused(m.Failed(placement.refused[0].code, "")))
                    some = [value for value in some if value not in refused]
                self._stored(partition, placement.base_offset, some)
                continue
            # It waits for room, and nobody waits for it.
            await self.publisher.stream.aclose()
            self.publisher = await connected(self.env)

    def _stored(self, partition: int, offset: int, values: list[str]) -> None:
        for place, value in enumerate(values):
            self.sent[value].state = "stored"
            if offset >= 0:
                self.at[partition, offset + place] = value

    def check_code(self, refused: Refused, *codes: str) -> None:
        """Note that something was refused for another reason than these."""
        if refused.code not in codes:
            self.wrong.append(f"{refused}")

    def _refused(self, values: list[str], refused: Refused) -> None:
        self.check_code(refused, "topic.full", "message.in_doubt", "message.unsupported")
        for value in values:
            if self.sent[value].state == "unknown" and not self.has_dedup:
                self.sent[value].state = "refused"

    def _record(self, value: str) -> Record:
        _, priority, key, _ = value.split("/")
        sent = self.sent[value]
        return Record(
            value=value.encode(),
            key=key.encode(),
            priority=int(priority),
            labels={"tenant": key},
            ttl_ms=sent.ttl_ms if sent.ttl_ms < FOR_EVER_MS else 0,
            id=sent.id if self.has_dedup else None,
        )

    async def transact(self) -> None:
        """Publish in a transaction, and settle records in it; mostly end it."""
        rng = self.rng
        self.branch += 1
        owner = await Owner.open(self.publisher, branch=self.branch)
        values = [self._new_value(is_plain=True) for _ in range(rng.randint(0, 2))]
        holding = [it for it in self.consumers if it.held] if not self.two_phase else []
        self.open = values, []
        for value in values:
            with trio.move_on_after(1) as waits:
                try:
                    await owner.publish("t", [value], self.branch, id=self.sent[value].id)
                except Refused as refused:
                    self.check_code(refused, "topic.full", "transaction.aborted")
                    self.sent[value].state = "aborted"
            if waits.cancelled_caught:
                self._end_open("aborted")
                await self.publisher.stream.aclose()
                self.publisher = await connected(self.env)
                return
        if holding and rng.random() < 0.7:
            consumer = rng.choice(holding)
            event, held = consumer.held.pop(rng.randrange(len(consumer.held)))
            self.open, owner.client = (values, held), consumer.client
            with suppress(Refused):
                await owner.settle(consumer.subscription, event.message, event.batches)  # type: ignore[arg-type]
        if rng.random() < 0.5:
            await trio.sleep(rng.choice([0.1, 3]))
        commit = rng.random() < 0.6
        if commit:
            self.asked.update(self.open[1])
            self.in_doubt.update(values)
            self._end_open("unknown")
        else:
            self._end_open("aborted")
        owner.client = self.publisher
        await self._learn()
        try:
            await owner.end(commit=commit, branches=[self.branch])
        except Refused as refused:
            self.check_code(refused, "transaction.aborted")
        else:
            self.in_doubt.difference_update(values)
            for value in values if commit else ():
                if self.sent[value].state == "unknown":
                    self.sent[value].state = "stored"

    def _end_open(self, state: str) -> None:
        """Forget the open transaction; "unknown": it may be committed."""
        for value in self.open[0]:
            if self.sent[value].state == "unknown":
                self.sent[value].state = state
        self.open = [], []

    # --- consuming ---------------------------------------------------------------------------------------------------

    async def take(self) -> None:
        """Have a consumer take some records, and check them."""
        await self._learn()
        await self._take(self.rng.choice(self.consumers), self.rng.randint(1, 4))

    async def _take(self, consumer: Consumer, count: int) -> bool:
        try:
            event = await consumer.client.pull(consumer.subscription, count)
        except Refused as refused:
            self.check_code(refused, "topic.unknown", "delivery.fenced", "delivery.subscription_unknown")
            self.consumers.remove(consumer)
            await self._join(consumer.name)
            return False
        if not event.batches:
            return False
        deliver: Any = event.message
        found: list[str] = []
        for batch in event.batches:
            age_ms = self.env.clock.now_ms() - batch.append_time_ms
            for record in batch.records():
                value = (record.value or b"").decode()
                found.append(value)
                sent = self.sent[value]
                assert value not in self.settled, f"what is settled does not come back: {value}"
                assert sent.state not in ("refused", "aborted"), f"{value} was {sent.state}"
                if deliver.phase != m.Phase.COMMIT:
                    ttl_ms = min(sent.ttl_ms, self.ttl_ms)
                    assert age_ms < ttl_ms + IN_FLIGHT_MS, "no consumer gets a record that has expired"
                    assert value not in self.holder, "what is decided is its holder's alone"
                else:
                    assert self.holder.get(value, consumer.name) == consumer.name, "to its holder alone"
        consumer.held.append((event, found))
        return True

    async def settle(self) -> None:
        """Have a consumer settle a delivery."""
        holding = [it for it in self.consumers if it.held]
        if holding:
            consumer = self.rng.choice(holding)
            event, found = consumer.held.pop(self.rng.randrange(len(consumer.held)))
            verdict = self.rng.choice([m.Verdict.ACK] * 4 + [m.Verdict.NACK, m.Verdict.NACK, m.Verdict.REJECT])
            await self._settle(consumer, event, found, verdict)

    async def _settle(self, consumer: Consumer, event: Event, found: list[str], verdict: m.Verdict) -> None:
        message: Any = event.message
        if self.two_phase and (verdict == m.Verdict.ACK or message.phase == m.Phase.COMMIT):
            if message.phase != m.Phase.COMMIT:
                if await consumer.client.settle(consumer.subscription, event, m.Verdict.READY):
                    return
                self.holder |= dict.fromkeys(found, consumer.name)
                if not self.is_ending and self.rng.random() < 0.2:
                    return  # It comes again when the consumer is back.
            verdict = m.Verdict.DONE
        if verdict != m.Verdict.NACK:
            self.asked.update(found)
        delay_ms = self.rng.choice([0, 3_000]) if verdict == m.Verdict.NACK else 0
        refused = await consumer.client.settle(consumer.subscription, event, verdict, delay_ms)
        if not refused and verdict in (m.Verdict.ACK, m.Verdict.DONE):
            self.settled.update(found)
            for value in found:
                self.holder.pop(value, None)

    async def lose(self) -> None:
        """Lose a consumer, or have it leave, and let it come again."""
        consumer = self.consumers.pop(self.rng.randrange(len(self.consumers)))
        if self.rng.random() < 0.5:
            with suppress(Refused):
                await consumer.client.call(m.Unsubscribe(consumer.subscription))
        await consumer.client.stream.aclose()
        await self._join(consumer.name)

    # --- time and changes --------------------------------------------------------------------------------------------

    async def pass_time(self) -> None:
        """Let time pass, or leases end."""
        await trio.sleep(self.rng.choice([0, 0.5, 2, 2, 12]))

    async def jump(self) -> None:
        """Set the wall clock."""
        self.env.clock.jump(self.rng.choice([-JUMP_MS, -1_000, 1_000, JUMP_MS]))

    async def change(self) -> None:
        """Change a setting, whatever is leased."""
        rng = self.rng
        change: dict[str, object] = rng.choice(
            [
                {"order": rng.choice(ORDERS)},
                {"order": rng.choice(ORDERS)},
                {"records_max": rng.choice(LIMITS), "overflow": rng.choice(OVERFLOWS)},
                {"ttl": rng.choice(TTLS)},
                {"kind": rng.choice(["queue", "both"])},
            ]
        )
        if change.get("kind") == "both":
            change |= {"records_max": "unlimited", "overflow": "block"}  # Others are for queues alone.
        elif "records_max" in change:
            change["kind"] = "queue"
        if "ttl" in change:
            self.ttl_ms = FOR_EVER_MS  # Which one holds is not known until the answer.
        try:
            await self.publisher.administer("topic.alter", name="t", settings=change)
        finally:
            self.settings |= change
        if "ttl" in change:
            self.ttl_ms = FOR_EVER_MS if change["ttl"] == "unlimited" else 15_000

    # --- looking -----------------------------------------------------------------------------------------------------

    def parts(self) -> list[PartitionQueue]:
        """The parts of the queue."""
        topic = self.broker.topics.get("t")
        return [] if topic is None or topic.queue is None else topic.queue.partition_queues

    async def _learn(self) -> None:
        """Read the log, to know which record is at which offset."""
        for part in self.parts():
            index, partition = part.partition.id.index, part.partition
            at = max(self.known_end.get(index, 0), partition.log.bounds()[0])
            with suppress(LinnError):
                for batch in await partition.read_log(at, 1 << 20):
                    if not batch.attributes & CONTROL:
                        for place, record in enumerate(batch.records()):
                            self.at[index, batch.offset(place)] = (record.value or b"").decode()
                    self.known_end[index] = batch.end_offset

    def granted(
        self, subscription: SharedSubscription, lease: Lease, ready: dict[int, int], in_flight: set[int], end: int
    ) -> None:
        """Check the choice of an order, with all that was ready and in flight before."""
        for part in self.parts():
            if part.subscription is subscription:
                index = part.partition.id.index
                values = {
                    offset: self.at[index, offset] for offset in (*ready, *in_flight) if (index, offset) in self.at
                }
                self.wrong += check_choice(subscription, lease, ready, in_flight, values, end)

    async def _replay(self) -> None:
        """Replay the state logs as a machine with another clock would: the state is the same."""
        for part in self.parts():
            if not part.log.is_open:
                continue
            await part.log.until_committed()
            replica = SharedSubscription(part.subscription.semantics, 0)
            assert part.log.state is not None
            read_to = part.log.state.partition.log.bounds()[1]
            if part.log.state.committed.offset != read_to:
                continue  # Something is happening.
            self.env.clock.jump(3_600_000)
            log = SubscriptionLog(part.partition, replica, part.log.state, SteadyClock(self.env.clock), part.spawn)
            await log.replay(part.partition.log.bounds()[1])
            self.env.clock.jump(-3_600_000)
            here, there = plain_state(part.subscription), plain_state(replica)
            if part.subscription.events_waiting or part.log.state.committed.offset != read_to:
                continue  # Something has happened meanwhile.
            assert here == there, f"a replay gives the same state: {here ^ there}"

    # --- the end -----------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Consume what is left, and look at what has become of each record."""
        if self.open[0] or self.open[1]:
            self._end_open("aborted")
        await trio.sleep(75)  # Transactions and leases are over.
        self.publisher = await connected(self.env)
        await self.publisher.administer("topic.alter", name="t", settings={"records_max": "unlimited"})
        self.consumers, self.is_ending = [], True
        for name in ("ann", "bob"):
            await self._join(name)
        idle = 0
        while idle < 5 and not self.wrong:
            await self._learn()
            idle += 1
            for consumer in list(self.consumers):
                if await self._take(consumer, 100):
                    await self._settle(consumer, *consumer.held.pop(), m.Verdict.ACK)
                    idle = 0
            if idle:
                await trio.sleep(1.5)
        left = [part.subscription.unsettled_count(part.partition.stable_offset) for part in self.parts()]
        assert not any(left), f"all is settled in the end: {left} are not"
        self._check_ends(await self._dead())

    async def _dead(self) -> Counter[str]:
        client, found, offset = await connected(self.env), Counter[str](), 0
        while batches := (await client.ask(m.Fetch("dead", 0, offset, bytes_max=1 << 20))).batches:
            for batch in batches:
                found.update((record.value or b"").decode() for record in batch.records())
            offset = batches[-1].end_offset
        return found

    def _check_ends(self, dead: Counter[str]) -> None:
        ends = dead + Counter(self.settled)
        twice = [value for value, count in ends.items() if count > 1]
        assert twice == [], f"each record has one end: {twice}"
        never = [value for value in ends if self.sent[value].state in ("refused", "aborted")]
        assert never == [], f"what is refused or aborted is no record: {never}"
        may_be_gone = {*self.asked, *(self.at[place] for place in self.dropped if place in self.at)}
        stored = [value for value, sent in self.sent.items() if sent.state == "stored"]
        lost = [value for value in stored if value not in ends and value not in may_be_gone]
        assert lost == [], f"what was confirmed is delivered, dead, or dropped by its limit: {lost}"
        copies = Counter([value for value in self.at.values() if value not in self.in_doubt])
        again = [value for value, count in copies.items() if count > 1 and self.sent[value].state != "aborted"]
        assert again == [] or not self.has_dedup, f"each id is stored once: {again}"


_DEEDS: list[Callable[[QueueLife], Awaitable[None]]] = [
    *[QueueLife.publish] * 6,
    *[QueueLife.take] * 8,
    *[QueueLife.settle] * 7,
    *[QueueLife.pass_time] * 2,
    *[QueueLife.change] * 2,
    QueueLife.transact,
    QueueLife.lose,
    QueueLife.jump,
]


def plain_state(subscription: SharedSubscription) -> set[tuple[object, ...]]:
    """The state of each record but those that were never delivered; leased records are returned as far as a log says,
    and records that a start has returned are leased.
    """
    states = subscription._states
    rows: list[tuple[int, int, object]] = [(first, end, "settled") for first, end in states.settled]
    for lease in states.leases:
        rows += [(first, end, lease.stored_attempt) for first, end in lease.ranges()]
    rows += states.orphaned
    rows += [(first, end, attempts) for first, end, attempts in states.returned.ready if attempts]
    rows += [*states.returned.delayed, *states.decided, *states.causes]
    rows += [(dead.first, dead.end, (dead.attempts, dead.reason, dead.intent)) for dead in states.dead.ranges()]
    return {(at, state) for first, end, state in rows for at in range(first, end)} | {("low", states.low)}


def partition_of(value: str) -> int:
    """The partition to which a value goes."""
    return int(value.partition("/")[0])


@contextmanager
def checked_grants(life: QueueLife) -> Iterator[None]:
    """Have each grant of a lease checked against what was ready at that moment."""
    acquire = SharedSubscription.acquire

    def checked(
        self: SharedSubscription, consumer: int, records_max: int, end: int, now: float, *, skips_lost: bool = False
    ) -> Lease | None:
        states = self._states
        ready = {at: attempts for first, stop, attempts in states.returned.ready for at in range(first, stop)}
        ready |= dict.fromkeys(range(states.cursor, end), 0)
        held = [span for lease in states.leases for span in lease.ranges()]
        held += [row[:2] for row in (*states.decided, *states.returned.delayed)]
        in_flight = {at for first, stop in held for at in range(first, stop)}
        lease = acquire(self, consumer, records_max, end, now, skips_lost=skips_lost)
        if lease is not None:
            life.granted(self, lease, ready, in_flight, end)
        return lease

    SharedSubscription.acquire = checked  # type: ignore[method-assign]
    try:
        yield
    finally:
        SharedSubscription.acquire = acquire  # type: ignore[method-assign]


@contextmanager
def noted_drops(life: QueueLife) -> Iterator[None]:
    """Have records noted that make room for others."""
    end_waiting = PartitionQueue.end_waiting

    def noted(self: PartitionQueue, records: int, *, is_dead: bool) -> int:
        subscription, index = self.subscription, self.partition.id.index
        end = self.partition.log.bounds()[1]
        before = [at for first, stop in subscription.unsettled(0, end) for at in range(first, stop)]
        ended = end_waiting(self, records, is_dead=is_dead)
        left = {at for first, stop in subscription.unsettled(0, end) for at in range(first, stop)}
        life.dropped.update((index, at) for at in before if at not in left)
        return ended

    PartitionQueue.end_waiting = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        PartitionQueue.end_waiting = end_waiting  # type: ignore[method-assign]


def walk(seed: int) -> None:
    """Run one life. Raises AssertionError where a promise was broken."""
    run_simulation(seed, QueueLife(seed).live)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        walk(int(number))
