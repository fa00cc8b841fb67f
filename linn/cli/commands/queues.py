"""`linn queues`: list and describe queues."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import queue_names
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.render.queue_table import print_queue, print_queues
from linn.cli.session import with_client

app = noun("List and describe queues: records by state, and consumers.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the queue.", autocompletion=queue_names)]


@app.command("list")
def list_queues(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List all queues with their numbers of records by state."""
    found = with_client(url, lambda client: client.admin.subscriptions())
    queues = [queue for queue in found if not queue["subscription"]]
    if as_json:
        print_json(queues)
    elif not queues:
        print("no queues yet: linn topics create NAME kind=queue")
    else:
        print_queues(queues, {"topic": "queue"})


@app.command("describe")
def describe(topic: Topic, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show one queue by partition, and the records in flight to each consumer."""
    queue = with_client(url, lambda client: client.admin.subscription(topic))
    if as_json:
        print_json(queue)
    else:
        print_queue(queue, topic)
