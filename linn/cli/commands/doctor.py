"""`linn doctor`: is this machine fit for a broker, and what should be changed?"""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

Measure = Annotated[
    bool, typer.Option("--measure", help="Start a broker of its own for some seconds, and see how fast it is here.")
]
Rate = Annotated[
    str, typer.Option("--rate", metavar="RATE", help="How many messages come, to say how long they fit: 100/s, 6000/m.")
]
Size = Annotated[int, typer.Option("--size", min=0, max=1 << 20, metavar="BYTES", help="Bytes of a message.")]
File = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="Configuration. Default: linn.toml here, or else all defaults.")
]


def doctor(
    file: File = None,
    measure: Measure = False,
    rate: Rate = "10000/s",
    size: Size = 128,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Look at versions, configuration, plugins, limits, disk, addresses and broker; say what fits, and what to do.

    Ends with 1 where something is an error, with 0 where there are only warnings. Writes a small file beside the data
    to see how long a sync takes, and removes it. With --measure it writes up to 1 GiB there, and removes it.
    """
    from linn.bench.pace import rate_of
    from linn.cli.doctor.diagnosis import diagnose

    if not diagnose(file, url, rate=rate_of(rate), size=size, measures=measure, as_json=as_json):
        raise typer.Exit(1)
