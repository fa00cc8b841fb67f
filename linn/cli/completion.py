"""`linn completion`: scripts that make a shell complete commands, options, settings, and names on a broker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.options import DEFAULT_URL

if TYPE_CHECKING:
    from linn.client.client import Client

Shell = Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_LINN_COMPLETE"
"""By this environment variable the scripts ask `linn` what could come next."""
_NO_SPACE = '[[ "$COMPREPLY" == *= ]] && compopt -o nospace'
ANSWER_S = 0.5
"""Whoever presses the tab key waits no longer than this for a broker."""


def completion(shell: Shell) -> None:
    """Print a completion script: for commands, options and settings, and for names on the broker of --url or LINN_URL.

    For bash: `source <(linn completion bash)` in ~/.bashrc; for zsh: `linn completion zsh > ~/.zfunc/_linn` with
    `fpath+=~/.zfunc; autoload -Uz compinit; compinit` in ~/.zshrc; for fish:
    `linn completion fish > ~/.config/fish/completions/linn.fish`.
    """
    if shell not in SHELLS:
        raise typer.BadParameter(f"must be one of {', '.join(SHELLS)}")
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="linn", complete_var=VARIABLE, shell=shell)
    if shell == "bash":
        # Behind KEY= comes the value, and no space.
        script = script.replace("    return 0\n", f"    {_NO_SPACE}\n    return 0\n")
    print(script)


def prepare() -> None:
    """Let Typer answer the scripts' questions, in their form."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


# --- names on a broker -----------------------------------------------------------------------------------------------


def topic_names(ctx: typer.Context) -> list[str]:
    """All topics."""
    return _topics(ctx, "queue", "stream", "both")


def queue_names(ctx: typer.Context) -> list[str]:
    """Topics that are queues."""
    return _topics(ctx, "queue", "both")


def stream_names(ctx: typer.Context) -> list[str]:
    """Topics that are streams."""
    return _topics(ctx, "stream", "both")


def exchange_names(ctx: typer.Context) -> list[str]:
    """All exchanges."""

    async def ask(client: Client) -> list[str]:
        return [exchange["name"] for exchange in await client.admin.exchanges()]

    return _answer(ctx, ask)


def group_names(ctx: typer.Context) -> list[str]:
    """The consumer groups of the topic that the command line names."""

    async def ask(client: Client) -> list[str]:
        return [group["group"] for group in await client.admin.groups(ctx.params["topic"])]

    return _answer(ctx, ask)


def target_names(ctx: typer.Context) -> list[str]:
    """What the binding that is spoken of may lead to: topics or, with --to-exchange, exchanges."""
    return exchange_names(ctx) if ctx.params.get("to_exchange") else topic_names(ctx)


def published_to(ctx: typer.Context) -> list[str]:
    """All topics, for the first argument; messages follow it, and with --exchange there is no topic."""
    return [] if ctx.params.get("arguments") or ctx.params.get("exchange") else topic_names(ctx)


def setting_keys(ctx: typer.Context) -> list[str]:
    """The settings that the command takes, but for those that it was given."""
    from linn.cli.setting_options import SettingsCommand

    given = ctx.params.get("settings") or []
    if not isinstance(ctx.command, SettingsCommand) or (given and given[-1].endswith("=")):
        return []  # In the second case it is the value that is typed.
    keys = {pair.partition("=")[0] for pair in given}
    return [f"{key}=" for key in ctx.command.setting_keys() if key not in keys]


def _topics(ctx: typer.Context, *kinds: str) -> list[str]:
    async def ask(client: Client) -> list[str]:
        return [topic["name"] for topic in await client.admin.topics() if topic["settings"]["kind"] in kinds]

    return _answer(ctx, ask)


def _answer(ctx: typer.Context, ask: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    """The broker's answer; nothing where there is none in time. A shell in the middle of a line can't show an error."""
    import anyio

    import linn
    from linn.cli.session import mute_client

    url = ctx.params.get("url") or os.environ.get("LINN_URL", DEFAULT_URL)

    async def main() -> list[str]:
        with anyio.move_on_after(ANSWER_S):
            async with linn.connect(url, name="linn-completion", retries_max=0) as client:
                return await ask(client)
        return []

    mute_client()
    with contextlib.suppress(Exception):
        return anyio.run(main, backend="trio")
    return []
