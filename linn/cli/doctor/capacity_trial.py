"""Short measurement with a temporary broker, on the disk of the data folder, and one client."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import anyio

from linn.cli.doctor.capacity import Speed
from linn.cli.doctor.machine import existing_part
from linn.cli.session import with_client
from linn.client.client import Client
from linn.testing.process import BrokerProcess

TRIAL_S = 2.0
"""Duration of each of the three measurements."""
_BOUND_S = 30.0
"""Time limit for all of them."""
_BATCH = 5_000
_BYTES_MAX = 1 << 30
"""Maximum size of what is written, so that a small disk is not filled."""
_CONFIG = '[topics.trial]\nkind = "stream"\n'


def measure(data_dir: str, size: int) -> Speed:
    """Start a broker beside the data folder, load it for some seconds, stop it, and remove its data.

    Raises LinnError; OSError where the folder can't be written.
    """
    with tempfile.TemporaryDirectory(prefix="linn-trial-", dir=existing_part(data_dir)) as folder:
        with BrokerProcess(Path(folder), _CONFIG, listen=[f"unix:{folder}/socket"]) as broker:
            return with_client(broker.url, partial(_measure, size))


async def _measure(size: int, client: Client) -> Speed:
    with anyio.fail_after(_BOUND_S):
        one_by_one, one_by_one_s = await _one_by_one(client, size)
        published, published_s = await _publish(client, size)
        consumed, consumed_s = await _consume(client, published)
    return Speed(published / published_s, consumed / consumed_s, one_by_one / one_by_one_s)


async def _one_by_one(client: Client, size: int) -> tuple[int, float]:
    value, count, began = os.urandom(size), 0, anyio.current_time()
    async with client.producer(topic="trial") as producer:
        while anyio.current_time() < began + TRIAL_S:
            await producer.publish(value)
            count += 1
    return count, anyio.current_time() - began


async def _publish(client: Client, size: int) -> tuple[int, float]:
    values, count, began = [os.urandom(size) for _ in range(_BATCH)], 0, anyio.current_time()
    async with client.producer(topic="trial") as producer:
        while anyio.current_time() < began + TRIAL_S and (not count or count * size < _BYTES_MAX):
            await producer.publish_many(values)
            count += len(values)
        return count, anyio.current_time() - began


async def _consume(client: Client, published: int) -> tuple[int, float]:
    count, began = 0, anyio.current_time()
    async with client.consumer("trial") as consumer:
        with anyio.move_on_after(TRIAL_S):
            async for batch in consumer.batches():
                count += len(batch)
                batch.ack()
                if count >= published:
                    break
        return count, anyio.current_time() - began
