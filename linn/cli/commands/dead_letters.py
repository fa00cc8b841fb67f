"""`linn dead-letters`: look at what no consumer could deal with, and send it back to where it came from."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import queue_names, topic_names
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, CountMax, DryRun, Json, Url, Where

app = noun("Look at what no consumer could deal with, and send it back to where it came from.")

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic that takes dead letters.", autocompletion=queue_names)
]
Only = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="Only this one, and each message in it.", autocompletion=queue_names),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TOPIC",
        help="Send them here, instead of to the topic that each came from.",
        autocompletion=topic_names,
    ),
]
Shown = Annotated[int, typer.Option("--count", min=1, metavar="COUNT", help="Of one topic: so many messages at most.")]


@app.command("list")
def list_dead_letters(
    topic: Only = None, where: Where = None, count: Shown = 1_000, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """The topics that take dead letters, how many wait there, and of which topics.

    Of one TOPIC also each message: where it came from, why, after how many attempts, and when. Nothing is taken.
    """
    if topic is None and where is not None:
        raise typer.BadParameter("looks at the messages of one topic: linn dead-letters list TOPIC --where ...")
    from linn.cli.dead_letter_admin import list_all, list_one

    if topic is None:
        list_all(url, as_json=as_json)
    else:
        list_one(url, topic, where, count, as_json=as_json)


@app.command("replay")
def replay(
    topic: Topic,
    to: To = None,
    where: Where = None,
    count: CountMax = None,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Send dead letters back to the topics that they came from, as `linn move` moves: none is lost.

    They arrive as they were published, without the labels that made them dead letters. Those whose topic is gone stay.
    """
    if to == topic:
        raise typer.BadParameter(f"{topic} is where the messages are already", param_hint="--to")
    from linn.cli.dead_letter_admin import replay_one

    replay_one(url, topic, to, where, count, dry=dry_run, as_json=as_json)
