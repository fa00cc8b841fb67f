"""`linn doctor`: is this machine fit for a broker, and what should be changed?"""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

File = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="Configuration. Default: linn.toml here, or else all defaults.")
]


def doctor(file: File = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Look at versions, configuration, plugins, limits, disk, addresses and broker, and say what to do.

    Ends with 1 where something is an error, with 0 where there are only warnings. Writes a small file beside the data
    to see how long a sync takes, and removes it.
    """
    from linn.cli.diagnosis import diagnose

    if not diagnose(file, url, as_json=as_json):
        raise typer.Exit(1)
