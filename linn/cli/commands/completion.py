"""`linn completion`: print the completion script of a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import VARIABLE

Shell = Annotated[str, typer.Argument(metavar="SHELL", help="Name of the shell: bash, zsh or fish.")]
SHELLS = ("bash", "zsh", "fish")
_NO_SPACE = '[[ "$COMPREPLY" == *= ]] && compopt -o nospace'


def completion(shell: Shell) -> None:
    """Print a completion script for commands, options, settings, and names on the broker of --url or LINN_URL.

    For bash: `source <(linn completion bash)` in ~/.bashrc; for zsh: `linn completion zsh > ~/.zfunc/_linn` with
    `fpath+=~/.zfunc; autoload -Uz compinit; compinit` in ~/.zshrc; for fish:
    `linn completion fish > ~/.config/fish/completions/linn.fish`.
    """
    if shell not in SHELLS:
        raise typer.BadParameter(f"must be one of {', '.join(SHELLS)}")
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="linn", complete_var=VARIABLE, shell=shell)
    if shell == "bash":
        # KEY= is followed by the value, without a space.
        script = script.replace("    return 0\n", f"    {_NO_SPACE}\n    return 0\n")
    print(script)
