"""`linn request`: publish a request, and print the replies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.commands.publish import Exchange, Header, Key, Label, RoutingKey
from linn.cli.completion import published_to
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json
from linn.cli.session import with_client
from linn.core.errors.inboxes import NoReply

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.client.connection.replying import Reply

Arguments = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC VALUE",
        help="Target topic, unless --exchange is given; then the request.",
        autocompletion=published_to,
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="How long to wait for the replies.")
]
RepliesMax = Annotated[
    int, typer.Option("--replies", min=1, metavar="N", help="Wait for so many replies, or print those that came.")
]


def request(
    arguments: Arguments,
    exchange: Exchange = None,
    key: Key = None,
    routing_key: RoutingKey = "",
    label: Label = None,
    header: Header = None,
    timeout: Timeout = 30.0,
    replies_max: RepliesMax = 1,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Publish VALUE as a request, wait for replies to it, and print each on a line. It fails if none comes."""
    import os

    from linn.cli import typed_value

    *topic, value = arguments
    if len(topic) != (exchange is None):
        raise typer.BadParameter("name a TOPIC, or an exchange with --exchange, and one VALUE")
    properties: dict[str, Any] = {
        "key": None if key is None else os.fsencode(key),
        "routing_key": routing_key,
        "labels": typed_value.labels(label or ()),
        "headers": typed_value.headers(header or ()),
    }

    async def ask(client: Client) -> list[Reply]:
        return await client.request_many(
            topic[0] if topic else None,
            os.fsencode(value),
            exchange=exchange,
            replies_max=replies_max,
            timeout_s=timeout,
            **properties,
        )

    replies = with_client(url, ask)
    if not replies:
        raise NoReply(f"no reply from {exchange or topic[0]} within {timeout:g} s")
    _print(replies, as_json=as_json)


def _print(replies: list[Reply], *, as_json: bool) -> None:
    from linn.cli.render.message_format import readable
    from linn.core.errors.texts import printable

    if as_json:
        shown = [
            {"value": readable(reply.value), "headers": [[name, readable(value)] for name, value in reply.headers]}
            for reply in replies
        ]
        print_json({"replies": shown}, indent=None)
        return
    lines = [(reply.value or b"") + b"\n" for reply in replies]
    if sys.stdout.isatty():
        lines = [printable(line.decode(errors="backslashreplace")).encode() for line in lines]
    sys.stdout.buffer.write(b"".join(lines))
