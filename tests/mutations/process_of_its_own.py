"""Work in a forked process, because what a process counts (members, consumers) may be part of a run."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

RUN_S_MAX = 600
"""Time limit of one request; a bug that makes a run endless is not caught."""


def in_a_child(work: Callable[[], Any], seconds_max: int = 0) -> Any:
    """Run `work` in a child process and return its result, which must be JSON.

    None if it failed, which standard error tells, or took longer than `seconds_max`.
    """
    sys.stdout.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(seconds_max)
            answer = work()
            with os.fdopen(writing, "w") as stream:
                json.dump(answer, stream)
            sys.stdout.flush()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None
