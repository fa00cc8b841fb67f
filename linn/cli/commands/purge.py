"""`linn purge`: empty a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import queue_names
from linn.cli.confirm import confirm
from linn.cli.options import DEFAULT_URL, Json, Url, Yes

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The queue.", autocompletion=queue_names)]


def purge(topic: Topic, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Settle all that waits in a queue, without delivering it. What a consumer holds stays with it."""
    if not yes:
        confirm(url, "topic.purge", f"Drop everything that waits in {topic}?", "not purged", name=topic)
    from linn.cli.topic_admin import purge_one

    purge_one(url, topic, as_json=as_json)
