"""A load for a broker that is killed, and what it finds: producers, queue workers and groups that keep accounts.

Laws that the accounts check: what was confirmed is there, where the receipt says; the first copies of a producer's
messages are in its order in each partition; what was acked is never handed over again; a group's place never goes back.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial

import trio

import linn
import linn.sync
from linn.client.client import Client
from linn.client.consume.message import Message
from linn.core.errors.tree import LinnError

CONFIG = """
[storage.segmented-log]
segment_bytes_max = "256KiB"

[storage.paced]
engine = "segmented-log"
fsync = "interval"
flush_interval = "20ms"
segment_bytes_max = "64KiB"

[storage.synced]
engine = "segmented-log"
fsync = "always"
segment_bytes_max = "64KiB"

[topics.events]
kind = "stream"
partitions = 3

[topics.paced-events]
kind = "both"
storage = "paced"
partitions = 2

[topics.jobs]
kind = "queue"
partitions = 2
lease = "1h"
max_deliveries = 1000000

[topics.synced-jobs]
kind = "queue"
storage = "synced"
lease = "1h"
max_deliveries = 1000000

[topics.fleeting]
kind = "stream"
storage = "dram"
"""
STREAMS = ("events", "paced-events")
QUEUES = ("jobs", "synced-jobs")
KEPT = (*STREAMS, *QUEUES)
"""Topics that lose nothing of what was confirmed when the process dies. `fleeting` is in memory: it loses all."""
PATIENCE = {"retries_max": 1000, "backoff_max_s": 0.1, "request_timeout_s": 60.0}
_BURST_MAX = 60
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class Accounts:
    """The answers that clients received."""

    confirmed: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """Values by topic."""
    receipts: dict[Place, bytes] = field(default_factory=dict)
    handed_over: dict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    acked: set[Place] = field(default_factory=set)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """The offset behind the last record whose ack was answered, by topic, group and partition."""
    wrong: list[str] = field(default_factory=list)


class Load:
    """Clients at work. `run` until `stop` is set; then `settle_up` looks whether the accounts are right."""

    def __init__(self, url: str, seed: int) -> None:
        self.accounts = Accounts()
        self.stopping = False
        self._url = url
        self._seed = seed
        self._counts: dict[str, int] = defaultdict(int)

    async def run(self) -> None:
        """Work over all crashes until `stopping`."""
        async with linn.connect(self._url, **PATIENCE) as client, trio.open_nursery() as nursery:  # type: ignore[arg-type]
            for topic in (*KEPT, "fleeting"):
                nursery.start_soon(self._produce, client, topic)
            nursery.start_soon(partial(trio.to_thread.run_sync, self._produce_in_thread, abandon_on_cancel=True))
            async with trio.open_nursery() as readers:
                for number in range(3):
                    for topic in QUEUES:
                        readers.start_soon(self._work, client, topic, random.Random(self._seed + number))
                for group in ("a", "b"):
                    for topic in STREAMS:
                        readers.start_soon(self._follow, client, topic, group)
                while not self.stopping:
                    await trio.sleep(0.05)
                readers.cancel_scope.cancel()

    # --- producers ---

    async def _produce(self, client: Client, topic: str) -> None:
        rng = random.Random(f"{self._seed} {topic}")
        async with client.producer(topic) as producer:
            while not self.stopping:
                values = [self._next(topic, rng.randrange(400)) for _ in range(rng.randrange(1, _BURST_MAX))]
                await producer.publish_many(values)
                self.accounts.confirmed[topic].update(values)
                await trio.sleep(rng.uniform(0, 0.01))

    def _next(self, topic: str, padding: int) -> bytes:
        self._counts[topic] += 1
        return b"%s:%08d:%s" % (topic.encode(), self._counts[topic], bytes(padding))

    def _produce_in_thread(self) -> None:
        """Publish with the blocking client, message by message: each receipt names the place of one value."""
        count = 0
        with linn.sync.connect(self._url, **PATIENCE) as client, client.producer("events") as producer:  # type: ignore[arg-type]
            while not self.stopping:
                count += 1
                value = b"thread-%d:%08d:" % (threading.get_native_id(), count)
                receipt = producer.publish(value)
                assert receipt.partition is not None
                assert receipt.offset is not None
                self.accounts.receipts[("events", receipt.partition, receipt.offset)] = value
                self.accounts.confirmed["events"].add(value)

    # --- consumers ---

    async def _work(self, client: Client, topic: str, rng: random.Random) -> None:
        """Ack most, give some back, and sit on some, which come again when the broker has died."""
        async with client.consumer(topic, prefetch=50) as consumer:
            sat_on = 0
            while True:
                try:
                    message = await anext(consumer)
                    self._note_handed_over(message)
                    dice = rng.random()
                    if dice < 0.9 or (sat_on >= 20 and dice >= 0.95):
                        await message.ack()
                        self.accounts.acked.add(_place(message))
                    elif dice < 0.95:
                        await message.nack()
                    else:
                        sat_on += 1
                except LinnError:
                    # Its lease died with the broker: the message comes again.
                    sat_on = 0

    def _note_handed_over(self, message: Message) -> None:
        if _place(message) in self.accounts.acked:
            self.accounts.wrong.append(f"{_place(message)} was handed over again after its ack")
        assert message.value is not None
        self.accounts.handed_over[message.topic].add(bytes(message.value))

    async def _follow(self, client: Client, topic: str, group: str) -> None:
        """Read a stream as the only member of a group, and commit each batch."""
        accounts = self.accounts
        offered: dict[int, int] = defaultdict(int)
        async with client.consumer(topic, group=group, prefetch=500) as consumer:
            while True:
                try:
                    batch = await consumer.next_batch()
                    place = (topic, group, batch.partition)
                    first = next(iter(batch)).offset
                    if first < accounts.committed.get(place, 0):
                        accounts.wrong.append(f"{place} went back from {accounts.committed[place]} to {first}")
                    if first > offered[batch.partition]:
                        accounts.wrong.append(f"{place} skipped {offered[batch.partition]} to {first}")
                    # An ack whose answer was lost in a crash may count, or may not.
                    offered[batch.partition] = max(offered[batch.partition], batch.end_offset)
                    await batch.ack()
                    accounts.committed[place] = batch.end_offset
                except LinnError:
                    continue

    # --- the end ---

    async def settle_up(self) -> list[str]:
        """Read everything that is left; what is wrong."""
        async with linn.connect(self._url, **PATIENCE) as client:  # type: ignore[arg-type]
            for topic in STREAMS:
                await self._check_stream(client, topic)
            for topic in QUEUES:
                await self._check_queue(client, topic)
            for topic in STREAMS:
                for group in ("a", "b"):
                    await self._check_group(client, topic, group)
        return self.accounts.wrong

    async def _check_stream(self, client: Client, topic: str) -> None:
        (info,) = (await client.describe(topic)).topics
        there: set[bytes] = set()
        for partition in range(len(info.partitions)):
            values = await _values_of(client, topic, partition)
            there.update(values)
            self._check_order(topic, partition, values)
            for (name, index, offset), value in self.accounts.receipts.items():
                if (name, index) == (topic, partition) and values[offset : offset + 1] != [value]:
                    self.accounts.wrong.append(f"{topic}/{partition} holds another value at {offset}")
        self._check_there(topic, there)

    def _check_order(self, topic: str, partition: int, values: list[bytes]) -> None:
        """Check the order. A record sent again after a lost connection may be duplicated; the first copies are in
        order.
        """
        last: dict[bytes, int] = {}
        seen: set[bytes] = set()
        for value in values:
            if value in seen:
                continue
            seen.add(value)
            producer, number = value.split(b":")[:2]
            if int(number) < last.get(producer, 0):
                self.accounts.wrong.append(f"{topic}/{partition}: {value[:30]!r} comes after {last[producer]}")
            last[producer] = int(number)

    async def _check_queue(self, client: Client, topic: str) -> None:
        async with client.consumer(topic, prefetch=5000) as consumer:
            while (await client.admin.topic(topic))["queue"]["unsettled"]:
                batch = await consumer.next_batch()
                for message in batch:
                    self._note_handed_over(message)
                await batch.ack()
        self._check_there(topic, self.accounts.handed_over[topic])

    def _check_there(self, topic: str, there: set[bytes]) -> None:
        lost = self.accounts.confirmed[topic] - there
        if lost:
            self.accounts.wrong.append(f"{topic} lost {len(lost)} confirmed messages, such as {sorted(lost)[0][:30]!r}")

    async def _check_group(self, client: Client, topic: str, group: str) -> None:
        offsets = (await client.admin.group(group))["offsets"]
        shown = {row["partition"]: row["offset"] for row in offsets if row["topic"] == topic}
        for (name, of, partition), offset in self.accounts.committed.items():
            if (name, of) == (topic, group) and (shown[partition] or 0) < offset:
                self.accounts.wrong.append(f"{group} of {topic}/{partition} is at {shown[partition]}, before {offset}")


def _place(message: Message) -> Place:
    return message.topic, message.partition, message.offset


async def _values_of(client: Client, topic: str, partition: int) -> list[bytes]:
    values: list[bytes] = []
    while batches := (await client.fetch(topic, partition, len(values), bytes_max=8 << 20)).batches:
        for batch in batches:
            values += [bytes(value) for value in batch.values]
    return values
