"""`linn serve` is killed while delayed messages are published and come: each comes once, and not before its time."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import trio
from test_kills import kill_and_start

import linn
from linn.testing.process import BrokerProcess

KILLS = int(os.environ.get("LINN_SCHEDULE_KILLS", "4"))
CONFIG = """
[topics.later]
kind = "stream"
"""
PATIENCE = {"retries_max": 1000, "backoff_max_s": 0.1, "request_timeout_s": 60.0}


class ScheduleLoad:
    """A producer of messages, each with the time at which it is due as its value; they are numbered."""

    def __init__(self, url: str) -> None:
        self.stopping = False
        self.published: set[bytes] = set()
        self._url = url
        self._rng = random.Random(2)

    async def run(self) -> None:
        async with linn.connect(self._url, **PATIENCE) as client, client.producer("later") as producer:  # type: ignore[arg-type]
            while not self.stopping:
                due_ms = int(time.time() * 1000) + self._rng.choice([1, 50, 300, 1_000, 4_000])
                values = [
                    b"%d %d %d" % (due_ms, len(self.published), index) for index in range(self._rng.randint(1, 20))
                ]
                await producer.publish_many(values, at=due_ms)
                self.published.update(values)


async def test_sigkill_lets_each_delayed_message_come_once(tmp_path: Path) -> None:
    rng = random.Random(1)
    with BrokerProcess(tmp_path, CONFIG) as broker:
        load = ScheduleLoad(broker.url)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            for _ in range(KILLS):
                await trio.sleep(rng.uniform(0.3, 1.5))
                await trio.to_thread.run_sync(kill_and_start, broker, rng)
            await trio.sleep(0.3)
            load.stopping = True
        await trio.to_thread.run_sync(kill_and_start, broker, rng)
        async with linn.connect(broker.url, **PATIENCE) as client:  # type: ignore[arg-type]
            with trio.fail_after(60):
                while (await client.scheduled("later"))["count"]:
                    await trio.sleep(0.1)
            found, offset = list[bytes](), 0
            while (fetched := await client.fetch("later", 0, offset, bytes_max=1 << 20)).batches:
                offset = fetched.next_offset
                for batch in fetched.batches:
                    values = [batch.records.value(index) or b"" for index in range(batch.records.count)]
                    assert all(batch.records.append_time_ms >= int(value.split()[0]) for value in values)
                    found += values
        assert len(load.published) > 20
        assert sorted(found) == sorted(load.published), "each once, sent again or not"
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
