"""`linn serve` is killed while messages are published, acked and rejected: the status of each is what was confirmed."""

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

KILLS = int(os.environ.get("LINN_STATUS_KILLS", "4"))
CONFIG = """
[topics.jobs]
status = "7d"
max_deliveries = 1000000
dead_letter = "graves"
[topics.graves]
kind = "stream"
status = "7d"
"""
PATIENCE = {"retries_max": 1000, "backoff_max_s": 0.1, "request_timeout_s": 60.0}


class StatusLoad:
    """A producer, and a worker that acks or rejects each message."""

    def __init__(self, url: str) -> None:
        self.stopping = False
        self.published: set[str] = set()
        self.acked: set[str] = set()
        self.rejected: set[str] = set()
        self._url = url

    async def run(self) -> None:
        async with linn.connect(self._url, **PATIENCE) as client, trio.open_nursery() as nursery:  # type: ignore[arg-type]
            nursery.start_soon(self._work, client)
            async with client.producer("jobs") as producer:
                while not self.stopping:
                    self.published.add(str((await producer.publish(b"job")).id))
            nursery.cancel_scope.cancel()

    async def _work(self, client: Client) -> None:
        async with client.consumer("jobs", prefetch=20) as consumer:
            while True:
                try:
                    message = await anext(consumer)
                    id = str(message.id)
                    if len(self.acked) > 2 * len(self.rejected):
                        await message.reject("no")
                        self.rejected.add(id)
                    else:
                        await message.ack()
                        self.acked.add(id)
                except LinnError:
                    continue  # Its lease died with the broker: the message comes again.


async def states(client: Client, topic: str, ids: set[str]) -> set[str]:
    """The states of messages, each once."""
    some, found = sorted(ids), set[str]()
    for at in range(0, len(some), 1000):
        found |= {f"{each['state']} {each['reason']}" for each in await client.status(topic, some[at : at + 1000])}
    return found


async def test_sigkill_changes_no_status_that_was_confirmed(tmp_path: Path) -> None:
    rng = random.Random(1)
    with BrokerProcess(tmp_path, CONFIG) as broker:
        load = StatusLoad(broker.url)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            for _ in range(KILLS):
                await trio.sleep(rng.uniform(0.5, 1.0))
                await trio.to_thread.run_sync(kill_and_start, broker, rng)
            await trio.sleep(0.5)
            load.stopping = True
        await trio.to_thread.run_sync(kill_and_start, broker, rng)
        async with linn.connect(broker.url, **PATIENCE) as client:  # type: ignore[arg-type]
            assert len(load.acked) > 10
            assert len(load.rejected) > 5
            # An ack or a rejection whose answer was lost is no promise, and may be either.
            assert await states(client, "jobs", load.acked - load.rejected) == {"settled "}
            assert await states(client, "jobs", load.rejected - load.acked) == {"dead rejected"}
            assert "unknown " not in await states(client, "jobs", load.published)
            with trio.fail_after(30):
                while (await client.admin.topic("jobs"))["queue"]["unsettled"] and await states(
                    client, "graves", load.rejected
                ) != {"stored "}:
                    await trio.sleep(0.1)
            assert await states(client, "graves", load.rejected) == {"stored "}
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
