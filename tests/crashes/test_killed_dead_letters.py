"""Rejected records go through an exchange to three topics while the broker is killed: one copy of each in each.

LINN_DEAD_LETTERS is the number of records; 100000 takes minutes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import trio
from kill_load import PATIENCE

import linn
from linn.client.client import Client
from linn.core.errors.tree import LinnError
from linn.testing.process import BrokerProcess

RECORDS = int(os.environ.get("LINN_DEAD_LETTERS", "6000"))
KILLS = 20
TARGETS = ("mails", "tickets", "archive")
CONFIG = """
[exchanges.graves]
type = "fanout"
[topics.work]
lease = "1h"
max_deliveries = 1000000
dead_letter_exchange = "graves"
""" + "".join(
    f'[topics.{name}]\nkind = "stream"\n[[topics.{name}.bindings]]\nexchange = "graves"\n' for name in TARGETS
)


async def test_each_topic_has_one_copy_of_each_record_after_20_kills(tmp_path: Path) -> None:
    rng = random.Random(1)
    with BrokerProcess(tmp_path, CONFIG) as broker:
        async with linn.connect(broker.url, **PATIENCE) as client, trio.open_nursery() as nursery:  # type: ignore[arg-type]
            await publish(client)
            nursery.start_soon(reject_all, client)
            for kill in range(KILLS):
                await until_copied(client, RECORDS * kill // KILLS)
                await trio.sleep(rng.uniform(0, 0.1))
                broker.kill()
                await trio.to_thread.run_sync(broker.start)
            with trio.fail_after(60 + RECORDS / 100):
                while (await client.admin.topic("work"))["queue"]["unsettled"]:
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        async with linn.connect(broker.url, **PATIENCE) as client:  # type: ignore[arg-type]
            for topic in TARGETS:
                copies = await offsets_of(client, topic)
                assert copies == dict.fromkeys(range(RECORDS), 1), f"{topic} has one copy of each"
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0


async def publish(client: Client) -> None:
    async with client.producer("work") as producer:
        for first in range(0, RECORDS, 1000):
            await producer.publish_many([b"%d" % number for number in range(first, min(first + 1000, RECORDS))])


async def reject_all(client: Client) -> None:
    async with client.consumer("work", prefetch=500) as consumer:
        while True:
            try:
                batch = await consumer.next_batch()
                await batch.reject("in vain")
            except LinnError:
                continue  # Its lease died with the broker: the records come again.


async def until_copied(client: Client, count: int) -> None:
    """Wait until the last topic has so many copies."""
    with trio.fail_after(60 + RECORDS / 100):
        while (await client.admin.topic(TARGETS[-1]))["partitions"][0]["end"] < count:
            await trio.sleep(0.01)


async def offsets_of(client: Client, topic: str) -> Counter[object]:
    """The number of copies by the offset of their record."""
    found, offset = Counter[object](), 0
    while batches := (await client.fetch(topic, 0, offset, bytes_max=8 << 20)).batches:
        for batch in batches:
            found.update(message.labels["linn.dead.offset"] for message in batch)
            offset = batch.end_offset
    return found
