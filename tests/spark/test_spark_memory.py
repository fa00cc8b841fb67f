"""The broker's memory beside pipelines that run for an hour: micro-batches, transactions and producers leave nothing.

SPARK_MINUTES=20 python -m pytest -m soak tests/spark/test_spark_memory.py --timeout 0 -s
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from spark_session import needs_spark
from two_pipelines import config, pipelines, until

import linn.sync
from linn.testing.process import BrokerProcess

needs_spark()

MINUTES = float(os.environ.get("SPARK_MINUTES", 60))
SAMPLE_S = 5.0
MORE_BYTES_MAX = 16 << 20
"""Limit of the growth from the second quarter to the last one: the first fills segments and caches."""
VALUE = bytes(128)
SEGMENTS = '[storage.segmented-log]\nsegment_bytes_max = "16MiB"\n'
RETENTION = 'retention_bytes = "64MiB"'


@contextmanager
def load(url: str) -> Iterator[None]:
    """Publish 5,000 records a second."""
    over = threading.Event()

    def publish() -> None:
        with linn.sync.connect(url) as client, client.producer("orders") as producer:
            while not over.wait(0.2):
                producer.publish_many([VALUE] * 1_000)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(0)
def test_the_brokers_memory_stays_flat_beside_pipelines(tmp_path: Path) -> None:
    data = tmp_path / "broker"
    data.mkdir()
    samples: list[int] = []
    settings = SEGMENTS + config(tmp_path, of_topics=RETENTION)
    with BrokerProcess(data, settings) as broker, linn.sync.connect(broker.url) as client:
        with load(broker.url):
            until(lambda: all(each["state"] == "running" for each in pipelines(client).values()), "nothing runs")
            memory = psutil.Process(broker.pid)
            end_s = time.monotonic() + 60 * MINUTES
            while time.monotonic() < end_s:
                time.sleep(SAMPLE_S)
                samples.append(memory.memory_info().rss)
            found = pipelines(client).values()
        quarter = len(samples) // 4
        peaks = [max(samples[at : at + quarter]) for at in range(0, 4 * quarter, quarter)]
        print({each["name"]: each["progress"]["batches"] for each in found}, [peak >> 20 for peak in peaks], "MiB")
        assert all(each["restarts"] == 0 and each["progress"]["batches"] > MINUTES for each in found)
        assert peaks[3] - peaks[1] < MORE_BYTES_MAX
