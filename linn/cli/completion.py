"""`linn completion`: scripts that make a shell complete linn's commands and options."""

from __future__ import annotations

from typing import Annotated

import typer

Shell = Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_LINN_COMPLETE"
"""By this environment variable the scripts ask `linn` what could come next."""


def completion(shell: Shell) -> None:
    """Print a completion script.

    For bash: `source <(linn completion bash)` in ~/.bashrc; for zsh: `linn completion zsh > ~/.zfunc/_linn` with
    `fpath+=~/.zfunc; autoload -Uz compinit; compinit` in ~/.zshrc; for fish:
    `linn completion fish > ~/.config/fish/completions/linn.fish`.
    """
    if shell not in SHELLS:
        raise typer.BadParameter(f"must be one of {', '.join(SHELLS)}")
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name="linn", complete_var=VARIABLE, shell=shell))


def prepare() -> None:
    """Let Typer answer the scripts' questions, in their form."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
