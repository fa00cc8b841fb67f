"""The command `linn` and its subcommands, one file each in `linn.cli.commands`.

Law: the file of a command imports Typer and nothing slow, so that `linn serve` starts without the client, Rich and the
demo; slow modules are imported by the functions that use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from linn import __version__
from linn.cli import completion as shell_completion
from linn.cli.commands import (
    audit,
    bench,
    bindings,
    browse,
    can,
    check,
    cluster,
    completion,
    connections,
    consume,
    copy,
    dead_letters,
    definitions,
    deliveries,
    doctor,
    dump,
    exchanges,
    groups,
    init,
    move,
    ping,
    plugins,
    publish,
    purge,
    queues,
    recover,
    request,
    roles,
    route,
    scheduled,
    serve,
    spark,
    status,
    subscriptions,
    top,
    topics,
    transactions,
    users,
    whoami,
)
from linn.cli.demo import command as demo
from linn.cli.exit_code import boundary
from linn.cli.options import CA_HELP, USER_HELP
from linn.cli.session import log_in_as, trust


def _add_options(group: TyperGroup) -> None:
    """Give each command that has `--url` the other options of connections."""
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            _add_options(command)
            continue
        place = next((index for index, option in enumerate(command.params, 1) if option.name == "url"), None)
        if place is not None and all(option.name != "ca" for option in command.params):
            command.params[place:place] = [
                _option("--user", USER_HELP, "LINN_USER", "NAME", log_in_as),
                _option("--ca", CA_HELP, "LINN_CA", "FILE", trust),
            ]


def _option(name: str, help_text: str, variable: str, metavar: str, use: Callable[[str | None], None]) -> TyperOption:
    def callback(ctx: Any, param: Any, value: str | None) -> None:
        use(value)

    return TyperOption(
        param_decls=[name],
        help=help_text,
        envvar=variable,
        show_envvar=True,
        metavar=metavar,
        type=str,
        expose_value=False,
        callback=callback,
    )


class Boundary(TyperGroup):
    """Root group of commands; turns expected failures into exit codes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _add_options(self)

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
    rich_markup_mode="markdown",  # Docstrings are filled to the terminal's width.
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


_COMMANDS: dict[str, Any] = {
    "serve": serve.serve,
    "init": init.init,
    "check": check.check,
    "topics": topics.app,
    "exchanges": exchanges.app,
    "bindings": bindings.app,
    "groups": groups.app,
    "queues": queues.app,
    "subscriptions": subscriptions.app,
    "dead-letters": dead_letters.app,
    "deliveries": deliveries.app,
    "transactions": transactions.app,
    "connections": connections.app,
    "cluster": cluster.app,
    "users": users.app,
    "roles": roles.app,
    "can": can.can,
    "spark": spark.app,
    "definitions": definitions.app,
    "publish": publish.publish,
    "request": request.request,
    "status": status.status,
    "scheduled": scheduled.app,
    "consume": consume.consume,
    "browse": browse.browse,
    "move": move.move,
    "copy": copy.copy,
    "purge": purge.purge,
    "route": route.app,
    "audit": audit.app,
    "plugins": plugins.app,
    "bench": bench.app,
    "top": top.top,
    "ping": ping.ping,
    "whoami": whoami.whoami,
    "doctor": doctor.doctor,
    "recover": recover.recover,
    "dump": dump.dump,
    "completion": completion.completion,
    "demo": demo.demo,
}
for _name, _command in _COMMANDS.items():
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(_command)


def run() -> None:
    """Run the command named on the command line, and end the process with one of `exit_code.ExitCode`."""
    if shell_completion.VARIABLE in os.environ:
        shell_completion.prepare()
    app(prog_name="linn")
