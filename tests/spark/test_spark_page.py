"""The programs of the Spark page run as they stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from spark_session import needs_spark

import linn.sync
from linn.testing.process import BrokerProcess

needs_spark()

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-with-spark.md"
CONFIG = """
[topics.flights]
kind = "stream"
partitions = 2
[topics.counts]
"""
HOUR_MS = 3_600_000


def program(title: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(f'```python title="{title}"\n')
    return text[text.index("\n", start) + 1 : text.index("\n```", start)]


def run(title: str, address: str, folder: Path) -> str:
    file = folder / title
    file.write_text(program(title).replace("127.0.0.1:5466", address), encoding="utf-8")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_programs_of_the_page_read_a_topic_and_write_counts_back(tmp_path: Path) -> None:
    data = tmp_path / "broker"
    data.mkdir()
    with BrokerProcess(data, CONFIG) as broker, linn.sync.connect(broker.urls[0]) as client:
        address = broker.urls[0].removeprefix("linn://")
        with client.producer("flights") as producer:
            for number in range(40):
                key = b"JFK" if number % 4 else b"LGA"
                producer.publish(b"flight %d" % number, key=key, timestamp_ms=HOUR_MS * (number % 2))
        assert "flight" in run("late.py", address, tmp_path)
        run("delays.py", address, tmp_path)
        run("delays.py", address, tmp_path)
        with client.consumer("counts") as consumer:
            found = [json.loads(next(consumer).value or b"") for _ in range(3)]
            assert consumer.get(timeout_s=0) is None
    # Numbers that 4 divides are even, and of LGA.
    assert sorted((row["origin"], row["count"]) for row in found) == [("JFK", 10), ("JFK", 20), ("LGA", 10)]
