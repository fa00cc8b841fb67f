"""`linn bench`: measure the throughput and latency of a broker, and check that nothing is lost.

The load engine is `linn.bench`; here are its options and output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import topic_names
from linn.cli.exit_code import on_interrupt
from linn.cli.options import DEFAULT_URL, Json, Rate, Url
from linn.cli.render.console import print_json, print_text
from linn.cli.render.progress import Advance, progress
from linn.cli.render.table import number, numbers, print_table
from linn.cli.session import broker_address, with_client
from linn.core.errors.texts import counted

if TYPE_CHECKING:
    from linn.bench.coordinator import LoadCoordinator
    from linn.bench.soak import SoakTest
    from linn.bench.throughput import Throughput

app = typer.Typer(
    help="Load a broker: measure throughput and latency, or check that nothing is lost.", no_args_is_help=True
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of an existing topic.", autocompletion=topic_names)]
CountMax = Annotated[int, typer.Option("--count", min=1, metavar="COUNT", help="Number of messages.")]
Size = Annotated[int, typer.Option("--size", min=0, metavar="BYTES", help="Size of a message.")]
NumberedSize = Annotated[
    int, typer.Option("--size", min=12, metavar="BYTES", help="Size of a message, including its number.")
]
Batch = Annotated[
    int, typer.Option("--batch", min=1, metavar="COUNT", help="Messages per call; each call is confirmed.")
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        metavar="KEY=VALUE",
        help="Setting of the temporary topic, as in `linn topics create`. May be repeated.",
    ),
]
Duration = Annotated[str, typer.Option("--duration", metavar="TIME", help="Duration of publishing: 30s, 10m, 8h.")]
Consumers = Annotated[
    int | None,
    typer.Option(
        "--consumers",
        min=1,
        max=100,
        metavar="COUNT",
        help="Number of competing consumers; not with --producers. Default: 2.",
    ),
]
SoakRate = Annotated[
    str | None,
    typer.Option(
        "--rate",
        metavar="RATE",
        help="Maximum rate: 100/s, 6000/m, 5/h. Default: 10000/s; with --producers 1000/s for each.",
    ),
]
Producers = Annotated[
    int | None,
    typer.Option(
        "--producers",
        min=1,
        max=100_000,
        metavar="COUNT",
        help="Load a stream with this many producers, each on its own connection, and name the first bottleneck.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=64,
        metavar="COUNT",
        help="Number of processes for --producers. Default: one per processor, minus one for the broker.",
    ),
]
Linger = Annotated[
    str | None,
    typer.Option(
        "--linger", metavar="TIME", help="Time for which --producers accumulate records of a batch. Default: 100ms."
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
    """Measure the throughput of publishing random messages in confirmed calls. Ctrl-C prints the figures so far."""
    from linn.bench.throughput import Throughput, measure_publish

    measured = Throughput()
    sizes = {"count": count, "size": size, "batch": batch}
    with _throughput(f"publish to {topic}", count, measured, as_json=as_json) as advance:
        with_client(url, lambda client: measure_publish(client, topic, measured, **sizes, advance=advance))


@app.command("consume")
def consume(topic: Topic, count: CountMax = 1_000_000, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Measure the throughput of consuming and acking messages. This removes them from a queue.

    Ctrl-C prints the figures so far.
    """
    from linn.bench.throughput import Throughput, measure_consume

    measured = Throughput()
    with _throughput(f"consume from {topic}", count, measured, as_json=as_json) as advance:
        with_client(url, lambda client: measure_consume(client, topic, measured, count=count, advance=advance))


@contextmanager
def _throughput(title: str, count: int, measured: Throughput, *, as_json: bool) -> Iterator[Advance]:
    """Show the progress of a measurement, and print its figures at the end, also after Ctrl-C."""
    with (
        on_interrupt(lambda: _print_throughput(f"{title}, interrupted", measured, as_json=as_json)),
        progress(title, count) as advance,
    ):
        yield advance
    _print_throughput(title, measured, as_json=as_json)


def _print_throughput(title: str, measured: Throughput, *, as_json: bool) -> None:
    data = measured.data()
    if as_json:
        print_json({"what": title, **data}, indent=None)
        return
    rows = [[name.replace("_per_s", " per second").replace("_", " "), f"{value:,}"] for name, value in data.items()]
    print_table(["", number("")], rows, title)


@app.command("latency")
def latency(
    count: CountMax = 1_000,
    size: NumberedSize = 128,
    rate: Rate = None,
    setting: Setting = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Measure the latency to the confirmation and to a consumer, one message at a time, in a temporary topic.

    Ctrl-C prints the figures so far.
    """
    from linn.bench.latency import LatencyTest
    from linn.cli.typed_value import named_values, rate_per_s

    settings = named_values(setting or (), "--setting")
    test = LatencyTest(count=count, size=size, rate_per_s=None if rate is None else rate_per_s(rate), settings=settings)
    with (
        on_interrupt(lambda: _print_latency(test.data(), ", interrupted", as_json=as_json)),
        progress("measuring", count) as advance,
    ):
        with_client(url, partial(test.run, advance=advance))
    _print_latency(test.data(), "", as_json=as_json)


def _print_latency(data: Mapping[str, Any], end: str, *, as_json: bool) -> None:
    from linn.bench.latency import PERCENTILES

    if as_json:
        print_json(data, indent=None)
        return
    title = f"{counted(data['messages'], 'message')}, one at a time, in {data['seconds']:.1f} s{end}"
    rows = []
    for event in ("confirmed", "delivered"):
        took_ms = data[f"{event}_ms"]
        rows.append([event, *("" if took_ms[name] is None else f"{took_ms[name]:,.2f}" for name in PERCENTILES)])
    print_table(["ms", *numbers(*PERCENTILES)], rows, title)


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
    """Load a temporary queue, and check that all confirmed messages arrive unchanged. Ends with 1 if not.

    The broker may be stopped, killed and started meanwhile: the test is that nothing it confirmed is lost.

    With --producers the test is different: that many connections load a temporary stream, and the result is the share
    of their rate that the broker confirmed, and the first bottleneck. Ends with 1 if publishes failed.

    Ctrl-C ends the test with the partial result; without --producers `lost` and `ok` are left out, as messages that
    have not arrived yet may be on their way.
    """
    from linn.cli.moment import seconds_of
    from linn.cli.typed_value import named_values, rate_per_s

    settings = named_values(setting or (), "--setting")
    duration_s = seconds_of(duration, "--duration")
    if not duration_s:
        raise typer.BadParameter(f"{duration!r} leaves no time to publish", param_hint="--duration")
    if producers is not None:
        _refuse("nothing is consumed with --producers", {"--consumers": consumers})
        if url.startswith("linns:"):
            raise typer.BadParameter("the processes of --producers speak no TLS", param_hint="--url or LINN_URL")
        from linn.bench.coordinator import LoadCoordinator

        coordinator = LoadCoordinator(
            broker_address(url),
            producers=producers,
            processes=processes,
            rate_per_s=rate_per_s(rate or "1000/s"),
            size=size,
            linger_s=seconds_of(linger or "100ms", "--linger"),
            duration_s=duration_s,
            settings=settings,
        )
        _run_load(coordinator, producers, url, as_json=as_json)
        return
    _refuse("has no effect without --producers", {"--processes": processes, "--linger": linger})
    from linn.bench.soak import SoakTest

    if settings.get("kind") == "stream":
        raise typer.BadParameter("a soak needs a queue: kind=queue or kind=both", param_hint="--setting")
    test = SoakTest(
        duration_s=duration_s,
        rate_per_s=rate_per_s(rate or "10000/s"),
        size=size,
        consumers=consumers or 2,
        settings=settings,
    )
    _run_soak(test, duration_s, url, as_json=as_json)


def _refuse(reason: str, given: Mapping[str, object]) -> None:
    """Raise BadParameter for the first option that is given and would have no effect."""
    for option, value in given.items():
        if value is not None:
            raise typer.BadParameter(reason, param_hint=option)


# --- the soak test ---------------------------------------------------------------------------------------------------


def _run_soak(test: SoakTest, duration_s: float, url: str, *, as_json: bool) -> None:
    with (
        on_interrupt(lambda: _print_soak(test.partial_data(), as_json=as_json)),
        progress(f"soaking for {duration_s:g} s", None) as advance,
    ):
        with_client(url, partial(test.run, advance=advance))
    data = test.data()
    _print_soak(data, as_json=as_json)
    if not data["ok"]:
        raise typer.Exit(1)


def _print_soak(data: Mapping[str, Any] | None, *, as_json: bool) -> None:
    if data is None:
        return
    if as_json:
        print_json(data, indent=None)
        return
    rows = []
    for name, value in data.items():
        if name == "errors":
            value = _errors_text(value)
        if name != "ok":
            rows.append([name.replace("_per_s", " per second"), f"{value:,}" if isinstance(value, int) else str(value)])
    print_table(["", number("")], rows, _soak_verdict(data))


def _soak_verdict(data: Mapping[str, Any]) -> str:
    if "ok" not in data:
        return "interrupted"
    if data["ok"]:
        return "nothing was lost"
    return "NOT WELL" if data["confirmed"] else "nothing was confirmed"


def _errors_text(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in errors.items()) or "none"


# --- the load of many producers --------------------------------------------------------------------------------------


def _run_load(coordinator: LoadCoordinator, producers: int, url: str, *, as_json: bool) -> None:
    from linn.bench.coordinator import is_well

    with (
        on_interrupt(lambda: _print_load(coordinator.partial_data(), "interrupted: ", as_json=as_json)),
        progress(counted(producers, "producer"), coordinator.target) as advance,
    ):
        with_client(url, partial(coordinator.run, advance=advance))
    data = coordinator.data()
    _print_load(data, "", as_json=as_json)
    if not is_well(data):
        raise typer.Exit(1)


def _print_load(data: Mapping[str, Any] | None, prefix: str, *, as_json: bool) -> None:
    if data is None:
        return
    if as_json:
        print_json(data, indent=None)
        return
    reached = f"{data['share']:.1%} of {data['target_per_s']:,} records per second"
    title = prefix + (reached if data["confirmed"] else "nothing was confirmed")
    rows = []
    for name in ("producers", "processes", "seconds", "confirmed", "confirmed_per_s", "bytes_per_s"):
        rows.append([name.replace("_per_s", " per second"), f"{data[name]:,}"])
    for name in ("records_per_publish", "sends_blocked", "lost_connections", "unanswered"):
        rows.append([name.replace("_", " "), f"{data[name]:,}"])
    rows.append(["errors", _errors_text(data["errors"])])
    for name, took_ms in data["confirmed_ms"].items():
        rows.append([f"confirmed after, {name}", "" if took_ms is None else f"{took_ms:,.1f} ms"])
    for name, share in data["in_use"].items():
        rows.append([f"in use, {name.replace('_', ' ')}", "not known" if share is None else f"{share:.0%}"])
    print_table(["", number("")], rows, title)
    print_text(f"full first: {_load_verdict(data)}")


def _load_verdict(data: Mapping[str, Any]) -> str:
    from linn.bench.saturation import NOTHING, REACHED, TEXTS, WAITING

    if data["share"] >= REACHED:
        return NOTHING
    if data["full_first"] is None:
        return WAITING
    return f"{TEXTS[data['full_first']]} (after {data['full_after_s']:g} s)"
