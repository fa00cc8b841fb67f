"""`linn bench`: how fast is this broker, from here?"""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

app = typer.Typer(help="Load a broker and print rates. The topic must exist.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.")]
CountMax = Annotated[int, typer.Option("--count", min=1, metavar="COUNT", help="Messages.")]
Size = Annotated[int, typer.Option("--size", min=0, metavar="BYTES", help="Bytes of a message.")]
Batch = Annotated[
    int, typer.Option("--batch", min=1, metavar="COUNT", help="Messages of one call; each call is confirmed.")
]


@app.command("publish")
def publish(
    topic: Topic,
    count: CountMax = 1_000_000,
    size: Size = 128,
    batch: Batch = 10_000,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Publish random messages in confirmed calls."""
    from linn.cli.load import bench_publish

    bench_publish(url, topic, count=count, size=size, batch=batch, as_json=as_json)


@app.command("consume")
def consume(topic: Topic, count: CountMax = 1_000_000, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Consume so many messages, batch by batch, and ack them. On a queue they are gone then."""
    from linn.cli.load import bench_consume

    bench_consume(url, topic, count=count, as_json=as_json)
