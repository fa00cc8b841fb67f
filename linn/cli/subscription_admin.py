"""Queues over the wire: what the commands of `linn subscriptions` do, and how they show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from linn.cli.console import cell, columns_right, console
from linn.cli.session import with_client

_STATES = {
    "ready": "ready",
    "leased": "in flight",
    "delayed": "delayed",
    "returned": "of these returned",
    "dead": "dead",
}
"""The states of records by what people call them; `returned` counts those of ready and delayed that had a consumer."""


def list_all(url: str, *, as_json: bool) -> None:
    """Print all queues. Raises LinnError."""
    queues: Sequence[Mapping[str, Any]] = with_client(url, lambda client: client.admin.subscriptions())
    if as_json:
        print(json.dumps(queues, indent=2))
        return
    if not queues:
        print("no queues yet: linn topics create NAME kind=queue")
        return
    table = Table("queue", "unsettled", *_STATES.values(), "consumers")
    columns_right(table, 1)
    for queue in queues:
        numbers = (f"{queue[name]:,}" for name in ("unsettled", *_STATES, "consumers"))
        table.add_row(cell(queue["topic"]), *numbers)
    console().print(table)


def describe_one(url: str, topic: str, *, as_json: bool) -> None:
    """Print one queue. Raises LinnError."""
    queue = with_client(url, lambda client: client.admin.subscription(topic))
    if as_json:
        print(json.dumps(queue, indent=2))
        return
    console().print(_partitions_table(queue))
    for partition in queue["by_partition"]:
        for first, end in partition["damaged"]:
            print(f"partition {partition['partition']}: the records from {first} to {end - 1} are damaged")
    if not queue["by_consumer"]:
        print("no consumers")
        return
    table = Table("consumer", "in flight")
    columns_right(table, 0)
    for consumer in queue["by_consumer"]:
        table.add_row(str(consumer["consumer"]), f"{consumer['leased']:,}")
    console().print(table)


def _partitions_table(queue: Mapping[str, Any]) -> Table:
    table = Table(
        "partition", "settled before", "end", *_STATES.values(), title=cell(queue["topic"]), title_justify="left"
    )
    columns_right(table, 0)
    for partition in queue["by_partition"]:
        numbers = (f"{partition[name]:,}" for name in ("settled_before", "end", *_STATES))
        table.add_row(str(partition["partition"]), *numbers)
    return table
