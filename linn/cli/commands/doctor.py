"""`linn doctor`: check the machine and the configuration of a broker, and advise."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

Measure = Annotated[
    bool, typer.Option("--measure", help="Start a temporary broker for some seconds, and measure its speed.")
]
Rate = Annotated[
    str,
    typer.Option(
        "--rate", metavar="RATE", help="Expected rate of messages, to estimate how long they fit: 100/s, 6000/m."
    ),
]
Size = Annotated[int, typer.Option("--size", min=0, max=1 << 20, metavar="BYTES", help="Size of a message.")]
File = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE]", help="Configuration file. Default: linn.toml in this folder, or else all defaults."
    ),
]


def doctor(
    file: File = None,
    measure: Measure = False,
    rate: Rate = "10000/s",
    size: Size = 128,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Check versions, configuration, plugins, limits, disk, addresses and broker; estimate the capacity, and advise.

    Ends with 1 if there are errors, with 0 if there are only warnings. Writes a small file beside the data to time a
    sync, and removes it. With --measure it writes up to 1 GiB there, and removes it.
    """
    from linn.cli.doctor.diagnosis import diagnose
    from linn.cli.typed_value import rate_per_s

    if not diagnose(file, url, rate_per_s=rate_per_s(rate), size=size, measures=measure, as_json=as_json):
        raise typer.Exit(1)
