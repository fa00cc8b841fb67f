"""stdin, stdout and stderr of a command whose starter has closed them (`>&-`, a daemon): Python has None for them.

Law: afterwards all three are there, and their numbers are taken: no log and no socket gets what is printed.
"""

from __future__ import annotations

import os
import sys

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed_streams() -> None:
    """Let what is closed be the null device. To be called before anything else is opened."""
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)  # Processes that are started here get it as well.
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
