"""The one Rich console of a command: colours and tables on a terminal, plain text in a pipe."""

from __future__ import annotations

import functools
import os
import sys

from rich.console import Console

_PIPE_COLUMNS = 160
"""In a pipe there is no width; wide enough that no table of ours breaks its words."""


@functools.cache
def console() -> Console:
    """Made on first use, on stdout as it is then."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return Console(width=width, highlight=False)
