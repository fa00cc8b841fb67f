"""Standard streams that were closed by the parent (`>&-`, a daemon): Python sets them to None.

Law: afterwards all three are open, so that no log or socket gets their descriptors, and with them the output.
"""

from __future__ import annotations

import os
import sys

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed_streams() -> None:
    """Open closed streams on the null device. To be called before anything else is opened."""
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)  # Child processes inherit it as well.
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
