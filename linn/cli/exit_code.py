"""Exit codes of commands, and the line on stderr where one failed.

Laws: an expected failure (a `LinnError`, Ctrl-C, a reader that closed the pipe) never shows a traceback; a bug always
does. The codes are API, and `docs/reference/cli.md` lists them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum

from linn.core.errors.group import leaves_of
from linn.core.errors.inboxes import NoReply
from linn.core.errors.texts import one_line
from linn.core.errors.tree import (
    AddressInUse,
    AddressInvalid,
    ConfigError,
    ConnectionLost,
    LinnError,
    PluginError,
    ProtocolError,
    RequestTimeout,
    RequestUnknown,
    StorageError,
)


class ExitCode(IntEnum):
    """Exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    CONFIGURATION = 3
    UNREACHABLE = 4
    STORAGE = 5
    LISTENER = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    ExitCode.OK: "success; of `linn serve`: an orderly stop",
    ExitCode.FAILED: "the operation failed, or a check found something",
    ExitCode.USAGE: "the command line is wrong, or LINN_URL",
    ExitCode.CONFIGURATION: "the configuration or a plugin is wrong",
    ExitCode.UNREACHABLE: "no broker of this version answered, or the connection was lost",
    ExitCode.STORAGE: "the data folder is locked, damaged, full or can't be written",
    ExitCode.LISTENER: "an address to listen at is taken, or can't be bound",
    ExitCode.INTERRUPTED: "interrupted: Ctrl-C, or the second one of `linn serve`",
    ExitCode.BROKEN_PIPE: "the reader of the output has closed the pipe",
}

_BY_ERROR: tuple[tuple[type[LinnError] | tuple[type[LinnError], ...], ExitCode], ...] = (
    ((ConfigError, PluginError), ExitCode.CONFIGURATION),
    ((RequestUnknown, NoReply), ExitCode.FAILED),
    ((ConnectionLost, RequestTimeout, ProtocolError), ExitCode.UNREACHABLE),
    (StorageError, ExitCode.STORAGE),
    ((AddressInUse, AddressInvalid), ExitCode.LISTENER),
)


def exit_code_of(error: LinnError) -> ExitCode:
    """Return the exit code for an expected failure."""
    return next((code for kinds, code in _BY_ERROR if isinstance(error, kinds)), ExitCode.FAILED)


@contextlib.contextmanager
def boundary() -> Iterator[None]:
    """Turn the failure of a command into a line on stderr and an exit code.

    Raises:
        SystemExit: for every expected failure. Anything else passes through as it is.
    """
    try:
        yield
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        code = _ended_by(error)
        if code is None:
            raise
        raise SystemExit(int(code)) from None


@contextlib.contextmanager
def on_interrupt(report: Callable[[], None]) -> Iterator[None]:
    """Call `report`, which prints the partial result, if Ctrl-C ends the block."""
    try:
        yield
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves_of(error)):
            report()
        raise


def _ended_by(error: BaseException) -> ExitCode | None:
    """Print the failure, and return its exit code; None where the exception is a bug."""
    leaves = list(leaves_of(error))
    if not all(isinstance(leaf, LinnError | KeyboardInterrupt | BrokenPipeError) or _is_full(leaf) for leaf in leaves):
        return None
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return ExitCode.INTERRUPTED
    failures = [leaf for leaf in leaves if isinstance(leaf, LinnError)]
    if failures:
        complain(str(failures[0]))
        return exit_code_of(failures[0])
    discard_output()
    if any(map(_is_full, leaves)):
        complain("the output can't be written: no space left")
        return ExitCode.FAILED
    return ExitCode.BROKEN_PIPE


def _is_full(error: BaseException) -> bool:
    """Tell whether the disk of a redirected output is full; linn's own files raise LinnErrors."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def complain(text: str) -> None:
    """Print one line on stderr, in the form of every failure of linn."""
    with contextlib.suppress(OSError):
        print(f"linn: {one_line(text)}", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Discard buffered output, so that the flush at exit can't fail."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
