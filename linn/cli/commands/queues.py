"""`linn queues`: what waits in queues, and what is with their consumers."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import queue_names
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url

app = noun("Look at queues: what is ready, in flight, delivered again.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The queue.", autocompletion=queue_names)]


@app.command("list")
def list_queues(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """All queues with their numbers of records."""
    from linn.cli.queue_admin import list_all

    list_all(url, as_json=as_json)


@app.command("describe")
def describe(topic: Topic, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """One queue: by partition, and what each consumer holds."""
    from linn.cli.queue_admin import describe_one

    describe_one(url, topic, as_json=as_json)
