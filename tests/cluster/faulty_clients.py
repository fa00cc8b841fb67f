"""Clients of a cluster under faults, and the answers that they were given.

A client goes on at another broker after each failure. Each checks at once what it is delivered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import trio
from broker_world import BrokerWorld, SimBroker
from raw_client import RawClient, Refused, records, values
from replicas_seen import ALL

from linn.core.delivery.vocabulary import Verdict
from linn.core.errors.tree import ConnectFailed, ConnectionLost
from linn.wire import messages as m
from linn.wire.connection import Event

PATIENCE_S = 20.0
GONE = (EOFError, ConnectFailed, ConnectionLost, trio.TooSlowError)


class Worker:
    """A client that works until it `is_over`."""

    def __init__(self, world: BrokerWorld, brokers: Sequence[SimBroker], rng: random.Random, topic: str) -> None:
        self.world = world
        self.brokers = brokers
        self.rng = rng
        self.topic = topic
        self.is_over = False
        self.refused: dict[str, int] = {}
        """Errors by code."""

    async def run(self) -> None:
        """Work at one broker after another."""
        while not self.is_over:
            try:
                client = RawClient(await self.world.env.net.connect(self.rng.choice(self.brokers).address))
                await self.work(client)
            except Refused as refused:
                self.refused[refused.code] = self.refused.get(refused.code, 0) + 1
            except GONE as error:
                name = type(error).__name__
                self.refused[name] = self.refused.get(name, 0) + 1
            await self.pause(0.7)

    async def pause(self, seconds_max: float) -> None:
        """Wait for a random time."""
        await trio.sleep(self.rng.uniform(0, seconds_max))

    async def work(self, client: RawClient) -> None:
        """Work until over. Raises Refused, or one of GONE."""
        raise NotImplementedError


class Producer(Worker):
    """Publishes records to each partition in turn, and each again until all replicas have confirmed it."""

    id = key = 0

    def __init__(
        self, world: BrokerWorld, brokers: Sequence[SimBroker], rng: random.Random, topic: str, partitions: int
    ) -> None:
        super().__init__(world, brokers, rng, topic)
        self.counts = [0] * partitions
        """The number of confirmed records, by partition."""
        self._turn = 0

    def value(self, partition: int, number: int) -> str:
        """The value of a record."""
        return f"{self.topic}/{partition}/{number}"

    def confirmed(self, partition: int) -> list[str]:
        """The values of the confirmed records of a partition, in order."""
        return [self.value(partition, number) for number in range(self.counts[partition])]

    def all_confirmed(self) -> set[str]:
        """The values of all confirmed records."""
        return {value for partition in range(len(self.counts)) for value in self.confirmed(partition)}

    async def work(self, client: RawClient) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.greet("producer", self.id, self.key)
        if not self.id:
            self.id, self.key = client.welcome.producer_id, client.welcome.producer_key
        while not self.is_over:
            partition = self._turn % len(self.counts)
            number = self.counts[partition]
            batch = records([self.value(partition, number)])
            batch.number(self.id, 0, number, 0)
            with trio.fail_after(PATIENCE_S):
                await client.call(m.Publish(self.topic, acks=ALL, partition=partition), [batch])
            self.counts[partition] += 1
            self._turn += 1
            await self.pause(1.5)


class Told:
    """Answers that the consumers of one queue were given."""

    def __init__(self) -> None:
        self.acked: set[str] = set()
        """Values whose ack was confirmed."""
        self.rejected: set[str] = set()
        """Values whose rejection was confirmed."""
        self.maybe: set[str] = set()
        """Values whose ack or rejection was sent."""
        self.attempts: dict[str, int] = {}
        """The least number of the next attempt: after a return that was confirmed."""
        self.delivered = 0

    def check(self, found: Sequence[str], attempt: int) -> None:
        """Check a delivery."""
        self.delivered += len(found)
        again = (self.acked | self.rejected).intersection(found)
        assert not again, f"{sorted(again)} was delivered after its settlement was confirmed"
        for value in found:
            least = self.attempts.get(value, 1)
            assert attempt >= least, f"attempt {attempt} of {value}, which had {least - 1} attempts already"


class Consumer(Worker):
    """Takes records of a queue, and acks, returns, rejects or keeps them."""

    def __init__(
        self, world: BrokerWorld, brokers: Sequence[SimBroker], rng: random.Random, topic: str, told: Told
    ) -> None:
        super().__init__(world, brokers, rng, topic)
        self.told = told

    async def work(self, client: RawClient) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.greet("consumer")
            subscription = (await client.call(m.Subscribe(self.topic))).subscription
        while not self.is_over:
            with trio.fail_after(PATIENCE_S):
                event = await client.pull(subscription, self.rng.randint(1, 3), wait_max_ms=2000)
                if found := values(event.batches):
                    self.told.check(found, event.message.attempt)
                    await self._settle(client, subscription, event, found)
            await self.pause(1.0)

    async def _settle(self, client: RawClient, subscription: int, event: Event, found: list[str]) -> None:
        told, chance = self.told, self.rng.random()
        if chance < 0.65:
            told.maybe.update(found)
            if not await client.settle(subscription, event):
                told.acked.update(found)
        elif chance < 0.75:
            told.maybe.update(found)
            if not await client.settle(subscription, event, Verdict.REJECT):
                told.rejected.update(found)
        elif chance < 0.9 and not await client.settle(subscription, event, Verdict.NACK):
            for value in found:
                told.attempts[value] = max(told.attempts.get(value, 1), event.message.attempt + 1)


class GroupReader(Worker):
    """The only member of a group that reads a stream, and commits its positions now and then."""

    def __init__(self, world: BrokerWorld, brokers: Sequence[SimBroker], rng: random.Random, topic: str) -> None:
        super().__init__(world, brokers, rng, topic)
        self.seen: set[str] = set()
        self._committed: dict[int, int] = {}
        """Positions by partition whose commit was confirmed."""

    async def work(self, client: RawClient) -> None:
        with trio.fail_after(PATIENCE_S):
            await client.greet("reader")
            subscription = (await client.call(m.Subscribe(self.topic, group="readers"))).subscription
        while not self.is_over:
            with trio.fail_after(PATIENCE_S):
                event = await client.pull(subscription, 20, wait_max_ms=2000)
                if event.batches:
                    await self._read(client, subscription, event)
            await self.pause(1.0)

    async def _read(self, client: RawClient, subscription: int, event: Event) -> None:
        partition, first, end = event.message.partition, event.batches[0].base_offset, event.batches[-1].end_offset
        committed = self._committed.get(partition, 0)
        assert first >= committed, f"the group reads {self.topic} from {first} on, and has committed {committed}"
        self.seen.update(values(event.batches))
        if self.rng.random() < 0.7 and not await client.settle(subscription, event):
            self._committed[partition] = max(committed, end)
