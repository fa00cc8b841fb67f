"""Two pipelines of one topic, into a lake and into another topic, under a broker that starts their driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import linn.sync

WAIT_S = 600


def config(folder: Path, *, of_topics: str = "", of_pipelines: str = "") -> str:
    """Return the broker's configuration, with more settings of each topic and of each pipeline."""
    return f"""
[topics.orders]
kind = "stream"
partitions = 3
{of_topics}
[topics.orders.spark_sink]
path = "{folder}/lake"
trigger = "0s"
{of_pipelines}

[topics.copies]
kind = "stream"
partitions = 2
{of_topics}
[[spark.pipelines]]
name = "copies"
topics = ["orders"]
format = "linn"
options = {{ topic = "copies" }}
trigger = "0s"
{of_pipelines}
"""


def pipelines(client: linn.sync.Client) -> dict[str, Any]:
    """The status of the pipelines, by name."""
    (spark,) = client.admin.perform("service.list")
    return {each["name"]: each for each in spark["status"]["pipelines"]}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that other processes do."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
