"""Clients of queues with orders, times, limits and ids in a cluster under faults, and the answers that they were given.

A value is "PARTITION/PRIORITY/KEY/NUMBER", as `choices_of_orders` reads it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio
from broker_world import BrokerWorld, SimBroker
from faulty_clients import PATIENCE_S, Worker
from raw_client import RawClient
from replicas_seen import ALL

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records, with_key_hashes
from linn.core.batch.record import Record
from linn.wire import messages as m
from linn.wire.connection import Event

KEYS = 3
LATER = "later"
"""Beginning of the keys of records that have a time: they come into their topic in another order."""
WAITS_MS = (100, 1_000, 4_000, 8_000)
TTLS_MS = (0, 0, 0, 3_000, 20_000)


@dataclass(frozen=True)
class Sent:
    """A record that was published."""

    id: UUID
    ttl_ms: int
    due_ms: int


@dataclass
class Account:
    """The answers that the clients of one queue were given, and the laws about them."""

    name: str
    settings: dict[str, Any]
    shared: str = ""
    """The name of its subscription; "": it is the topic's own queue."""
    is_changed: bool = False
    """Whether its order and its consumers may have been changed."""
    sent: dict[str, Sent] = field(default_factory=dict)
    confirmed: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    """Records whose ack was confirmed."""
    rejected: set[str] = field(default_factory=set)
    """Records whose rejection was confirmed."""
    asked: set[str] = field(default_factory=set)
    """Records whose ack or rejection was sent."""
    attempts: dict[str, int] = field(default_factory=dict)
    """The least number of the next attempt: after a return that was confirmed."""
    holder: dict[str, str] = field(default_factory=dict)
    """Consumers to which records were decided, as was confirmed."""
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Partition and offset of each record, as far as they are known."""
    at: dict[tuple[int, int], str] = field(default_factory=dict)
    """The record at each place that is known."""
    delivered = 0

    def of_subscription(self, shared: str) -> Account:
        """The account of a named subscription of the queue: it has the same records."""
        about = self.sent, self.confirmed, self.places, self.at
        found = Account(self.name, self.settings, shared, self.is_changed)
        found.sent, found.confirmed, found.places, found.at = about
        return found

    @property
    def partitions(self) -> int:
        return int(self.settings["partitions"])

    @property
    def is_two_phase(self) -> bool:
        return bool(self.settings["delivery"] == "exactly-once")

    @property
    def ends_by_consumers(self) -> bool:
        """Whether records end by what their consumers say alone, as far as tests go."""
        return not {"ttl", "records_max"} & self.settings.keys() and self.settings["max_deliveries"] >= 20

    @property
    def is_by_key(self) -> bool:
        return bool(self.settings["order"] == "key") and self.ends_by_consumers and not self.is_changed

    def learn(self, batch: RecordBatch, partition: int) -> None:
        """Note the places of committed records; none is stored twice."""
        for place, record in enumerate(batch.records()):
            value, where = (record.value or b"").decode(), (partition, batch.offset(place))
            assert self.places.setdefault(value, where) == where, f"{value} is stored twice"
            assert self.at.setdefault(where, value) == value, f"offset {where} of {self.name} has changed"
            due_ms = self.sent[value].due_ms
            assert batch.append_time_ms >= due_ms, f"{value} has come early"

    def check(self, event: Event, consumer: str) -> list[str]:
        """Check a delivery; returns its values."""
        deliver: Any = event.message
        found: list[str] = []
        for batch in event.batches:
            self.learn(batch, deliver.partition)
            found += [(record.value or b"").decode() for record in batch.records()]
        self.delivered += len(found)
        again = (self.acked | self.rejected).intersection(found)
        assert not again, f"{sorted(again)} was delivered after its settlement was confirmed"
        for value in found:
            if deliver.phase == m.Phase.COMMIT:
                assert self.holder.get(value, consumer) == consumer, f"{value} is its holder's alone"
                continue
            assert value not in self.holder, f"{value} was decided, and is delivered to {consumer}"
            least = self.attempts.get(value, 1)
            assert deliver.attempt >= least, f"attempt {deliver.attempt} of {value}, which had {least - 1} already"
            if self.is_by_key:
                self._check_key(value)
        return found

    def _check_key(self, value: str) -> None:
        """Check that all records of a key before this one are settled, as far as consumers can have settled them."""
        partition, _, key, number = value.split("/")
        if key.startswith(LATER):
            return
        for other, sent in self.sent.items():
            where, _, its_key, its_number = other.split("/")
            is_before = (where, its_key) == (partition, key) and int(its_number) < int(number)
            if is_before and other in self.confirmed and not sent.ttl_ms and not sent.due_ms:
                assert other in self.asked, f"{value} came before {other}, of the same key"

    def lost(self, dead: set[str]) -> set[str]:
        """Confirmed records without an end, though none of them may have been dropped."""
        if self.settings.get("overflow") == "drop-head" and not self.shared:
            return set()
        return self.confirmed - self.asked - dead


class QueueProducer(Worker):
    """Publishes batches, each again until all replicas have it. With `has_times` they come later."""

    id = key = 0

    def __init__(
        self,
        world: BrokerWorld,
        brokers: Sequence[SimBroker],
        rng: random.Random,
        account: Account,
        *,
        has_times: bool = False,
    ) -> None:
        super().__init__(world, brokers, rng, account.name)
        self.account = account
        self.count = 0
        """The number of confirmed batches."""
        self._has_times = has_times
        self._next = [0] * account.partitions
        """The sequences of the next batches, by partition."""
        self._pending: tuple[int, list[str]] | None = None

    async def work(self, client: RawClient) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.greet("producer", self.id, self.key)
        if not self.id:
            self.id, self.key = client.welcome.producer_id, client.welcome.producer_key
        account = self.account
        while not self.is_over:
            self._pending = self._pending or self._drawn()
            partition, values = self._pending
            batch = self._batch(values)
            batch.number(self.id, 0, self._next[partition], 0)
            await self._publish(client, partition, batch)
            account.confirmed.update(values)
            self._next[partition] += len(values)
            self._pending = None
            self.count += 1
            if "dedup" in account.settings and self.rng.random() < 0.3:
                again = [value for value in account.sent if value.startswith(f"{partition}/")]
                again = [value for value in again if value in account.confirmed and not account.sent[value].due_ms]
                if again:
                    await self._publish(client, partition, self._batch(self.rng.sample(again, min(len(again), 3))))
            await self.pause(2.0)

    async def _publish(self, client: RawClient, partition: int, batch: RecordBatch) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.call(m.Publish(self.topic, acks=ALL, partition=partition), [batch])

    def _drawn(self) -> tuple[int, list[str]]:
        rng, account = self.rng, self.account
        partition, values = rng.randrange(account.partitions), list[str]()
        due_ms = self.world.env.clock.now_ms() + rng.choice(WAITS_MS) if self._has_times else 0
        for _ in range(rng.randint(1, 4)):
            number = len(account.sent)
            priority = 0 if account.settings["order"] == "fifo" else rng.randrange(3)
            values.append(f"{partition}/{priority}/{LATER if self._has_times else ''}{rng.randrange(KEYS)}/{number}")
            account.sent[values[-1]] = Sent(UUID(int=number + 1), rng.choice(TTLS_MS), due_ms)
        return partition, values

    def _batch(self, values: Sequence[str]) -> RecordBatch:
        made = list[Record]()
        for value in values:
            _, priority, key, _ = value.split("/")
            sent = self.account.sent[value]
            about: dict[str, Any] = {"id": sent.id, "ttl_ms": sent.ttl_ms, "due_ms": sent.due_ms}
            labels = {"tenant": key}
            made.append(Record(value=value.encode(), key=key.encode(), priority=int(priority), labels=labels, **about))
        return with_key_hashes(build_from_records(made, base_id=1))


class QueueConsumer(Worker):
    """Takes records of a queue under a name, and acks, returns, rejects or keeps them."""

    def __init__(
        self,
        world: BrokerWorld,
        brokers: Sequence[SimBroker],
        rng: random.Random,
        account: Account,
        name: str,
        *,
        delays: bool,
    ) -> None:
        """`delays`: whether it returns records for later."""
        super().__init__(world, brokers, rng, account.name)
        self.account = account
        self.name = name
        self.acks_all = False
        self._delays = delays

    async def work(self, client: RawClient) -> None:
        account = self.account
        about: dict[str, Any] = {"member": self.name, "two_phase": True} if account.is_two_phase else {}
        about["shared"] = account.shared
        with trio.fail_after(PATIENCE_S):
            await client.greet(self.name)
            about["priority"] = self.rng.choice([0, 0, 1])
            subscription = (await client.call(m.Subscribe(self.topic, **about))).subscription
        while not self.is_over:
            with trio.fail_after(PATIENCE_S):
                event = await client.pull(subscription, self.rng.randint(1, 4), wait_max_ms=2000)
                if event.batches:
                    found = account.check(event, self.name)
                    await self.pause(0.3)
                    await self._settle(client, subscription, event, found)
            if not self.acks_all:
                await self.pause(1.0)

    async def _settle(self, client: RawClient, subscription: int, event: Event, found: list[str]) -> None:
        account, deliver = self.account, event.message
        assert isinstance(deliver, m.Deliver)
        chance = 0.0 if self.acks_all or deliver.phase == m.Phase.COMMIT else self.rng.random()
        if chance < 0.65:
            verdict = m.Verdict.ACK
            if account.is_two_phase:
                verdict = m.Verdict.DONE
                if deliver.phase != m.Phase.COMMIT:
                    if await client.settle(subscription, event, m.Verdict.READY):
                        return
                    account.holder.update(dict.fromkeys(found, self.name))
            account.asked.update(found)
            if not await client.settle(subscription, event, verdict):
                account.acked.update(found)
        elif chance < 0.75:
            account.asked.update(found)
            if not await client.settle(subscription, event, m.Verdict.REJECT):
                account.rejected.update(found)
        elif chance < 0.9:
            delay_ms = self.rng.choice([0, 2_000]) if self._delays else 0
            if not await client.settle(subscription, event, m.Verdict.NACK, delay_ms):
                for value in found:
                    account.attempts[value] = max(account.attempts.get(value, 1), deliver.attempt + 1)


class Visitor(Worker):
    """Makes a queue of its connection at one broker, has records published at another, and takes them."""

    def __init__(self, world: BrokerWorld, brokers: Sequence[SimBroker], rng: random.Random) -> None:
        super().__init__(world, brokers, rng, "mine")
        self.visits = 0
        """The number of queues of which all records were taken."""
        self._count = 0

    async def work(self, client: RawClient) -> None:
        self._count += 1
        name, wanted = f"{self.topic}-{self._count}", [f"{number}" for number in range(3)]
        with trio.fail_after(PATIENCE_S):
            await client.greet("visitor")
            await client.administer("topic.create", name=name, settings={"lifetime": "connection"})
            other = RawClient(await self.world.env.net.connect(self.rng.choice(self.brokers).address))
            await other.greet("guest")
            for value in wanted:
                await other.publish(name, [value])
            found = await client.taken(name)
            assert found == wanted, f"{name} has {found}"
            self.visits += 1
            await client.stream.aclose()
            await other.stream.aclose()
        await self.pause(5.0)


class Changer(Worker):
    """Changes the order of a queue, and how many consumers it has."""

    async def work(self, client: RawClient) -> None:
        rng = self.rng
        with trio.fail_after(PATIENCE_S):
            await client.greet("operator")
            order = rng.choice(["priority", "fair", "key"])
            settings = {"order": order, "order_by": "label.tenant", "consumers": rng.choice(["many", "one"])}
            await client.administer("topic.alter", name=self.topic, settings=settings)
        await self.pause(10.0)
