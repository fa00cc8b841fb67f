"""`linn init`: a first configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import Json

File = Annotated[str, typer.Argument(metavar="[FILE]", help='Where to; "-" prints it. Default: linn.toml here.')]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="KIND", help="Only a queue, a stream, or one topic that is both.")
]


def init(file: File = "linn.toml", kind: Kind = None, as_json: Json = False) -> None:
    """Write a configuration with comments, for `linn serve` to run and for you to change. Never overwrites a file."""
    if kind not in (None, "queue", "stream", "both"):
        raise typer.BadParameter("must be queue, stream or both", param_hint="--kind")
    from linn.cli.initial_config import initial_config, write_new
    from linn.cli.render.console import tell

    text = initial_config(kind)
    if file == "-":
        print(text, end="")
        return
    write_new(file, text)
    tell(
        {"file": file},
        f"wrote {file}; `linn check {file}` says what it means, `linn serve {file}` runs it",
        as_json=as_json,
    )
