"""`linn definitions`: the topics, exchanges and bindings of a broker as a file, and those of a file on a broker."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.options import DEFAULT_URL, Json, Url

app = typer.Typer(
    help="Write down the topics, exchanges and bindings of a broker, and make them on another.", no_args_is_help=True
)

To = Annotated[str, typer.Argument(metavar="[FILE]", help='Where to; "-", the default, prints it.', show_default=False)]
From = Annotated[str, typer.Argument(metavar="FILE", help='An export, or a configuration; "-" reads it from a pipe.')]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check, and say what would be done.")]


@app.command("export")
def export(file: To = "-", url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Write the topics, exchanges and bindings of a broker as TOML, with --json as JSON. Never overwrites a file.

    Every setting that has an effect is written, also where it is a default, so that it means the same on every broker.
    Messages and consumer groups are not exported, and neither are the tables that a topic's storage, delivery or
    interceptors name: those belong to the configuration of the broker.
    """
    from linn.cli.definitions.export import export

    export(url, file, as_json=as_json)


@app.command("import")
def import_(file: From, dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Make a broker have the topics, exchanges and bindings of a file. What it has besides is left alone.

    Creates what is missing and alters settings that differ; a setting that the file does not name stays as it is.
    Everything is checked before the first change, and where something can't be done nothing is: each problem is a line
    on stderr, and it ends with 3. Importing the same file again does nothing. After a failure or Ctrl-C it says how far
    it got, and importing again goes on from there. Tables other than [topics] and [exchanges] are passed over.
    """
    from linn.cli.definitions.import_run import Import

    Import(file, dry=dry_run).run(url, as_json=as_json)
