"""Queues over the wire: what the commands of `linn queues` do, and how they show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from linn.cli.render.table import number, numbers, print_table, wide
from linn.cli.session import with_client

_STATES = {
    "ready": "ready",
    "leased": "in flight",
    "delayed": "delayed",
    "returned": "of these returned",
    "dead": "dead",
}
"""The states of records by what people call them; `returned` counts those of ready and delayed that had a consumer."""
_STATE_COLUMNS = [wide(number(head)) if name == "returned" else number(head) for name, head in _STATES.items()]


def list_all(url: str, *, as_json: bool) -> None:
    """Print all queues. Raises LinnError."""
    queues: Sequence[Mapping[str, Any]] = with_client(url, lambda client: client.admin.subscriptions())
    if as_json:
        print(json.dumps(queues, indent=2))
        return
    if not queues:
        print("no queues yet: linn topics create NAME kind=queue")
        return
    rows = [
        [queue["topic"], *(f"{queue[name]:,}" for name in ("unsettled", *_STATES, "consumers"))] for queue in queues
    ]
    print_table(["queue", number("unsettled"), *_STATE_COLUMNS, number("consumers")], rows)


def describe_one(url: str, topic: str, *, as_json: bool) -> None:
    """Print one queue. Raises LinnError."""
    queue = with_client(url, lambda client: client.admin.subscription(topic))
    if as_json:
        print(json.dumps(queue, indent=2))
        return
    _show_partitions(queue)
    for partition in queue["by_partition"]:
        for first, end in partition["damaged"]:
            print(f"partition {partition['partition']}: the records from {first} to {end - 1} are damaged")
    if not queue["by_consumer"]:
        print("no consumers")
        return
    consumers = [[str(consumer["consumer"]), f"{consumer['leased']:,}"] for consumer in queue["by_consumer"]]
    print_table(numbers("consumer", "in flight"), consumers)


def _show_partitions(queue: Mapping[str, Any]) -> None:
    rows = [
        [
            str(partition["partition"]),
            *(f"{partition[name]:,}" for name in ("settled_before", "end", *_STATES)),
        ]
        for partition in queue["by_partition"]
    ]
    heads = [number("partition"), wide(number("settled before")), wide(number("end")), *_STATE_COLUMNS]
    print_table(heads, rows, queue["topic"])
