"""`linn browse`: print the messages of a topic without consuming them."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.completion import topic_names
from linn.cli.options import DEFAULT_URL, CountMax, Format, Raw, Time, Url, Where
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.client.client import Client

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="PLACE",
        help="First message, as in `linn consume`. Default: the first unsettled one of a queue, the start of a stream.",
    ),
]
Partition = Annotated[
    list[int] | None,
    typer.Option("--partition", min=0, metavar="NUMBER", help="Only this partition. May be repeated. Default: all."),
]


def browse(
    topic: Topic,
    partition: Partition = None,
    count: CountMax = None,
    since: Since = None,
    form: Format = "text",
    time: Time = False,
    raw: Raw = False,
    where: Where = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Print messages without consuming them: nothing is leased, acked or committed.

    Of a queue, prints the unsettled messages, including messages in flight. Ends with the last message that was
    there at the start.
    """
    from linn.cli.message_filter import split_filter
    from linn.cli.moment import place_of
    from linn.cli.render.message_format import line_format
    from linn.cli.topic_snapshot import TopicSnapshot

    start = None if since is None else place_of(since, "--since")
    line_of = line_format(form, time=time, raw=raw)
    at_broker, selects = split_filter(where)

    async def print_all(client: Client) -> None:
        left = count
        async with aclosing(TopicSnapshot(client, topic, partition or (), start, at_broker).messages()) as snapshot:
            async for messages in snapshot:
                chosen = [message for message in messages if selects is None or selects(message)][:left]
                sys.stdout.buffer.write(b"".join(map(line_of, chosen)))
                sys.stdout.buffer.flush()
                if left is not None:
                    left -= len(chosen)
                if left == 0:
                    return

    with_client(url, print_all)
