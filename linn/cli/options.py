"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_URL = "linn://127.0.0.1:5466"

Url = Annotated[str, typer.Option("--url", envvar="LINN_URL", metavar="URL", help="The broker.", show_envvar=True)]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
CountMax = Annotated[int | None, typer.Option("--count", min=1, metavar="COUNT", help="Stop after so many messages.")]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="PREDICATE", help="Only messages that this is true of: 'label.delay > 60'."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many messages it would be.")]
