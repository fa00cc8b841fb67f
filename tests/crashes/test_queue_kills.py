"""`linn serve` is killed again and again under a load of queues with orders, times to live and limits.

LINN_QUEUE_KILLS is the number of kills: 50 take minutes. A failure prints its seed.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from pathlib import Path

import trio
from kill_load import PATIENCE
from test_kills import kill_and_start

import linn
from linn.client.client import Client
from linn.client.consume.message import Message
from linn.core.errors.tree import LinnError
from linn.testing.process import BrokerProcess

KILLS = int(os.environ.get("LINN_QUEUE_KILLS", "20"))
ALIVE_S_MAX = 0.3
QUEUES = ("priority", "fair", "key", "brief", "bounded")
CONFIG = """
[storage.segmented-log]
segment_bytes_max = "128KiB"
[topics.graves]
kind = "stream"
[topics.priority]
order = "priority"
lease = "1h"
max_deliveries = 1000000
[topics.fair]
order = "fair"
order_by = "label.tenant"
lease = "1h"
max_deliveries = 1000000
[topics.key]
order = "key"
partitions = 2
lease = "1h"
max_deliveries = 1000000
[topics.brief]
ttl = "500ms"
order = "priority"
lease = "1h"
max_deliveries = 1000000
dead_letter = "graves"
[topics.bounded]
order = "fair"
records_max = 100
overflow = "dead-letter"
lease = "1h"
max_deliveries = 1000000
dead_letter = "graves"
"""


class QueueLoad:
    """A producer and two workers for each queue, and their accounts.

    Laws: what was confirmed is handed over, or a dead letter; what was acked never comes again, and is no dead letter;
    a dead letter is there once; the first deliveries of a key are in order.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.stopping = False
        self.confirmed: dict[str, set[bytes]] = defaultdict(set)
        self.handed_over: dict[str, set[bytes]] = defaultdict(set)
        self.acked: set[bytes] = set()
        self.wrong: list[str] = []
        self._url = url
        self._seed = seed
        self._newest: dict[int, int] = {}
        """The number of the newest record of each key that was handed over."""

    async def run(self) -> None:
        """Work over all crashes until `stopping`."""
        async with linn.connect(self._url, **PATIENCE) as client, trio.open_nursery() as nursery:  # type: ignore[arg-type]
            async with trio.open_nursery() as producers:
                for topic in QUEUES:
                    producers.start_soon(self._produce, client, topic)
                    for number in range(2):
                        nursery.start_soon(self._work, client, topic, random.Random(f"{self._seed}/{topic}/{number}"))
            nursery.cancel_scope.cancel()

    async def _produce(self, client: Client, topic: str) -> None:
        rng, count = random.Random(f"{self._seed}/{topic}"), 0
        async with client.producer(topic) as producer:
            while not self.stopping:
                values = [
                    b"%s:%08d:%d" % (topic.encode(), count + at, rng.randrange(20)) for at in range(rng.randint(1, 30))
                ]
                count += len(values)
                for value in values:
                    key = value.rpartition(b":")[2]
                    producer.publish_nowait(value, priority=int(key) % 10, key=key, labels={"tenant": key.decode()})
                await producer.flush()
                self.confirmed[topic].update(values)
                await trio.sleep(rng.uniform(0, 0.05))

    async def _work(self, client: Client, topic: str, rng: random.Random) -> None:
        """Ack most, give some back, and be slow where records are to expire or to overflow."""
        async with client.consumer(topic, prefetch=20) as consumer:
            while True:
                try:
                    message = await anext(consumer)
                    self.note(message)
                    if topic in ("brief", "bounded"):
                        await trio.sleep(rng.uniform(0, 0.05))
                    if rng.random() < 0.95:
                        await message.ack()
                        self.acked.add(bytes(message.value or b""))
                    else:
                        await message.nack(delay_ms=rng.choice([0, 200]))
                except LinnError:
                    continue  # Its lease died with the broker: the message comes again.

    def note(self, message: Message) -> None:
        """Note a record that is handed over."""
        value = bytes(message.value or b"")
        if value in self.acked:
            self.wrong.append(f"{value!r} was handed over again after its ack")
        _, number, key = value.split(b":")
        if message.topic == "key" and value not in self.handed_over["key"]:
            if int(number) < self._newest.get(int(key), -1):
                self.wrong.append(f"{value!r} comes after {self._newest[int(key)]}")
            self._newest[int(key)] = int(number)
        self.handed_over[message.topic].add(value)

    async def settle_up(self) -> list[str]:
        """Consume what is left, and look at the dead letters; what is wrong."""
        async with linn.connect(self._url, **PATIENCE) as client:  # type: ignore[arg-type]
            for topic in QUEUES:
                async with client.consumer(topic, prefetch=500) as consumer:
                    while (await client.admin.topic(topic))["queue"]["unsettled"]:
                        with trio.move_on_after(0.5):
                            batch = await consumer.next_batch()
                            for message in batch:
                                self.note(message)
                            await batch.ack()
            graves, offset = Counter[bytes](), 0
            while batches := (await client.fetch("graves", 0, offset, bytes_max=8 << 20)).batches:
                graves.update(bytes(value) for batch in batches for value in batch.values)
                offset = batches[-1].end_offset
        for topic in QUEUES:
            lost = self.confirmed[topic] - self.handed_over[topic] - {*graves}
            self.wrong += [f"{topic} lost {len(lost)} messages, such as {min(lost)!r}"] if lost else []
        self.wrong += [f"{value!r} has {count} graves" for value, count in graves.items() if count > 1]
        self.wrong += [f"{value!r} was acked, and is a dead letter" for value in self.acked & {*graves}]
        return self.wrong


async def test_kills_under_a_load_of_orders_times_and_limits_break_no_promise(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    with BrokerProcess(tmp_path, CONFIG) as broker:
        load = QueueLoad(broker.url, seed)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run)
                for _ in range(KILLS):
                    await trio.sleep(rng.uniform(0, ALIVE_S_MAX))
                    await trio.to_thread.run_sync(kill_and_start, broker, rng)
                    assert load.wrong == []
                await trio.sleep(1)
                load.stopping = True
            with trio.fail_after(120):
                wrong = await load.settle_up()
        except BaseException as error:
            load.stopping = True
            error.add_note(f"seed {seed} decides the moments")
            raise
        assert wrong == [], f"seed {seed} decides the moments"
        for topic in QUEUES:
            assert len(load.confirmed[topic]) > 20 * KILLS, "there was no load"
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
