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


def refuse_before(context: typer.Context) -> None:
    """Refuse the options of a noun that lists where a verb follows them, which has its own. Raises BadParameter."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"options go behind the command: linn {context.info_name} {context.invoked_subcommand} ..."
            )
