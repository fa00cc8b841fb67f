"""`linn status`: tell what became of messages."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import topic_names
from linn.cli.exit_code import ExitCode
from linn.cli.moment import seconds_of
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.render.table import number, print_table
from linn.cli.session import with_client
from linn.message_status import ENDED

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of messages, such as `linn browse` prints.")]
Wait = Annotated[
    str | None,
    typer.Option(
        "--wait",
        metavar="DURATION",
        help="Wait until each message has ended: it was settled, or is dead, expired, dropped, cancelled or aborted. "
        "Exit with 1 if one has not ended in this time, such as 10s.",
    ),
]


def status(topic: Topic, ids: Ids, wait: Wait = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Tell what became of messages of a topic that has a `status`, by their ids."""
    wait_s = 0.0 if wait is None else seconds_of(wait, "--wait")
    found = with_client(url, lambda client: client.status(topic, ids, wait_s=wait_s))
    if as_json:
        print_json(found)
    else:
        places = [["" if place is None else str(place) for place in (it["partition"], it["offset"])] for it in found]
        rows = [[it["id"], it["state"], it["reason"], *place] for it, place in zip(found, places, strict=True)]
        print_table(["id", "state", "reason", number("partition"), number("offset")], rows)
    if wait is not None and not all(it["state"] in ENDED for it in found):
        raise typer.Exit(int(ExitCode.FAILED))
