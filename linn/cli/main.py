"""Entry point of the command `linn`; its commands are in `linn.cli.app`.

Law: importing this module loads nothing slow, so that Ctrl-C at any moment ends the process without a traceback.
"""

from __future__ import annotations

import sys
import warnings

from linn.cli.standard_streams import open_closed_streams

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
