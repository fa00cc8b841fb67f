"""`linn consume` and `linn browse`: print messages, and take them or leave them."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import group_names, topic_names
from linn.cli.options import DEFAULT_URL, CountMax, Url, Where

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Where from.", autocompletion=topic_names)]
Group = Annotated[
    str,
    typer.Option("--group", metavar="NAME", help="On a stream: go on where this group is.", autocompletion=group_names),
]
Follow = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or stop when a second brings none.")]
Ack = Annotated[bool, typer.Option("--ack/--no-ack", help="Ack what was printed, or leave it in the queue.")]
Exec = Annotated[
    str | None,
    typer.Option(
        "--exec",
        metavar="COMMAND",
        help="Instead of printing: run this, with what has come on its stdin, and ack that once it has ended with 0.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="PLACE",
        help="Of a stream, and only where --group has committed nothing: earliest, latest, an offset, a time "
        '("2026-01-31T12:00"), or a duration ago ("10m"). Default: earliest.',
    ),
]
BrowseSince = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="PLACE",
        help="As of `linn consume`. Default: of a queue, what is not settled; of a stream, its start.",
    ),
]
Partition = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, metavar="NUMBER", help="Only this one. May be repeated. Default: all."),
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="text: the value, a line each; json: everything, a line each; pretty: the same for people, indented; or a "
        'template: "{time} {offset} {label.origin} {value}".',
    ),
]
Time = Annotated[bool, typer.Option("--time", help="Of text: the local time of each message before its value.")]


def consume(
    topic: Topic,
    group: Group = "",
    count: CountMax = None,
    follow: Follow = True,
    ack: Ack = True,
    since: Since = None,
    form: Format = "text",
    time: Time = False,
    where: Where = None,
    command: Exec = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages as they come, and ack them once they are written. A stream without --group is only read.

    In a pipe that is once they are in the pipe, whatever its reader makes of them: `linn move` moves messages, and
    --exec waits for the reader. It runs COMMAND in a shell, again and again, each time with what has come, up to 1000
    messages; where COMMAND does not end with 0, nothing of that is acked, and this ends with 1.

    --where passes over the other messages of a stream. On a queue it is refused, for somebody else may want them, and
    so is --since, for a queue gives what is not settled: `linn browse` looks without taking, and from anywhere.
    """
    if command is not None and not command.strip():
        raise typer.BadParameter("there is no command to run", param_hint="--exec")
    from linn.cli.consuming import Consuming
    from linn.cli.moment import place_of
    from linn.cli.render.message_format import line_format

    start = None if since is None else place_of(since, "--since")
    line_of = line_format(form, time=time, colours=command is None)
    consuming = Consuming(topic, group, count=count, follow=follow, ack=ack, start=start, line_of=line_of, where=where)
    consuming.run(url, command)


def browse(
    topic: Topic,
    partition: Partition = None,
    count: CountMax = None,
    since: BrowseSince = None,
    form: Format = "text",
    time: Time = False,
    where: Where = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages and leave them where they are: nothing is leased, acked or committed.

    Of a queue, what is not settled yet, also what a consumer holds now. Ends with what was there at the start.
    """
    from linn.cli.browsing import Browsing
    from linn.cli.moment import place_of
    from linn.cli.render.message_format import line_format

    start = None if since is None else place_of(since, "--since")
    line_of = line_format(form, time=time, colours=True)
    Browsing(topic, partition or (), count=count, start=start, line_of=line_of, where=where).run(url)
