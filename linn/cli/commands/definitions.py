"""`linn definitions`: export the topics, exchanges and bindings of a broker to a file, and import them."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

app = typer.Typer(
    help="Export the topics, exchanges and bindings of a broker, and import them on another.", no_args_is_help=True
)

To = Annotated[
    str, typer.Argument(metavar="[FILE]", help='File to write; "-", the default, prints to stdout.', show_default=False)
]
From = Annotated[str, typer.Argument(metavar="FILE", help='An export, or a configuration; "-" reads it from a pipe.')]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check, and say what would be done.")]


@app.command("export")
def export(file: To = "-", url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Write the topics, exchanges and bindings of a broker as TOML, with --json as JSON. Never overwrites a file.

    Every setting that has an effect is written, defaults included, so that the file means the same on every broker.
    Messages, consumer groups, users and roles are not exported. Neither are the tables that a topic's storage, delivery
    or interceptors name: they belong to the broker's configuration.
    """
    from linn.cli.definitions.export import export

    export(url, file, as_json=as_json)


@app.command("import")
def import_(file: From, dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Make a broker have the topics, exchanges and bindings of a file. Everything else on the broker is left alone.

    Creates missing definitions and alters settings that differ; a setting that the file does not name stays as it is.
    Everything is checked before the first change. If anything is wrong, nothing is changed: each problem is a line on
    stderr, and the command ends with 3. Importing the same file again does nothing. After a failure or Ctrl-C it prints
    how far it got, and importing again goes on from there. Tables other than [topics] and [exchanges] are ignored.
    """
    from linn.cli.definitions.import_run import Import

    Import(file, dry=dry_run).run(url, as_json=as_json)
