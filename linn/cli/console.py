"""The one Rich console of a command: colours and tables on a terminal, plain text in a pipe."""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from linn.core.config.problem import one_line

_PIPE_COLUMNS = 160
"""In a pipe there is no width; wide enough that no table of ours breaks its words."""


class PipeConsole(Console):
    """Leaves it to `exit_code.boundary` what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        """Called while the BrokenPipeError is handled: let it go on."""
        raise


@functools.cache
def console() -> Console:
    """Made on first use, on stdout as it is then."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return PipeConsole(width=width, highlight=False)


def cell(text: str) -> str:
    """A text that a client chose, for a table: no markup, and nothing that a terminal would obey."""
    return escape(one_line(text))


def columns_right(table: Table, first: int, end: int | None = None) -> None:
    """Align the columns of numbers to the right: from `first` on, up to `end` (exclusive)."""
    for column in table.columns[first:end]:
        column.justify = "right"


def tell(data: Any, words: str, *, as_json: bool) -> None:
    """Print what became of a command: one line, for programs or for people."""
    print(json.dumps(data) if as_json else words)
