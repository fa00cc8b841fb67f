"""The Spark session of a driver, and its settings."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from linn.spark_plugin.data_source import LinnDataSource
from linn.spark_plugin.driver.worker_daemon import use_as_daemon
from linn.spark_plugin.spec import DriverSpec

_JVM_EXIT_S = 10.0


def made_session(spec: DriverSpec) -> SparkSession:
    """Make the session, with linn's data source. Raises PySparkRuntimeError and others: there is no Java, no master."""
    if spec.master.startswith("local"):
        use_as_daemon()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        use_unzipped_home()
    builder = SparkSession.Builder()
    for name, value in session_settings(spec).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    session.dataSource.register(LinnDataSource)
    return session


def ended_session(session: SparkSession) -> None:
    """Stop the session and its JVM, with which all Python workers end. Returns when the JVM is gone."""
    gateway = SparkContext._gateway
    with contextlib.suppress(Exception):
        session.stop()
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    process.stdin.close()  # Spark's gateway server exits at the end of its input.
    try:
        process.wait(_JVM_EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def session_settings(spec: DriverSpec) -> dict[str, str]:
    """Return the settings of Spark; the specification's `conf` takes precedence."""
    settings = {
        "spark.app.name": f"linn-{spec.group}",
        "spark.master": spec.master,
        "spark.log.structuredLogging.enabled": "false",
        # A task's exchange with its Python worker over TCP stalls for 40 ms.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.sql.warehouse.dir": f"{spec.state_dir}/warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    slots = local_slots(spec.master)
    if slots is not None:
        settings |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # Each task costs some 40 ms: Spark's default of 200 tasks would take 4 s and more for each micro-batch.
            "spark.sql.shuffle.partitions": str(slots),
        }
    return settings | spec.conf


def local_slots(master: str) -> int | None:
    """Return the number of tasks that run at a time in this process, or None for a cluster."""
    found = re.match(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?$", master)
    if found is None:
        return None
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1] or 1)


def use_unzipped_home() -> None:
    """Let sessions of this process start Spark without its `python/lib/pyspark.zip`, unless SPARK_HOME is set.

    Spark puts that archive first on the path of Python's workers, and Python compiles a module from an archive again
    in each process, which takes 0.8 s; the installed package is read from its bytecode. The home is a folder of links,
    which is removed when the process ends.

    Raises OSError: the links can't be written.
    """
    if "SPARK_HOME" in os.environ:
        return
    home = Path(tempfile.mkdtemp(prefix="linn-spark-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for folder in Path(pyspark.__file__).parent.iterdir():
        if folder.is_dir() and folder.name != "python":
            (home / folder.name).symlink_to(folder)
    os.environ["SPARK_HOME"] = str(home)
