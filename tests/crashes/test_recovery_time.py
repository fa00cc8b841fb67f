"""The bytes read by a start after a crash do not grow with the size of the data, and neither does its time."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import psutil
import pytest
import trio
from stopwatch import MEASURES

import linn
from linn.client.client import Client
from linn.core.errors.tree import ConnectionLost
from linn.testing.process import BrokerProcess

MIB = 1 << 20
GIB = 1 << 30
READY_S_MAX = 2.0
STREAM = '[topics.events]\nkind = "stream"\n'
VALUES = [bytes(32_000)] * 1024
"""Published at once: 31 MiB."""


async def fill(client: Client, topic: str, size_bytes: int) -> None:
    """Publish at least so many bytes."""
    async with client.producer(topic, batch_bytes_max=MIB) as producer:
        for _ in range(-(-size_bytes // (len(VALUES) * len(VALUES[0])))):
            await producer.publish_many(VALUES)


async def fill_and_kill(broker: BrokerProcess, topic: str, size_bytes: int) -> None:
    """Publish so many bytes, and kill the broker while it is sent more."""
    async with linn.connect(broker.url, retries_max=0) as client:
        await fill(client, topic, size_bytes)
        with contextlib.suppress(ConnectionLost):
            async with client.producer(topic) as producer:
                while producer.buffered_bytes < MIB:
                    producer.publish_nowait(VALUES[0])
                await trio.lowlevel.checkpoint()
                broker.kill()


def restarted(broker: BrokerProcess) -> tuple[int, float]:
    """(bytes read, processor time in seconds) of a start."""
    broker.start()
    process = psutil.Process(broker.pid)
    times = process.cpu_times()
    return process.io_counters().read_chars, times.user + times.system


async def test_the_bytes_read_by_a_start_do_not_grow_with_the_log(tmp_path: Path) -> None:
    read = []
    with BrokerProcess(tmp_path, STREAM) as broker:
        broker.kill()
        nothing, _ = restarted(broker)
        for size_bytes in (100 * MIB, 500 * MIB):  # The second on top of the first.
            await fill_and_kill(broker, "events", size_bytes)
            bytes_read, processor_s = restarted(broker)
            read.append(bytes_read - nothing)
            assert processor_s < READY_S_MAX or not MEASURES
        async with linn.connect(broker.url) as client:
            (topic,) = await client.admin.topics()
            assert topic["partitions"][0]["bytes"] >= 600 * MIB
    # At most what is appended between two housekeepings, and while the disk syncs what one of them found.
    assert max(read) < 320 * MIB, f"{read} bytes read after 100 and 600 MiB"


@pytest.mark.parametrize(("segments", "partitions"), [(500, 100), pytest.param(5000, 1000, marks=pytest.mark.soak)])
async def test_many_segments_and_partitions_do_not_keep_a_start_up(
    tmp_path: Path, segments: int, partitions: int
) -> None:
    small = '[storage.segmented-log]\nsegment_bytes_max = "4KiB"\n'
    config = f'{small}{STREAM}[topics.wide]\nkind = "stream"\npartitions = {partitions}\n'
    with BrokerProcess(tmp_path, config) as broker:
        async with linn.connect(broker.url) as client:
            async with client.producer("events", batch_bytes_max=4096) as producer:
                for _ in range(segments // 100):
                    await producer.publish_many([bytes(3000)] * 100)
        broker.stop()
        broker.start()
        broker.kill()
        _, processor_s = restarted(broker)
        assert len([*(broker.data_dir / "segmented-log" / "events" / "0").glob("*.log")]) >= segments
        assert processor_s < READY_S_MAX or not MEASURES


# --- with 10 GB ------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path) -> Path:
    free = shutil.disk_usage(tmp_path).free
    if free < 14 * GIB:
        pytest.skip(f"10 GB are to be written here, and {free / GIB:.1f} GiB are free")
    return tmp_path


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "partitions"), [("stream", 1), ("stream", 100), ("queue", 1), ("queue", 8), ("both", 4)]
)
async def test_a_broker_with_10_gb_is_ready_within_2_s_of_a_kill(large: Path, kind: str, partitions: int) -> None:
    config = f'[topics.events]\nkind = "{kind}"\npartitions = {partitions}\n'
    if kind != "stream":
        config += 'lease = "1h"\n'
    with BrokerProcess(large, config) as broker:
        empty_s = broker.ready_s
        async with linn.connect(broker.url) as client:
            await fill(client, "events", 10_000_000_000)
            if kind != "stream":
                await settle_some(client)
        await fill_and_kill(broker, "events", 64 * MIB)
        broker.start()
        # On a machine that is busy with other things an empty broker takes long as well.
        assert broker.ready_s < max(READY_S_MAX, 2 * empty_s)
    shutil.rmtree(large / "data")


async def settle_some(client: Client) -> None:
    """Leave a state log with holes in it."""
    async with client.consumer("events", prefetch=20_000) as consumer:
        for _ in range(10_000):
            message = await anext(consumer)
            if message.offset % 3:
                await message.ack()
