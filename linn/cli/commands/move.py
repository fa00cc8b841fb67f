"""`linn move`: what waits in a queue goes to another topic, or to an exchange."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import exchange_names, queue_names, topic_names
from linn.cli.options import DEFAULT_URL, CountMax, DryRun, Json, Url, Where

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="The queue.", autocompletion=queue_names)]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="The topic where to, unless --exchange says it.",
        show_default=False,
        autocompletion=topic_names,
    ),
]
Exchange = Annotated[
    str | None, typer.Option("--exchange", metavar="NAME", help="Move to this exchange.", autocompletion=exchange_names)
]


def move(
    source: Source,
    target: Target = None,
    exchange: Exchange = None,
    where: Where = None,
    count: CountMax = None,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Move what waits in a queue. Each message is settled there once its copy is confirmed, so that none is lost.

    A copy keeps value, key, routing key, labels, headers, id and time. Where the command is killed, the few messages
    under way may be in both places. What others hold, and what is delayed or comes in meanwhile, stays; so does what no
    binding of an exchange sends to a topic: then it ends with 1.
    """
    if (target is None) == (exchange is None):
        raise typer.BadParameter("name the topic to move to, or --exchange NAME", param_hint="TARGET")
    if target == source:
        raise typer.BadParameter(f"{source} is where the messages are already", param_hint="TARGET")
    from linn.cli.moving import Move, Moving, Target
    from linn.cli.selection import selection

    place = Target(exchange, is_exchange=True) if exchange is not None else Target(target or "")
    selects = None if where is None else selection(where)
    Moving(Move(source, place, selects=selects, count_max=count), dry=dry_run).run(url, as_json=as_json)
