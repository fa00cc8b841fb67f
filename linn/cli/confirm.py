"""A question before something is deleted or moved, where --yes was not given; first, whether it can be done at all."""

from __future__ import annotations

import sys
from typing import Any

import typer

from linn.cli.exit_code import complain

_YES = ("y", "yes")
_NO = ("", "n", "no")


def confirm(url: str, verb: str, question: str, undone: str, **arguments: Any) -> None:
    """Have the broker check a change, say what it warns of, and go on only where somebody says yes, as `ask`.

    Raises the LinnError with which it would refuse the change; typer.Exit.
    """
    from linn.cli.session import with_client  # A client takes long to load.

    checked = with_client(url, lambda client: client.admin.perform(verb, validate_only=True, **arguments))
    for warning in checked.get("warnings", ()):
        complain(f"warning: {warning['text']}")
    ask(question, undone)


def ask(question: str, undone: str) -> None:
    """Go on only where somebody says yes: at the terminal, or in the first line of what stdin is.

    `undone` says what did not happen then: "not deleted". Raises typer.Exit.
    """
    at_terminal = sys.stdin.isatty()
    while True:
        if at_terminal:
            print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        answer = line.decode(errors="replace").strip().lower()
        if answer in _YES:
            return
        if not line:
            if at_terminal:
                print(file=sys.stderr)
            complain(f'{undone}: nobody answered "{question}"; give --yes')
            raise typer.Exit(1)
        if answer in _NO or not at_terminal:
            complain(f"{undone}: the answer was no")
            raise typer.Exit(1)
