"""A Spark session for tests, and what says whether there can be one."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from typing import Any

import pytest

SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Options for a JVM of some minutes: to compile its hot code a second time takes longer than it saves, which halves the
processor time of these tests."""


def needs_spark() -> None:
    """Skip the calling module without PySpark or Java."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'linn[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or newer", allow_module_level=True)


def made_session(**more: str) -> Any:
    """Make a session with linn's data source, on two cores and with retries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        from linn.spark_plugin import LinnDataSource
        from linn.spark_plugin.driver.session import use_unzipped_home

        use_unzipped_home()
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master("local[2,4]").appName("linn-tests")
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stopTimeout": "20s",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.driver.memory": "1g",
            **SHORT_LIVED,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
        for name, value in (settings | more).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.dataSource.register(LinnDataSource)
        return session
