"""Producer, broker and processes are killed again and again: each input has one output. A failure prints its seed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import linn
from linn.client import Client
from linn.testing.process import BrokerProcess

KILLS = 25
HERE = Path(__file__).parent
ALIVE_S_MAX = 0.6
DONE_S_MAX = 600.0
PARTITIONS = 3
CONFIG = f"""
[topics.orders]
kind = "both"
partitions = {PARTITIONS}
lease = "5s"
redelivery_delay = "10ms"
max_deliveries = 100
[topics.visits]
kind = "stream"
partitions = {PARTITIONS}
[topics.log]
kind = "stream"
partitions = {PARTITIONS}
[topics.work]
kind = "queue"
partitions = {PARTITIONS}
"""
NAMES = ("ann", "bob")


class Program:
    """A program of this folder, which is started again after each kill."""

    def __init__(self, folder: Path, program: str, *arguments: str) -> None:
        self._command = [sys.executable, str(HERE / program), *arguments]
        self._log = folder / "programs.log"
        self.start()

    def start(self) -> None:
        """Start the process."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)

    def kill(self) -> None:
        """End the process with SIGKILL. It must not have ended by itself."""
        assert self._process.poll() is None, "the program ended by itself"
        self.close()

    def close(self) -> None:
        """End the process if it is there."""
        self._process.kill()
        self._process.wait()


@pytest.mark.parametrize(
    ("source", "sink", "group"), [("orders", "log", None), ("visits", "work", "counters")], ids=["queue", "stream"]
)
async def test_each_input_has_one_output_whoever_is_killed(
    tmp_path: Path, source: str, sink: str, group: str | None
) -> None:
    seed = 1
    rng = random.Random(seed)
    confirmed = tmp_path / "confirmed"
    with BrokerProcess(tmp_path, CONFIG) as broker:
        groups = [group] if group else []
        producer = Program(tmp_path, "publishing_program.py", broker.url, source, str(confirmed))
        workers = [Program(tmp_path, "process_program.py", broker.url, name, source, sink, *groups) for name in NAMES]
        programs = [producer, *workers]
        try:
            for number in range(KILLS):
                await trio.sleep(rng.uniform(0.05, ALIVE_S_MAX))
                if number % 3 == 2:
                    await trio.to_thread.run_sync(broker.kill)
                    await trio.to_thread.run_sync(broker.start)
                else:
                    victim = rng.choice([producer, *workers, *workers])
                    await trio.to_thread.run_sync(victim.kill)
                    victim.start()
            await trio.sleep(ALIVE_S_MAX)
            await trio.to_thread.run_sync(producer.kill)
            async with linn.connect(broker.url) as client:
                await until(lambda: is_done(client, source, group))
                inputs = await stored(client, source)
                outputs = await (taken(client, sink) if sink == "work" else stored(client, sink))
        except BaseException as error:
            error.add_note(f"seed {seed} decides the moments")
            raise
        finally:
            for program in programs:
                program.close()
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0
    assert Counter(inputs).most_common(1)[0][1] == 1
    assert set(confirmed.read_bytes().split()) <= {*inputs}, "what was confirmed is stored"
    found, expected = Counter(outputs), Counter(b"made of " + value for value in inputs)
    assert found - expected == expected - found == Counter(), f"seed {seed} decides the moments"
    assert len(inputs) > 10 * KILLS, "there was no load"
    assert b"Traceback" not in (tmp_path / "programs.log").read_bytes()


async def test_a_transaction_goes_on_over_kills_of_the_broker(tmp_path: Path) -> None:
    def restart() -> None:
        broker.kill()
        broker.start()

    with BrokerProcess(tmp_path, CONFIG) as broker:
        async with linn.connect(broker.url) as client:
            expected = list[bytes]()
            for number in range(4):
                async with client.transaction("tx") as tx:
                    for part in range(2):
                        expected.append(b"%d-%d" % (number, part))
                        await tx.publish("log", expected[-1])
                        if number != part:
                            await trio.to_thread.run_sync(restart)
            assert sorted(await stored(client, "log")) == expected
        assert "Traceback" not in broker.log_text()
        assert broker.stop() == 0


async def test_a_shared_transaction_goes_on_over_kills_of_the_broker(tmp_path: Path) -> None:
    def restart() -> None:
        broker.kill()
        broker.start()

    with BrokerProcess(tmp_path, CONFIG) as broker:
        ids, values = list[int](), [b"%d" % number for number in range(3)]
        for value in values:
            async with linn.connect(broker.url) as client:
                shared = client.shared_transactions("job", run=7)
                ticket = await shared.join()
                async with shared.producer(ticket, "log") as other:
                    await other.publish(b"an attempt that does not count")
                async with shared.producer(ticket, "log") as producer:
                    await producer.publish(value)
                ids.append(producer.id)
            await trio.to_thread.run_sync(restart)
        async with linn.connect(broker.url) as client:
            await client.shared_transactions("job", run=7).commit(ticket, ids, sequence=1)
            assert sorted(await stored(client, "log")) == values
        assert broker.stop() == 0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(DONE_S_MAX):
        while not await condition():
            await trio.sleep(0.2)


async def is_done(client: Client, source: str, group: str | None) -> bool:
    """Whether everything in the source has been processed."""
    if group is not None:
        return not (await client.admin.group(group))["lag"]
    queue = (await client.admin.topic(source))["queue"]
    assert queue is not None
    return not queue["unsettled"]


async def stored(client: Client, topic: str) -> list[bytes]:
    """The values in a stream."""
    found: list[bytes] = []
    for partition in range(PARTITIONS):
        offset = 0
        while True:
            fetched = await client.fetch(topic, partition, offset)
            found += [value or b"" for batch in fetched.batches for value in batch.values]
            if fetched.next_offset <= offset:
                break
            offset = fetched.next_offset
    return found


async def taken(client: Client, topic: str) -> list[bytes]:
    """The values in a queue, which is empty then."""
    found: list[bytes] = []
    async with client.consumer(topic) as consumer:
        while not await is_done(client, topic, None):
            with trio.move_on_after(1):
                batch = await consumer.next_batch()
                found += [value or b"" for value in batch.values]
                await batch.ack()
    return found
