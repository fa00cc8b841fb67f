"""Entry point of the command `linn`; its commands are in `linn.cli.app`.

Law: importing this module loads nothing slow, so that Ctrl-C at any moment ends the process without a traceback.
"""

from __future__ import annotations

import os
import sys
import warnings

_INTERRUPTED = 130
"""Value of `exit_code.ExitCode.INTERRUPTED`, which may not be loaded yet."""


def main() -> None:
    """Run a command, and end the process with one of `exit_code.ExitCode`."""
    # Ctrl-C may come between the creation of a coroutine and its first step, which is not worth a warning.
    warnings.filterwarnings("ignore", r"coroutine '.*' was never awaited", RuntimeWarning)
    try:
        open_closed_streams()
        from linn.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_closed_streams() -> None:
    """Open closed streams on the null device. To be called before anything else is opened.

    Law: afterwards all three are open, so that no log or socket gets their descriptors, and with them the output.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)  # Child processes inherit it as well.
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
