"""Output of a command: JSON for programs; text through one Rich console for people.

Rich and json are loaded on first use, so that the files of all commands may import this one.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from linn.core.errors.texts import printable

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 1_000_000
"""Width in a pipe, so that a row is one line, for grep. The variable COLUMNS, which `watch` sets, takes precedence."""


@functools.cache
def console() -> Console:
    """Return the console on stdout: colours and the terminal's width on a terminal, plain long lines in a pipe."""
    from rich.console import Console

    class PipeConsole(Console):
        """Console that leaves a closed pipe to `exit_code.boundary`."""

        def on_broken_pipe(self) -> None:
            """Re-raise the BrokenPipeError that is being handled."""
            raise

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return PipeConsole(width=width, highlight=False)


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Print a document; on one line where `indent` is None."""
    import json

    print(json.dumps(data, indent=indent))


def print_text(text: str) -> None:
    """Print text without wrapping it; nothing in it is markup, and control characters are escaped."""
    from rich.markup import escape

    console().print(escape(printable(text)), soft_wrap=True)


def print_result(data: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command on one line: `data` as JSON, or `text`."""
    if as_json:
        print_json(data, indent=None)
    else:
        print(printable(text))
