"""`linn bench`: how fast is this broker, from here, and does it lose anything?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from linn.cli.completion import topic_names
from linn.cli.options import DEFAULT_URL, Json, Url

app = typer.Typer(help="Load a broker: print rates and latencies, or check that nothing is lost.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="An existing topic.", autocompletion=topic_names)]
CountMax = Annotated[int, typer.Option("--count", min=1, metavar="COUNT", help="Messages.")]
Size = Annotated[int, typer.Option("--size", min=0, metavar="BYTES", help="Bytes of a message.")]
NumberedSize = Annotated[
    int, typer.Option("--size", min=12, metavar="BYTES", help="Bytes of a message; its number is among them.")
]
Batch = Annotated[
    int, typer.Option("--batch", min=1, metavar="COUNT", help="Messages of one call; each call is confirmed.")
]
Rate = Annotated[str | None, typer.Option("--rate", metavar="RATE", help="At most so many: 100/s, 6000/m, 5/h.")]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--setting", metavar="KEY=VALUE", help="Of the topic, as `linn topics create` takes it. May be repeated."
    ),
]
Duration = Annotated[str, typer.Option("--duration", metavar="TIME", help="How long to publish: 30s, 10m, 8h.")]
Consumers = Annotated[
    int | None,
    typer.Option(
        "--consumers", min=1, max=100, metavar="COUNT", help="That compete; not with --producers. Default: 2."
    ),
]
SoakRate = Annotated[
    str | None,
    typer.Option(
        "--rate", metavar="RATE", help="100/s, 6000/m, 5/h. Default: 10000/s; with --producers 1000/s of each of them."
    ),
]
Producers = Annotated[
    int | None,
    typer.Option(
        "--producers",
        min=1,
        max=100_000,
        metavar="COUNT",
        help="Instead of checking: load a stream with so many, each on its own connection; say what is full first.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=64,
        metavar="COUNT",
        help="That --producers are spread over. Default: one per processor, but for the broker's.",
    ),
]
Linger = Annotated[
    str | None,
    typer.Option(
        "--linger", metavar="TIME", help="How long each of --producers gathers records for a batch. Default: 100ms."
    ),
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
    from linn.bench.throughput import bench_publish

    bench_publish(url, topic, count=count, size=size, batch=batch, as_json=as_json)


@app.command("consume")
def consume(topic: Topic, count: CountMax = 1_000_000, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Consume so many messages, batch by batch, and ack them. On a queue they are gone then."""
    from linn.bench.throughput import bench_consume

    bench_consume(url, topic, count=count, as_json=as_json)


@app.command("latency")
def latency(
    count: CountMax = 1_000,
    size: NumberedSize = 128,
    rate: Rate = None,
    setting: Setting = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """How long a message takes to its confirmation and to a consumer, one at a time, in a topic made for this."""
    from linn.bench.latency import Latency
    from linn.bench.pace import rate_of
    from linn.cli.typed_value import named_values

    settings = named_values(setting or (), "--setting")
    per_s = None if rate is None else rate_of(rate)
    Latency(count=count, size=size, rate=per_s, settings=settings).run(url, as_json=as_json)


@app.command("soak")
def soak(
    duration: Duration = "1m",
    rate: SoakRate = None,
    size: NumberedSize = 128,
    consumers: Consumers = None,
    producers: Producers = None,
    processes: Processes = None,
    linger: Linger = None,
    setting: Setting = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Load a queue made for this, and check that all that was confirmed arrives unchanged. Ends with 1 if not.

    The broker may be stopped, killed and started meanwhile: what matters is that nothing it confirmed is lost.

    With --producers it is another run: a stream made for this is loaded by so many connections, and the result is the
    share of their rate that the broker confirmed, and what was full first. It ends with 1 where publishes failed.

    Ctrl-C ends it with what it came to until then; without --producers `lost` and `ok` are left out, for what has not
    arrived yet may be on its way.
    """
    from linn.bench.pace import rate_of
    from linn.cli.moment import seconds_of
    from linn.cli.typed_value import named_values

    settings = named_values(setting or (), "--setting")
    duration_s = seconds_of(duration, "--duration")
    if not duration_s:
        raise typer.BadParameter(f"{duration!r} is no time to publish in", param_hint="--duration")
    if producers is not None:
        _refuse("nothing is consumed with --producers", {"--consumers": consumers})
        from linn.bench.coordinator import Fleet

        fleet = Fleet(
            producers=producers,
            processes=processes,
            rate=rate_of(rate or "1000/s"),
            size=size,
            linger_s=seconds_of(linger or "100ms", "--linger"),
            duration_s=duration_s,
            settings=settings,
        )
        if not fleet.run(url, as_json=as_json):
            raise typer.Exit(1)
        return
    _refuse("is about --producers, and there are none", {"--processes": processes, "--linger": linger})
    from linn.bench.soak import Soak

    if settings.get("kind") == "stream":
        raise typer.BadParameter("a soak needs a queue: kind=queue or kind=both", param_hint="--setting")
    soaking = Soak(
        duration_s=duration_s,
        rate=rate_of(rate or "10000/s"),
        size=size,
        consumers=consumers or 2,
        settings=settings,
    )
    if not soaking.run(url, as_json=as_json):
        raise typer.Exit(1)


def _refuse(why: str, given: Mapping[str, object]) -> None:
    """Raise BadParameter for the first option that was given and would be without effect."""
    for option, value in given.items():
        if value is not None:
            raise typer.BadParameter(why, param_hint=option)
