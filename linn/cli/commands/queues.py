"""`linn queues`: list and describe queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from linn.cli.completion import queue_names
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.render.table import number, numbers, print_table, wide
from linn.cli.session import with_client

app = noun("List and describe queues: records by state, and consumers.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the queue.", autocompletion=queue_names)]

_STATES = {
    "ready": "ready",
    "leased": "in flight",
    "delayed": "delayed",
    "returned": "of these returned",
    "dead": "dead",
}
"""Column heads of the states of records; `returned` counts the ready and delayed ones that were delivered before."""
_STATE_COLUMNS = [wide(number(head)) if name == "returned" else number(head) for name, head in _STATES.items()]


@app.command("list")
def list_queues(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all queues with their numbers of records by state."""
    queues: Sequence[Mapping[str, Any]] = with_client(url, lambda client: client.admin.subscriptions())
    if as_json:
        print_json(queues)
        return
    if not queues:
        print("no queues yet: linn topics create NAME kind=queue")
        return
    rows = [
        [queue["topic"], *(f"{queue[name]:,}" for name in ("unsettled", *_STATES, "consumers"))] for queue in queues
    ]
    print_table(["queue", number("unsettled"), *_STATE_COLUMNS, number("consumers")], rows)


@app.command("describe")
def describe(topic: Topic, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show one queue by partition, and the records in flight to each consumer."""
    queue = with_client(url, lambda client: client.admin.subscription(topic))
    if as_json:
        print_json(queue)
        return
    _print_partitions(queue)
    for partition in queue["by_partition"]:
        for first, end in partition["damaged"]:
            print(f"partition {partition['partition']}: the records from {first} to {end - 1} are damaged")
    if not queue["by_consumer"]:
        print("no consumers")
        return
    consumers = [[str(consumer["consumer"]), f"{consumer['leased']:,}"] for consumer in queue["by_consumer"]]
    print_table(numbers("consumer", "in flight"), consumers)


def _print_partitions(queue: Mapping[str, Any]) -> None:
    rows = [
        [
            str(partition["partition"]),
            *(f"{partition[name]:,}" for name in ("settled_before", "end", *_STATES)),
        ]
        for partition in queue["by_partition"]
    ]
    heads = [number("partition"), wide(number("settled before")), wide(number("end")), *_STATE_COLUMNS]
    print_table(heads, rows, queue["topic"])
