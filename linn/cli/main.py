"""The entry point of the command `linn`; the commands are in `linn.cli.app`.

Law: importing this loads nothing slow, so that Ctrl-C is Ctrl-C from the first moment on, and no traceback.
"""

from __future__ import annotations

import sys
import warnings

from linn.cli.standard_streams import open_closed_streams

_INTERRUPTED = 130
"""`exit_code.ExitCode.INTERRUPTED`, which may not have been loaded yet."""


def main() -> None:
    """Run a command. Ends the process with one of `exit_code.ExitCode`."""
    # Ctrl-C may come between the making of a coroutine and its first step: that is no news for whoever pressed it.
    warnings.filterwarnings("ignore", r"coroutine '.*' was never awaited", RuntimeWarning)
    try:
        open_closed_streams()
        from linn.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
