"""`linn serve`: run a broker."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

File = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE]", help="Configuration file. Default: linn.toml in this folder, or else all defaults."
    ),
]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="FOLDER", help="Data folder, instead of the file's data_dir."),
]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="Address to listen at for clients, instead of the file's: HOST:PORT, [V6]:PORT or unix:PATH. May be "
        "repeated.",
    ),
]
WithParent = Annotated[
    bool,
    typer.Option(
        "--with-parent", help="Stop when stdin, a pipe, is closed: for a broker that must not outlive its parent."
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N|auto",
        help="Processes that share the work, instead of the file's; auto: one for each core.",
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="LEVEL", help="Log level, instead of the file's: debug, info, warning, error."),
]
LogFormat = Annotated[
    str | None,
    typer.Option("--log-format", metavar="FORMAT", help="Log format, instead of the file's: auto, human or json."),
]


def serve(
    file: File = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    with_parent: WithParent = False,
    workers: Workers = None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which drain it; a second signal stops it at once.

    Prints "ready URL" on stdout for each listener of clients once they can connect, in a cluster
    also once the cluster knows the broker. Logs go to stderr.
    """
    if log_level not in (None, "debug", "info", "warning", "error"):
        raise typer.BadParameter("must be debug, info, warning or error", param_hint="--log-level")
    if log_format not in (None, "auto", "human", "json"):
        raise typer.BadParameter("must be auto, human or json", param_hint="--log-format")
    if with_parent and not _ends_with_its_writer(sys.stdin.fileno()):
        raise typer.BadParameter(
            "stdin must be a pipe that the parent holds open; it is closed, a file or a device",
            param_hint="--with-parent",
        )
    _check_addresses(listen or ())
    count = _worker_count(workers)
    from linn.cli.server.log import Log
    from linn.cli.server.server import Server

    log = Log(sys.stderr, level=log_level, format=log_format)
    if count is None:
        server = Server(file, data_dir=data_dir, listen=listen or (), log=log)
        count = server.config.broker.workers
        if count is None:
            server.run(with_parent=with_parent)
            return
    from linn.cli.workers.supervisor import Supervisor

    Supervisor(file, data_dir=data_dir, listen=listen or (), log=log, workers=count).run(with_parent=with_parent)


def _worker_count(workers: str | None) -> int | Literal["auto"] | None:
    """Check the number of workers. Raises BadParameter."""
    if workers is None:
        return None
    if workers == "auto":
        return "auto"
    from linn.core.config.tables import WORKERS_MAX

    if not (workers.isascii() and workers.isdigit()) or not 1 <= int(workers) <= WORKERS_MAX:
        raise typer.BadParameter(f"must be a number from 1 to {WORKERS_MAX}, or auto", param_hint="--workers")
    return int(workers)


def _check_addresses(addresses: Sequence[str]) -> None:
    """Check the form of addresses; binding them may still fail. Raises BadParameter."""
    from linn.core.env.address import parse_address
    from linn.core.errors.tree import AddressInvalid

    for address in addresses:
        try:
            parse_address(address)
        except AddressInvalid as error:
            raise typer.BadParameter(error.text, param_hint="--listen") from error


def _ends_with_its_writer(number: int) -> bool:
    """Tell whether a descriptor reaches its end when the process at the other end is gone."""
    mode = os.fstat(number).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)
