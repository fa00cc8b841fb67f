"""The Spark session of the group `spark`, and Spark's own Kafka source, from Maven Central, with a Kafka for it."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers.jars import class_path
from benchmarks.peers.kafka_process import kafka_jars
from benchmarks.peers.peer import PeerMissing

KAFKA = "3.9.2"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:{}"
CONNECTOR_BEFORE = "4.2.0"
"""Version of Spark's Kafka source where Maven Central has none of PySpark's own version; it runs in 4.3 as well."""
NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""JARs of the connector that PySpark has not."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def spark_missing() -> str | None:
    """Return what Spark needs and this machine has not; None: it can run."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "PySpark is not installed: pip install 'linn[spark]'"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "Java 17 or newer is not installed"
    return None


def connector_jars() -> list[str]:
    """Fetch Spark's Kafka source, of PySpark's version or the one before; returns its JARs. Raises PeerMissing."""
    from pyspark import __version__

    try:
        found = class_path([CONNECTOR.format(__version__)])
    except PeerMissing:
        found = class_path([CONNECTOR.format(CONNECTOR_BEFORE)])
    return [path for path in found.split(os.pathsep) if Path(path).name.startswith(NEEDED)]


def kafka_supply() -> tuple[list[str], str]:
    """Fetch what a comparison with Kafka needs: the connector's JARs, and Kafka's class path. Raises PeerMissing."""
    return connector_jars(), kafka_jars(KAFKA)


@contextmanager
def spark_session(jars: list[str], **more: str) -> Iterator[Any]:
    """Run a session with linn's data source, on two cores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        from linn.spark_plugin import LinnDataSource
        from linn.spark_plugin.driver.session import use_unzipped_home

        use_unzipped_home()
        builder = SparkSession.builder.master("local[2]").appName("linn-benchmarks")
        for name, value in (SETTINGS | {"spark.jars": ",".join(jars)} | more).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        session.dataSource.register(LinnDataSource)
        try:
            yield session
        finally:
            session.stop()
