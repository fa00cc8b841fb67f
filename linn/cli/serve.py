"""`linn serve`: run a broker."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

File = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="Configuration. Default: linn.toml here, or else all defaults.")
]
DataDir = Annotated[str | None, typer.Option("--data-dir", metavar="FOLDER", help="Instead of the file's data_dir.")]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="Listen here, instead of at the file's listeners: HOST:PORT, [V6]:PORT or unix:PATH. May be repeated.",
    ),
]
WithParent = Annotated[
    bool,
    typer.Option("--with-parent", help="Stop when stdin is closed: for a broker that shall not outlive its parent."),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="Instead of the file's: debug, info, warning or error."),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="FORMAT", help="Instead of the file's: auto, human or json."),
]


def serve(
    file: File = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    with_parent: WithParent = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which drain it; a second one stops it at once.

    Prints "ready URL" on stdout for each listener once clients may connect. Logs go to stderr.
    """
    if log_level not in (None, "debug", "info", "warning", "error"):
        raise typer.BadParameter("must be debug, info, warning or error", param_hint="--log-level")
    if log_format not in (None, "auto", "human", "json"):
        raise typer.BadParameter("must be auto, human or json", param_hint="--log-format")
    from linn.cli.log import Log
    from linn.cli.server import Server

    log = Log(sys.stderr, level=log_level, format=log_format)
    server = Server(file, data_dir=data_dir, listen=listen or (), log=log)
    server.run(with_parent=with_parent)
