"""Writes of Spark as Spark makes them, without Spark: attempts that fail or run twice, replays, and late aborts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from topic_reading import committed

import linn.sync
from linn.client.connection.producer_ids import IDS_PER_CLIENT
from linn.core.errors.tree import LinnError, TransactionFenced
from linn.testing.broker_thread import BrokerThread

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'linn[spark]'")
pytest.importorskip("numpy", reason="numpy is not installed: pip install 'linn[spark]'")

from linn.spark_plugin.connections import forget_client  # noqa: E402
from linn.spark_plugin.errors import CheckpointOutdated, SparkWriteInterrupted  # noqa: E402
from linn.spark_plugin.place import BrokerPlace  # noqa: E402
from linn.spark_plugin.sink.job import WriteJob, abandon, abort, commit, run_number  # noqa: E402
from linn.spark_plugin.sink.messages import checksum  # noqa: E402
from linn.spark_plugin.sink.write_options import TYPES  # noqa: E402

Values = list[bytes]


def rows(*values: str) -> Iterator[Any]:
    yield pa.RecordBatch.from_pydict({"value": list(values)})


CONFIG = """
[topics.made]
kind = "stream"
partitions = 2
[topics.other]
kind = "stream"
"""


@pytest.fixture
def url() -> Iterator[str]:
    with BrokerThread(CONFIG) as broker:
        yield broker.url
        forget_client(BrokerPlace(broker.url))


@pytest.fixture
def client(url: str) -> Iterator[linn.sync.Client]:
    with linn.sync.connect(url) as client:
        yield client


@pytest.fixture
def job(url: str) -> WriteJob:
    return WriteJob(BrokerPlace(url), "spark.query", run_number("run 1"), 60.0, topic="made")


def made(client: linn.sync.Client, topic: str = "made") -> Values:
    return sorted(message.value or b"" for message in committed(client, topic))


def test_of_two_attempts_that_both_ended_only_the_one_that_is_named_counts(
    client: linn.sync.Client, job: WriteJob
) -> None:
    first, second, other = job.write(rows("1")), job.write(rows("1")), job.write(rows("2"))
    assert first.ticket == second.ticket == other.ticket
    assert made(client) == []
    commit([second, other], sequence=1)
    assert made(client) == [b"1", b"2"]


def test_an_attempt_that_fails_leaves_nothing_and_its_producers_are_not_used_again(
    client: linn.sync.Client, job: WriteJob
) -> None:
    def broken() -> Iterator[Any]:
        yield from rows("1", "2")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job.write(broken())
    commit([job.write(rows("1", "2", "3"))], sequence=1)
    assert made(client) == [b"1", b"2", b"3"]


def test_a_batch_that_is_written_again_by_another_run_is_stored_once(client: linn.sync.Client, job: WriteJob) -> None:
    commit([job.write(rows("1"))], sequence=1)
    again = replace(job, run=run_number("run 2"))
    commit([again.write(rows("1"))], sequence=1)
    commit([again.write(rows("2"))], sequence=2)
    assert made(client) == [b"1", b"2"]


def test_a_batch_is_known_by_its_rows_in_whatever_order_and_by_however_many_tasks_they_are_written(
    client: linn.sync.Client, job: WriteJob
) -> None:
    commit([job.write(rows("1", "2")), job.write(rows("3"))], sequence=1)
    again = replace(job, run=run_number("run 2"))
    commit([again.write(each) for each in (rows("3"), rows("2"), rows("1"), rows())], sequence=1)
    assert made(client) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("other", [("1", "2", "4"), ("1", "2"), ("1", "2", "3", "3"), ("12", "", "3")])
def test_other_rows_under_a_number_that_was_committed_are_refused(
    client: linn.sync.Client, job: WriteJob, other: tuple[str, ...]
) -> None:
    commit([job.write(rows("1", "2", "3"))], sequence=1)
    again = replace(job, run=run_number("run 2"))
    with pytest.raises(CheckpointOutdated, match=r"write 0 of spark\.query was committed with other rows"):
        commit([again.write(rows(*other))], sequence=1)
    commit([again.write(rows("5"))], sequence=2)
    with pytest.raises(CheckpointOutdated, match="or a later one was"):
        commit([again.write(rows("1", "2", "3"))], sequence=1)
    assert made(client) == [b"1", b"2", b"3", b"5"]


def test_where_the_input_is_known_it_counts_and_the_rows_may_be_others(client: linn.sync.Client, job: WriteJob) -> None:
    commit([job.write(rows("1", "random"))], 1, "offsets abc")
    commit([job.write(rows("1", "modnar"))], 1, "offsets abc")
    with pytest.raises(CheckpointOutdated, match="offsets def"):
        commit([job.write(rows("1", "random"))], 1, "offsets def")
    assert made(client) == [b"1", b"random"]


def test_every_column_of_a_row_counts_for_its_checksum() -> None:
    plain: dict[str, Any] = {
        "value": ["a", "b"],
        "key": ["k", None],
        "topic": ["made", "other"],
        "partition": [0, 1],
        "routing_key": ["r.1", ""],
        "labels": pa.array([[("late", "yes")], None], pa.map_(pa.string(), pa.string())),
        "headers": [[{"key": "h", "value": b"1"}], []],
    }
    other: dict[str, Any] = {
        "value": ["a", "c"],
        "key": [None, None],
        "topic": ["made", "made"],
        "partition": [1, 1],
        "routing_key": ["", ""],
        "labels": pa.array([[("late", "no")], None], pa.map_(pa.string(), pa.string())),
        "headers": [[{"key": "h", "value": b"2"}], []],
    }
    assert {*plain} == {*TYPES}
    whole = pa.RecordBatch.from_pydict(plain)
    assert checksum(whole.take(pa.array([1, 0]))) == checksum(whole) == sum(checksum(whole.slice(n, 1)) for n in (0, 1))
    found = {checksum(pa.RecordBatch.from_pydict({**plain, name: column})) for name, column in other.items()}
    swapped = pa.RecordBatch.from_pydict({**plain, "value": plain["key"], "key": plain["value"]})
    assert len({*found, checksum(whole), checksum(swapped)}) == len(TYPES) + 2


def test_an_abort_after_the_commit_takes_nothing_back(client: linn.sync.Client, job: WriteJob) -> None:
    written = job.write(rows("1"))
    commit([written], sequence=1)
    abort([written, None])
    left = job.write(rows("2"))
    abort([left])
    assert made(client) == [b"1"]
    commit([job.write(rows("3"))], sequence=2)
    assert made(client) == [b"1", b"3"]


def test_a_job_that_is_abandoned_leaves_nothing_open_and_its_late_tasks_write_nothing(
    client: linn.sync.Client, job: WriteJob
) -> None:
    job.write(rows("1"))
    abandon(job)
    with pytest.raises(TransactionFenced):
        job.write(rows("late"))
    assert [each["state"] for each in client.admin.transactions()["transactions"]] == ["idle"]
    with client.producer("made") as producer:
        producer.publish(b"2")
    assert made(client) == [b"2"], "nothing holds back the readers"


def test_what_was_committed_stays_when_its_job_is_abandoned(client: linn.sync.Client, job: WriteJob) -> None:
    commit([job.write(rows("1"))], sequence=1)
    abandon(job)
    commit([replace(job, run=run_number("run 2")).write(rows("1"))], sequence=1)
    assert made(client) == [b"1"]


def test_a_job_that_a_later_run_has_replaced_does_not_disturb_it(client: linn.sync.Client, job: WriteJob) -> None:
    job.write(rows("old"))
    new = replace(job, run=run_number("run 2")).write(rows("new"))
    abandon(job)
    commit([new], sequence=1)
    assert made(client) == [b"new"]


def test_a_driver_that_was_replaced_can_not_commit(client: linn.sync.Client, job: WriteJob) -> None:
    old = job.write(rows("old"))
    new = replace(job, run=run_number("run 2")).write(rows("new"))
    with pytest.raises(TransactionFenced):
        commit([old], sequence=1)
    with pytest.raises(SparkWriteInterrupted):
        commit([old, new], sequence=1)
    with pytest.raises(LinnError):
        job.write(rows("late"))
    commit([new], sequence=1)
    assert made(client) == [b"new"]


def test_a_task_without_rows_opens_nothing(client: linn.sync.Client, job: WriteJob) -> None:
    empty = job.write(iter(()))
    assert empty.ticket is None
    commit([empty], sequence=1)
    assert client.admin.transactions()["transactions"] == []


def test_a_worker_uses_its_producers_again_in_the_next_transaction(client: linn.sync.Client, job: WriteJob) -> None:
    used = set()
    for number in range(20):
        written = [job.write(rows(f"{number}")) for _ in range(3)]
        used.update(producer for each in written for producer in each.producers)
        commit(written[:2], sequence=number + 1)
    assert len(used) == 3, "the broker remembers each of them for a day"
    assert len(made(client)) == 2 * 20


def test_more_attempts_than_a_client_has_ids_never_share_a_producer(client: linn.sync.Client, job: WriteJob) -> None:
    written = [job.write(rows(str(number))) for number in range(IDS_PER_CLIENT + 10)]
    producers = [producer for each in written for producer in each.producers]
    assert len({*producers}) == len(producers)
    commit(written[::2], sequence=1)
    assert made(client) == sorted(b"%d" % number for number in range(0, len(written), 2))


def test_a_task_whose_client_runs_out_of_ids_between_two_topics_loses_nothing(
    client: linn.sync.Client, job: WriteJob
) -> None:
    written = [job.write(rows("0")) for _ in range(IDS_PER_CLIENT - 1)]
    both = pa.RecordBatch.from_pydict({"value": ["1", "2", "3"], "topic": ["made", "other", "made"]})
    written.append(replace(job, topic=None).write(iter([both])))
    commit(written[-1:], sequence=1)
    assert (made(client), made(client, "other")) == ([b"1", b"3"], [b"2"])
