"""Confirmation of a change that deletes or moves something, for commands without --yes."""

from __future__ import annotations

import sys
from typing import Any

import typer

from linn.cli.exit_code import complain
from linn.cli.session import with_client
from linn.core.errors.texts import one_line

_YES = ("y", "yes")
_NO = ("", "n", "no")


def confirm(url: str, verb: str, question: str, undone: str, **arguments: Any) -> Any:
    """Have the broker validate a change, print its warnings, and ask as `ask` does; return the broker's answer.

    Raises the LinnError with which the broker would refuse the change; typer.Exit.
    """
    checked = with_client(url, lambda client: client.admin.perform(verb, validate_only=True, **arguments))
    for warning in checked.get("warnings", ()) if isinstance(checked, dict) else ():
        complain(f"warning: {warning['text']}")
    ask(question, undone)
    return checked


def ask(question: str, undone: str) -> None:
    """Ask a question, and return if the answer is yes: typed at the terminal, or the first line of stdin.

    `undone` begins the line that is printed otherwise: "not deleted". Raises typer.Exit.
    """
    at_terminal = sys.stdin.isatty()
    while True:
        if at_terminal:
            print(f"{one_line(question)} [y/N]: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        answer = line.decode(errors="replace").strip().lower()
        if answer in _YES:
            return
        if not line:
            if at_terminal:
                print(file=sys.stderr)
            complain(f'{undone}: no answer to "{question}"; give --yes')
            raise typer.Exit(1)
        if answer in _NO or not at_terminal:
            complain(f"{undone}: the answer was no")
            raise typer.Exit(1)
