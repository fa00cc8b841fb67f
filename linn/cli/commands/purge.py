"""`linn purge`: empty a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import queue_names
from linn.cli.confirm import confirm
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_result
from linn.cli.session import with_client
from linn.core.errors.texts import counted

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the queue.", autocompletion=queue_names)]


def purge(topic: Topic, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Settle all waiting messages of a queue without delivering them. Leased messages stay with their consumers."""
    if not yes:
        confirm(url, "topic.purge", f"Drop everything that waits in {topic}?", "not purged", name=topic)
    purged = with_client(url, lambda client: client.admin.purge_topic(topic))
    print_result({"purged": purged}, f"purged {counted(purged, 'message')} of {topic}", as_json=as_json)
