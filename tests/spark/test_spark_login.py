"""Spark over TLS on a listener that requires a login: jobs of users, and the broker's own drivers."""

from __future__ import annotations

import contextlib
import json
import stat
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from logged_in import PASSWORD, as_root, job_options, secured, tells
from spark_session import needs_spark
from topic_reading import committed

import linn.sync
from linn.core.errors.auth import AuthFailed, Forbidden
from linn.spark_plugin.service.service import LOGINS_FOLDER
from linn.testing.certificates import AUTHORITY
from linn.testing.process import BrokerProcess

needs_spark()

RECORDS = 500
TOPICS = """
[topics.flights]
kind = "stream"
partitions = 3
[topics.copies]
kind = "stream"
[topics.other]
kind = "stream"
"""


# --- jobs of users ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("login")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    with secured(folder, TOPICS) as running, as_root(running) as client:
        assert running.url.startswith("linns://")
        with client.producer("flights") as producer:
            producer.publish_many([b"%d" % number for number in range(RECORDS)])
        yield running


@pytest.fixture
def options(broker: BrokerProcess) -> dict[str, str]:
    """The options of ann's jobs."""
    return job_options(broker)


def test_a_user_reads_and_writes_each_micro_batch_once(
    spark: Any, broker: BrokerProcess, folder: Path, options: dict[str, str]
) -> None:
    flights = spark.read.format("linn").options(**options, subscribe="flights").load()
    assert flights.count() == RECORDS
    flights.select("value").write.format("linn").options(**options, topic="copies").mode("append").save()
    checkpoint = folder / "checkpoint"

    def run() -> None:
        streamed = spark.readStream.format("linn").options(
            **options, subscribe="flights", startingOffsets="earliest", maxOffsetsPerTrigger="200"
        )
        writer = streamed.load().select("value").writeStream.format("linn").options(**options, topic="copies")
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(240)

    run()
    commits = sorted(path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    assert len(commits) >= 3
    last = max(commits, key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink()  # As after a crash behind the commit in linn: the micro-batch is done again.
    run()
    with as_root(broker) as client:
        values = [b"%d" % number for number in range(RECORDS)]
        assert sorted(message.value or b"" for message in committed(client, "copies")) == sorted(2 * values)
    assert tells(checkpoint, PASSWORD) == []
    assert PASSWORD not in flights._jdf.queryExecution().toString()


def reads(spark: Any, options: dict[str, str], _: Path) -> None:
    spark.read.format("linn").options(**options, subscribe="flights").load().count()


def writes(spark: Any, options: dict[str, str], _: Path) -> None:
    spark.sql("SELECT 'x' AS value").write.format("linn").options(**options, topic="copies").mode("append").save()


def streams(spark: Any, options: dict[str, str], folder: Path) -> None:
    frame = spark.readStream.format("linn").options(**options, subscribe="flights").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "wrong")).start()
    query.awaitTermination(120)


@pytest.mark.parametrize("job", ["read", "write", "stream"])
def test_a_wrong_password_is_said_and_not_tried_for_long(
    spark: Any, broker: BrokerProcess, folder: Path, job: str
) -> None:
    wrong = job_options(broker, "wrong")
    began_s = time.monotonic()
    jobs = {"read": reads, "write": writes, "stream": streams}
    with pytest.raises(Exception, match=r"the login failed \[auth\.failed\]"):
        jobs[job](spark, wrong, folder)
    assert time.monotonic() - began_s < 90


def test_a_user_is_told_of_a_right_that_lacks(spark: Any, options: dict[str, str]) -> None:
    with pytest.raises(Exception, match=r'user "ann" may not see topic:other \[auth\.forbidden\]'):
        spark.read.format("linn").options(**options, subscribe="other").load().count()
    rows = spark.sql("SELECT 'x' AS value")
    with pytest.raises(Exception, match=r'user "ann" may not \w+ topic:flights \[auth\.forbidden\]'):
        rows.write.format("linn").options(**options, topic="flights").mode("append").save()


def test_a_file_that_others_may_read_is_refused(spark: Any, folder: Path, options: dict[str, str]) -> None:
    open_to_all = folder / "open.toml"
    open_to_all.write_text(f'user = "ann"\npassword = "{PASSWORD}"\n')
    open_to_all.chmod(0o644)
    with pytest.raises(Exception, match=r"linn\.credentials\.file: .*others may use it") as caught:
        reads(spark, options | {"linn.credentials.file": str(open_to_all)}, folder)
    assert PASSWORD not in str(caught.value)


# --- drivers of the broker --------------------------------------------------------------------------------------------

PIPELINE = """
[spark]
ca = "{ca}"
conf = {{ "spark.driver.memory" = "1g" }}
[topics.malformed]
kind = "stream"
[[spark.pipelines]]
name = "copied"
topics = ["flights"]
format = "linn"
options = {{ topic = "copies" }}
value = "json"
schema = "number INT"
dead_letter = "malformed"
sql = "SELECT CAST(number AS STRING) AS value FROM flights"
trigger = "0s"
"""


def until(condition: Any, what: str, timeout_s: float = 240) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.2)


def test_a_pipeline_runs_where_every_client_logs_in_and_reaches_its_own_topics_alone(tmp_path: Path) -> None:
    text = TOPICS + PIPELINE.format(ca=tmp_path / AUTHORITY)
    with secured(tmp_path, text) as broker, as_root(broker) as client:
        with client.producer("flights") as producer:
            producer.publish_many([b'{"number": 1}', b"no JSON", b'{"number": 2}'])

        def found(topic: str) -> list[bytes | None]:
            return [message.value for message in committed(client, topic)]

        until(lambda: (len(found("copies")), len(found("malformed"))) == (2, 1), broker.log_text()[-3000:])
        assert sorted(value or b"" for value in found("copies")) == [b"1", b"2"]
        assert found("malformed") == [b"no JSON"]
        trail = [json.loads(message.value or b"") for message in committed(client, "__audit")]
        assert {each["user"] for each in trail if each["action"] == "login"} == {"root", "service:spark/default"}
        assert {each["outcome"] for each in trail} == {"done"}
        (path,) = (tmp_path / "data" / "__services" / "spark" / LOGINS_FOLDER).iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        login = tomllib.loads(path.read_text())
        check_processes(broker, login["password"])
        secret, tls = linn.Password(login["user"], login["password"]), linn.Tls(ca=tmp_path / AUTHORITY)
        with linn.sync.connect(broker.url, login=secret, tls=tls) as driver:
            with pytest.raises(Forbidden):
                driver.fetch("other", 0, 0)
            with pytest.raises(Forbidden):
                driver.admin.perform("topic.delete", name="flights")
        client.admin.perform("service.perform", service="spark", action="stop", arguments={"pipelines": ["copied"]})
        until(lambda: not path.exists(), "the file stays")
        with pytest.raises(AuthFailed), linn.sync.connect(broker.url, login=secret, tls=tls):
            pass
    assert login["password"] not in broker.log_text()


def check_processes(broker: BrokerProcess, secret: str) -> None:
    """Check that no process shows the secret in its arguments or its environment."""
    assert broker.pid is not None
    processes = psutil.Process(broker.pid).children(recursive=True)
    assert len(processes) >= 2, "the driver and its JVM"
    for process in processes:
        for place in ("cmdline", "environ"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # Its task has ended.
                assert secret.encode() not in Path(f"/proc/{process.pid}/{place}").read_bytes(), place
