"""PySpark's daemon of Python workers, without a traceback for each worker whose connection Spark closes.

Spark closes the connection to a worker that was idle for a minute, whose task is cancelled, or whose query ends. The
worker then fails to write the reason of its end to that connection, and prints a traceback, which would fill a driver's
log.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from pyspark import daemon

_worker = daemon.worker
_SCRIPT = """#!/bin/sh
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -m {module} "$@"
fi
exec {python} "$@"
"""


def use_as_daemon() -> None:
    """Make this process's Spark start its workers by this daemon, unless PYSPARK_PYTHON is set.

    Spark's setting for it, `spark.python.daemon.module`, holds for tasks only, and not for the workers that plan. So
    Spark is given a script as its Python, which is removed when the process ends. Raises OSError: it can't be written.
    """
    if "PYSPARK_PYTHON" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="linn-spark-python-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "python"
    script.write_text(_SCRIPT.format(module=__name__, python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = str(script)


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a worker until its connection ends, and return its exit code."""
    try:
        return _worker(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
