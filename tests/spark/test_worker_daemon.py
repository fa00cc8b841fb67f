"""The daemon of Spark's Python workers: it says nothing of a worker that Spark hangs up on."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile

import psutil
import pytest
from spark_session import needs_spark

needs_spark()

from linn.spark_plugin.driver.worker_daemon import use_as_daemon  # noqa: E402

WAIT_S = 600.0
WORKER = "pyspark.sql.worker.lookup_data_sources"


def errors_of(python: str) -> str:
    """Return what a daemon prints while Spark starts a worker, hangs up on it, and ends."""
    with tempfile.TemporaryDirectory() as folder:  # The path of a socket has at most 107 bytes.
        return errors_in(folder, python)


def errors_in(folder: str, python: str) -> str:
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [python, "-m", "pyspark.daemon", WORKER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as daemon:  # type: ignore[call-overload]
        size = struct.unpack(">i", daemon.stdout.read(4))[0]
        with socket.socket(socket.AF_UNIX) as spark:
            spark.connect(daemon.stdout.read(size).decode())
            with spark.makefile("rb") as answers:
                worker = psutil.Process(struct.unpack(">i", answers.read(4))[0])
        worker.wait(WAIT_S)
        daemon.stdin.close()
        return str(daemon.stderr.read(), "utf-8")


def test_a_worker_whose_connection_ends_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "BrokenPipeError" in errors_of(sys.executable), "PySpark says nothing any more: linn's can go"
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    use_as_daemon()
    assert errors_of(os.environ["PYSPARK_PYTHON"]) == ""


def test_a_python_that_is_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/job/bin/python")
    use_as_daemon()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/job/bin/python"
