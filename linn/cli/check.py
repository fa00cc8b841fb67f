"""`linn check`: read a configuration file and say what it means."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import Json

File = Annotated[str, typer.Argument(metavar="FILE", help="A configuration file.")]


def check(file: File, as_json: Json = False) -> None:
    """Check a configuration: every problem with file, line, key and the nearest valid key; then what it means.

    Ends with 3 if there is an error. Warnings alone end with 0.
    """
    from linn.cli.config_report import report

    if not report(file, as_json=as_json):
        raise typer.Exit(3)
