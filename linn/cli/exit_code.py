"""How a command ends: its exit code, and one line on stderr where it failed.

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

from linn.core.config.problem import one_line
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
    """What `$?` is after a command."""

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
    ExitCode.OK: "done; of `linn serve`: stopped in order",
    ExitCode.FAILED: "the operation failed, or a check found something",
    ExitCode.USAGE: "the command line is wrong, or LINN_URL",
    ExitCode.CONFIGURATION: "the configuration or a plugin is wrong",
    ExitCode.UNREACHABLE: "no broker answered, or none of this version, or the connection was lost",
    ExitCode.STORAGE: "the data folder is locked, damaged, full or can't be written",
    ExitCode.LISTENER: "an address to listen at is taken, or can't be bound",
    ExitCode.INTERRUPTED: "interrupted: Ctrl-C, or the second one of `linn serve`",
    ExitCode.BROKEN_PIPE: "whoever read the output has closed it",
}

_BY_ERROR: tuple[tuple[type[LinnError] | tuple[type[LinnError], ...], ExitCode], ...] = (
    ((ConfigError, PluginError), ExitCode.CONFIGURATION),
    (RequestUnknown, ExitCode.FAILED),
    ((ConnectionLost, RequestTimeout, ProtocolError), ExitCode.UNREACHABLE),
    (StorageError, ExitCode.STORAGE),
    ((AddressInUse, AddressInvalid), ExitCode.LISTENER),
)


def exit_code_of(error: LinnError) -> ExitCode:
    """The code for an expected failure."""
    return next((code for kinds, code in _BY_ERROR if isinstance(error, kinds)), ExitCode.FAILED)


@contextlib.contextmanager
def boundary() -> Iterator[None]:
    """The one place where a command's failure becomes a line and an exit code.

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
def told_when_interrupted(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell`, which says what was done until then, where Ctrl-C ends the block."""
    try:
        yield
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
            tell()
        raise


def _ended_by(error: BaseException) -> ExitCode | None:
    """What an exception means for the exit code, after telling the user; None where it is a bug."""
    leaves = list(_leaves(error))
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
    """Whether the file that the output goes to is on a full disk; linn's own files raise LinnErrors."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def complain(text: str) -> None:
    """One line on stderr, in the form of every failure of linn."""
    with contextlib.suppress(OSError):
        print(f"linn: {one_line(text)}", file=sys.stderr, flush=True)


def discard_output() -> None:
    """Let what is still buffered for stdout go nowhere, so that the interpreter's own flush can't fail."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
