"""Tables of queues and named subscriptions: records by state, partitions, and consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from linn.cli.render.table import Column, number, print_table, wide

STATES = {
    "ready": "ready",
    "leased": "in flight",
    "decided": "decided",
    "delayed": "delayed",
    "returned": "of these returned",
    "dead": "dead",
}
"""Column heads of the states of records; `returned` counts the ready and delayed ones that were delivered before."""
_STATE_COLUMNS = [
    wide(number(head)) if name in ("decided", "delayed", "returned") else number(head) for name, head in STATES.items()
]


def print_queues(queues: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> None:
    """Print queues with their records by state; `names`: the column heads of the keys that name them."""
    rows = [
        [
            *(str(queue[name]) for name in names),
            *(f"{queue[count]:,}" for count in ("unsettled", *STATES)),
            f"{queue['oldest_ready_s']:,.1f}",
            *(f"{queue[count]:,}" for count in ("missed", "expired", "consumers")),
        ]
        for queue in queues
    ]
    ended = [wide(number(head)) for head in ("oldest ready (s)", "missed", "expired")]
    print_table([*names.values(), number("unsettled"), *_STATE_COLUMNS, *ended, number("consumers")], rows)


def print_queue(queue: Mapping[str, Any], title: str) -> None:
    """Print one queue by partition, and the records in flight to each consumer."""
    rows = [
        [str(partition["partition"]), *(f"{partition[name]:,}" for name in ("settled_before", "end", *STATES))]
        for partition in queue["by_partition"]
    ]
    heads = [number("partition"), wide(number("settled before")), wide(number("end")), *_STATE_COLUMNS]
    print_table(heads, rows, title)
    counts = ", ".join(f"{queue[name]:,} {name}" for name in ("missed", "expired"))
    print(f"the oldest ready one has waited for {queue['oldest_ready_s']:,.1f} s; {counts}")
    for partition in queue["by_partition"]:
        for first, end in partition["damaged"]:
            print(f"partition {partition['partition']}: the records from {first} to {end - 1} are damaged")
    if not queue["by_consumer"]:
        print("no consumers")
        return
    consumers = [
        [
            str(consumer["consumer"]),
            consumer["name"],
            "yes" if consumer["active"] else "no",
            *(f"{consumer[count]:,}" for count in ("priority", "leased", "decided")),
        ]
        for consumer in queue["by_consumer"]
    ]
    heads = [number("consumer"), Column("name"), Column("active"), number("priority")]
    print_table([*heads, number("in flight"), number("decided")], consumers)
