"""`linn serve` is killed again and again while it thins a queue's log: stuck records stay, and settled ones go."""

from __future__ import annotations

import os
import random
from pathlib import Path

import trio
from test_kills import kill_and_start

import linn
from linn.client.client import Client
from linn.core.errors.tree import LinnError
from linn.testing.process import BrokerProcess

KILLS = int(os.environ.get("LINN_THINNING_KILLS", "8"))
CONFIG = """
[storage.segmented-log]
segment_bytes_max = "64KiB"

[topics.jobs]
kind = "queue"
lease = "1h"
max_deliveries = 1000000
"""
PATIENCE = {"retries_max": 1000, "backoff_max_s": 0.1, "request_timeout_s": 60.0}
STUCK_SHARE = 100
"""Every nth message is stuck."""


class ThinnedLoad:
    """A producer, and a worker that holds on to some messages and acks all others."""

    def __init__(self, url: str) -> None:
        self.stopping = False
        self.confirmed: set[bytes] = set()
        self.asked: set[bytes] = set()
        """Acks that were sent; a kill may have taken the answer."""
        self.acked: set[bytes] = set()
        self.wrong: list[str] = []
        self._url = url

    async def run(self) -> None:
        async with linn.connect(self._url, **PATIENCE) as client, trio.open_nursery() as nursery:  # type: ignore[arg-type]
            nursery.start_soon(self._work, client)
            nursery.start_soon(self._keep_house, client)
            count = 0
            async with client.producer("jobs") as producer:
                while not self.stopping:
                    values = [b"%08d:%s" % (count + at, bytes(600)) for at in range(20)]
                    count += 20
                    await producer.publish_many(values)
                    self.confirmed.update(values)
                    await trio.sleep(0.02)
            stuck = sum(map(is_stuck, self.confirmed))
            with trio.fail_after(60):
                while (await client.admin.topic("jobs"))["queue"]["unsettled"] > stuck:
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()

    async def _work(self, client: Client) -> None:
        async with client.consumer("jobs", prefetch=500) as consumer:
            while True:
                try:
                    message = await anext(consumer)
                    value = bytes(message.value or b"")
                    if value in self.acked:
                        self.wrong.append(f"{value[:8]!r} came again after its ack")
                    if not is_stuck(value):
                        self.asked.add(value)
                        await message.ack()
                        self.acked.add(value)
                except LinnError:
                    continue  # Its lease died with the broker: the message comes again.

    async def _keep_house(self, client: Client) -> None:
        """Each change of a topic makes the broker tidy its logs, which it does every ten seconds otherwise."""
        lease_s = 3600
        while True:
            lease_s += 1
            try:
                await client.admin.alter_topic("jobs", lease=f"{lease_s}s")
            except LinnError:
                continue
            await trio.sleep(0.05)


def is_stuck(value: bytes) -> bool:
    return int(value[:8]) % STUCK_SHARE == 7


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("jobs/**/*.log"))


async def test_sigkill_during_thinning_loses_no_record_and_brings_none_back(tmp_path: Path) -> None:
    rng = random.Random(1)
    with BrokerProcess(tmp_path, CONFIG) as broker:
        load = ThinnedLoad(broker.url)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            for _ in range(KILLS):
                await trio.sleep(rng.uniform(0.3, 1.0))
                await trio.to_thread.run_sync(kill_and_start, broker, rng)
                assert load.wrong == []
            await trio.sleep(1)
            load.stopping = True
        async with linn.connect(broker.url, **PATIENCE) as client:  # type: ignore[arg-type]
            published = sum(map(len, load.confirmed))
            with trio.fail_after(30):
                while bytes_in(tmp_path) > published / 5 + 200_000:
                    await client.admin.alter_topic("jobs", lease=f"{rng.randint(1000, 9000)}s")
                    await trio.sleep(0.2)
            left: set[bytes] = set()
            async with client.consumer("jobs", prefetch=5000) as consumer:
                while (await client.admin.topic("jobs"))["queue"]["unsettled"]:
                    message = await anext(consumer)
                    left.add(bytes(message.value or b""))
                    await message.ack()
        assert not left & load.acked
        lost = load.confirmed - load.asked - left
        assert not lost, f"{len(lost)} are lost"
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
