"""The command `linn`: which commands there are. Each has a file; what it does is in a second one, loaded when it runs.

Law: a command's file imports Typer and nothing slow, so that `linn serve` starts without the client, Rich and the demo.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from linn import __version__
from linn.cli import (
    bench,
    bindings,
    check,
    completion,
    consume,
    doctor,
    exchanges,
    groups,
    init,
    plugins,
    publish,
    purge,
    route,
    serve,
    subscriptions,
    top,
    topics,
)
from linn.cli.demo import command as demo
from linn.cli.exit_code import boundary


class Boundary(TyperGroup):
    """The group around all commands: where expected failures end."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises SystemExit for expected failures."""
        with boundary():
            return super().invoke(ctx)


app = typer.Typer(
    cls=Boundary,
    name="linn",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"linn {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """linn: a message broker in which every topic is a queue, a stream, or both."""


app.command("serve")(serve.serve)
app.command("init")(init.init)
app.command("check")(check.check)
app.add_typer(topics.app, name="topics")
app.add_typer(exchanges.app, name="exchanges")
app.add_typer(bindings.app, name="bindings")
app.add_typer(groups.app, name="groups")
app.add_typer(subscriptions.app, name="subscriptions")
app.command("publish")(publish.publish)
app.command("consume")(consume.consume)
app.command("browse")(consume.browse)
app.command("purge")(purge.purge)
app.add_typer(route.app, name="route")
app.add_typer(plugins.app, name="plugins")
app.add_typer(bench.app, name="bench")
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("completion")(completion.completion)
app.command("demo")(demo.demo)


def run() -> None:
    """Run the command that the command line names. Ends the process with one of `exit_code.ExitCode`."""
    if completion.VARIABLE in os.environ:
        completion.prepare()
    app(prog_name="linn")
