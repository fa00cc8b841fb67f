"""The Spark session of a driver, and its settings."""

from __future__ import annotations

import contextlib
import os
import subprocess

from pyspark import SparkContext
from pyspark.sql import SparkSession

from linn.spark_plugin.data_source import LinnDataSource
from linn.spark_plugin.driver.session_settings import session_settings
from linn.spark_plugin.driver.spark_home import use_unzipped_home
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
    """Stop the session and its JVM, with which all of Python's workers end. Returns when it is gone."""
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
