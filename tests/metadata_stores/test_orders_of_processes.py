"""A queue with an order by key, delays and dead letters, of three processes beside a real etcd: its leader is killed
again and again under load, and frozen once.

A failure prints its seed.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import trio
from cluster_processes import RealCluster, real_cluster

import linn
from linn.client.client import Client
from linn.client.consume.message import Message
from linn.core.errors.tree import LinnError

pytestmark = pytest.mark.system

LOSSES = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL, signal.SIGKILL, signal.SIGKILL)
SESSION_S = 2.0
FROZEN_S = 2 * SESSION_S
KEYS = 8
LATER = b"later"
"""Beginning of the keys of delayed messages: they come into the queue in another order."""
LIMIT_S = 90.0
TABLES = """
[topics.jobs]
order = "key"
partitions = 2
lease = "5s"
max_deliveries = 1000000
dead_letter = "graves"
[topics.graves]
kind = "stream"
retention = "forever"
"""


class OrderedLoad:
    """Two producers, of which one delays what it publishes, and three workers, with their accounts.

    Laws: no message comes before its time, again after its ack or its rejection was confirmed, or from two places of
    the queue; a message of a key comes when all before it are settled.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.is_over = False
        self.confirmed: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.rejected: set[bytes] = set()
        self.asked: set[bytes] = set()
        """Messages whose ack or rejection was sent."""
        self.wrong: list[str] = []
        self._url = url
        self._seed = seed
        self._of_key: dict[bytes, list[bytes]] = defaultdict(list)
        """Confirmed messages of each key, in order."""
        self._places: dict[bytes, tuple[int, int]] = {}

    async def run(self) -> None:
        """Work until `is_over`, and then until the queue is empty."""
        async with linn.connect(self._url, request_timeout_s=60) as client, trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(self._work, client, random.Random(f"{self._seed}/{number}"))
            async with trio.open_nursery() as producers:
                for is_later in (False, True):
                    producers.start_soon(self._produce, client, is_later)
            with trio.fail_after(LIMIT_S):
                while (await client.scheduled("jobs"))["count"] or (await client.admin.topic("jobs"))["queue"][
                    "unsettled"
                ]:
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    async def _produce(self, client: Client, is_later: bool) -> None:
        rng, count = random.Random(f"{self._seed}/{is_later}"), 0
        async with client.producer("jobs", acks="all") as producer:
            while not self.is_over:
                due_ms = int(time.time() * 1000) + rng.choice([50, 500, 3_000]) if is_later else 0
                keys = [b"%s%d" % (LATER * is_later, rng.randrange(KEYS)) for _ in range(rng.randint(1, 20))]
                values = [b"%s:%d:%d" % (key, count + at, due_ms) for at, key in enumerate(keys)]
                count += len(values)
                await producer.publish_many(values, keys=keys, at=due_ms or None)
                self.confirmed.update(values)
                for key, value in zip(keys, values, strict=True):
                    self._of_key[key].append(value)
                await trio.sleep(rng.uniform(0, 0.1))

    async def _work(self, client: Client, rng: random.Random) -> None:
        async with client.consumer("jobs", prefetch=10) as consumer:
            while True:
                try:
                    message = await anext(consumer)
                    self._note(message)
                    value = bytes(message.value or b"")
                    dice = rng.random()
                    if dice < 0.85:
                        self.asked.add(value)
                        await message.ack()
                        self.acked.add(value)
                    elif dice < 0.93:
                        self.asked.add(value)
                        await message.reject("in vain")
                        self.rejected.add(value)
                    else:
                        await message.nack(delay_ms=rng.choice([0, 300]))
                except LinnError:
                    continue  # Its lease ended with the leader: the message comes again.

    def _note(self, message: Message) -> None:
        value, place = bytes(message.value or b""), (message.partition, message.offset)
        key, _, due_ms = value.split(b":")
        if value in self.acked | self.rejected:
            self.wrong.append(f"{value!r} came again after its settlement was confirmed")
        if self._places.setdefault(value, place) != place:
            self.wrong.append(f"{value!r} is at {place} and at {self._places[value]}")
        if time.time() * 1000 < int(due_ms):
            self.wrong.append(f"{value!r} came early")
        if not key.startswith(LATER):
            before = self._of_key[key]
            for other in before[: before.index(value)] if value in before else ():
                if other not in self.asked:
                    self.wrong.append(f"{value!r} came before {other!r}")


async def dead_letters(client: Client) -> Counter[bytes]:
    found, offset = Counter[bytes](), 0
    while batches := (await client.fetch("graves", 0, offset, bytes_max=8 << 20)).batches:
        found.update(bytes(value or b"") for batch in batches for value in batch.values)
        offset = batches[-1].end_offset
    return found


def lose_and_recover(cluster: RealCluster, how: signal.Signals) -> None:
    """Lose the leader of the queue, and bring it back."""
    lost = cluster.leader("jobs")
    cluster.lose(lost, how)
    if how is signal.SIGSTOP:
        time.sleep(FROZEN_S)
    cluster.recover(lost)
    cluster.until_whole("jobs", "graves")


async def test_an_ordered_queue_keeps_its_promises_while_its_leaders_are_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    with real_cluster(tmp_path, tables=TABLES, session_timeout_s=SESSION_S) as cluster:
        cluster.until_whole("jobs", "graves")
        url = "linn://" + ",".join(broker.address for broker in cluster.brokers.values())
        load = OrderedLoad(url, seed)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run)
                for how in LOSSES:
                    await trio.sleep(rng.uniform(0, 1))
                    await trio.to_thread.run_sync(lose_and_recover, cluster, how)
                    assert load.wrong == []
                load.is_over = True
            async with linn.connect(url) as client:
                dead = await dead_letters(client)
            assert load.wrong == []
            assert max(dead.values()) == 1, "each dead letter is there once"
            assert load.rejected <= {*dead} <= load.asked
            assert not {*dead} & load.acked
            assert load.confirmed <= load.asked, "what was confirmed has come to a consumer"
            assert len(load.acked) > 50 * len(LOSSES), "there was no load"
        except BaseException as error:
            error.add_note(f"seed {seed} decides the moments")
            raise
