"""`linn check`: read a configuration file and say what it means."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import Json

File = Annotated[str, typer.Argument(metavar="FILE", help="A configuration file.")]
Strict = Annotated[bool, typer.Option("--strict", help="End with 3 for warnings, too.")]


def check(file: File, strict: Strict = False, as_json: Json = False) -> None:
    """Check a configuration: every problem with file, line, key and the nearest valid key; then what it means.

    Errors keep a broker from starting: ends with 3. Warnings are about what has no effect or a surprising one, or is
    more than this machine has; hints about what may well be meant. Both end with 0.
    """
    from linn.cli.render.config_report import report

    if not report(file, as_json=as_json, strict=strict):
        raise typer.Exit(3)
