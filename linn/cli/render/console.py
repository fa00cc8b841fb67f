"""The one Rich console of a command: colours and tables on a terminal, plain text in a pipe."""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any

from rich.console import Console

_PIPE_COLUMNS = 1_000_000
"""In a pipe there is no width: a row is a line, for grep. Who sets COLUMNS, as `watch` does, wants that width."""


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


def tell(data: Any, words: str, *, as_json: bool) -> None:
    """Print what became of a command: one line, for programs or for people."""
    print(json.dumps(data) if as_json else words)
