"""Broker and consumers of a queue with an order are killed again and again: each record is booked once, in SQLite, and
those of a key in their order.

A failure prints its seed.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path

import pytest
import trio
from test_exactly_once_kills import ALIVE_S_MAX, DONE_S_MAX, NAMES, Consumer, Sqlite

import linn
from linn.testing.process import BrokerProcess

KILLS = int(os.environ.get("LINN_ORDER_KILLS", "12"))
KEYS = 20
CONFIG = """
[topics.payments]
delivery = "exactly-once"
partitions = 2
lease = "2s"
order = "{order}"
{order_by}
"""
ORDERS = {"priority": "", "fair": "label.tenant", "key": ""}


def key_of(record: int) -> int:
    """The key, tenant and priority of a record: small keys have most of the records."""
    return min(record * record % 97, KEYS - 1)


def bookings(store: Sqlite) -> list[tuple[int, int]]:
    """(time, record) of each effect of all names, in order of time."""
    found: list[tuple[int, int]] = []
    for name in NAMES:
        with closing(sqlite3.connect(store.database(name))) as connection:
            found += connection.execute("SELECT at_ns, record FROM effects").fetchall()
    return sorted(found)


class Publishing:
    """A producer that goes on until it is told to stop."""

    def __init__(self, rng: random.Random) -> None:
        self.published: list[int] = []
        self.stopping = False
        self._rng = rng

    async def run(self, url: str) -> None:
        async with linn.connect(url) as client, client.producer("payments") as producer:
            while not self.stopping:
                some = range(len(self.published), len(self.published) + self._rng.randint(1, 50))
                for record in some:
                    key = key_of(record)
                    labels = {"tenant": key}
                    producer.publish_nowait(b"%d" % record, key=b"%d" % key, labels=labels, priority=key)
                await producer.flush()
                self.published += some
                await trio.sleep(self._rng.uniform(0, 0.1))


@pytest.mark.parametrize("order", ORDERS)
async def test_each_record_is_booked_once_in_its_order_whoever_is_killed(tmp_path: Path, order: str) -> None:
    seed = 1
    rng = random.Random(seed)
    publishing, store = Publishing(rng), Sqlite(tmp_path)
    order_by = f'order_by = "{ORDERS[order]}"' if ORDERS[order] else ""
    with BrokerProcess(tmp_path, CONFIG.format(order=order, order_by=order_by)) as broker:
        consumers = [Consumer(broker.url, name, store, tmp_path) for name in NAMES]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publishing.run, broker.url)
                for number in range(KILLS):
                    await trio.sleep(rng.uniform(0.3, 2 * ALIVE_S_MAX))
                    if number % 2:
                        await trio.to_thread.run_sync(broker.kill)
                        await trio.to_thread.run_sync(broker.start)
                    else:
                        victim = rng.choice(consumers)
                        await trio.to_thread.run_sync(victim.kill)
                        victim.start()
                publishing.stopping = True
            with trio.fail_after(DONE_S_MAX):
                async with linn.connect(broker.url) as client:
                    while (await client.admin.topic("payments"))["queue"]["unsettled"]:
                        await trio.sleep(0.2)
        finally:
            for consumer in consumers:
                consumer.close()
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
    booked = [record for _, record in bookings(store)]
    effects = Counter(booked)
    wrong = {record: effects[record] for record in publishing.published if effects[record] != 1}
    assert wrong == {}, f"effects of records; seed {seed} decides the moments"
    assert set(effects) == set(publishing.published)
    assert len(publishing.published) > 10 * KILLS, "there was no load"
    if order == "key":
        by_key = defaultdict[int, list[int]](list)
        for record in booked:
            by_key[key_of(record)].append(record)
        assert {key: records for key, records in by_key.items() if records != sorted(records)} == {}
        assert max(map(len, by_key.values())) > 10, "no key had several records"
