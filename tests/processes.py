"""A plugin of pytest that sees to the processes which tests start: each ends, and each hears SIGINT.

A process that a test leaves running would be told of in a warning that fails another test. Where tests run below nohup,
or in the background of a script, SIGINT is ignored, and every process inherits that: Ctrl-C could not be tested there.
"""

from __future__ import annotations

import signal
import subprocess
import weakref
from collections.abc import Generator
from typing import Any

import pytest

_started: weakref.WeakSet[subprocess.Popen[Any]] = weakref.WeakSet()
_of_the_test: set[subprocess.Popen[Any]] = set()
_has_failed: list[bool] = []
_popen = subprocess.Popen.__init__


def _remembered(self: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
    _popen(self, *args, **kwargs)
    _started.add(self)


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Begin to remember, and let SIGINT have its usual effect."""
    subprocess.Popen.__init__ = _remembered  # type: ignore[method-assign]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # A handler isn't inherited: children get the default.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Remember what the test itself starts, and not its fixtures."""
    before = set(_started)
    _has_failed.clear()
    try:
        yield
    except BaseException:
        _has_failed.append(True)
        raise
    finally:
        # The fixture of a broker that the test has started anew ends it, and so does the end of this process.
        _of_the_test.update(each for each in set(_started) - before if "--with-parent" not in str(each.args))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """End it, where neither the test nor its fixtures have; a test that passes leaves nothing running."""
    yield
    left = _end(_of_the_test)
    _of_the_test.clear()
    assert left == [] or _has_failed, "the test has left these processes running"


def pytest_sessionfinish() -> None:
    """End what no fixture has ended."""
    _end(set(_started))


def _end(processes: set[subprocess.Popen[Any]]) -> list[str]:
    """Kill what still runs, by its id, and close its pipes; the commands."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return [str(process.args) for process in running]
