"""`linn consume`: print messages."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from linn.cli.options import DEFAULT_URL, Url

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Where from.")]
Group = Annotated[str, typer.Option("--group", metavar="NAME", help="On a stream: go on where this group is.")]
CountMax = Annotated[int | None, typer.Option("--count", min=1, metavar="COUNT", help="Stop after so many messages.")]
Follow = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or stop when a second brings none.")]
Ack = Annotated[bool, typer.Option("--ack/--no-ack", help="Ack what was printed, or leave it in the queue.")]
Start = Annotated[str, typer.Option("--start", metavar="PLACE", help="Of a stream: earliest, latest or an offset.")]
Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help="value: a line each; json: everything.")]


def consume(
    topic: Topic,
    group: Group = "",
    count: CountMax = None,
    follow: Follow = True,
    ack: Ack = True,
    start: Start = "earliest",
    form: Format = "value",
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages as they come, and ack them once they are written. A stream without --group is only read."""
    if form not in ("value", "json"):
        raise typer.BadParameter("must be value or json", param_hint="--format")
    place = place_of(start)
    from linn.cli.consuming import Consuming

    Consuming(topic, group, count=count, follow=follow, ack=ack, start=place, as_json=form == "json").run(url)


def place_of(start: str) -> Literal["earliest", "latest"] | int:
    """What `--start` says. Raises BadParameter."""
    if start == "earliest":
        return "earliest"
    if start == "latest":
        return "latest"
    if start.isascii() and start.isdigit() and int(start) < 1 << 63:
        return int(start)
    raise typer.BadParameter("must be earliest, latest or an offset", param_hint="--start")
