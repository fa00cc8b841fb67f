"""Spark's own Kafka source as an oracle: with the same data and options, linn's source returns the same.

Each seed draws records for both brokers, and options. Alike have to be the columns, their types, the rows, how tasks
share them where an option says so, the rows of each micro-batch, and whether options are refused at all. What is not
alike on purpose is in `ON_PURPOSE`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from spark_session import made_session, needs_spark
from twin_brokers import BASE_MS, TIMES_MS, TwinBrokers, some_records, twin_brokers

from benchmarks.peers.peer import PeerMissing
from benchmarks.spark_session import kafka_supply

needs_spark()
pytest.importorskip("kafka", reason="kafka-python is not installed")

SHARED = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The columns of both sources. linn's has more."""
ON_PURPOSE = {
    "an option that Kafka's source does not know": "Kafka passes over what it does not know; linn refuses it, with "
    "the name that was meant, since a misspelt option would otherwise read other data without a word.",
    "a partition that does not exist": "Kafka reads nothing of it, as of no partition at all; linn refuses both, since "
    "neither can be meant.",
    "a negative time": "Kafka takes -1 for the end of the log, as its protocol does; linn refuses it.",
    "an end of a stream, as a time": "Kafka refuses two of the three options and passes over "
    "endingTimestamp; linn refuses all three.",
    "a job that ends before it starts, with minPartitions": "Kafka refuses such a job, or, if it cuts partitions for "
    "minPartitions, reads nothing; linn refuses it either way.",
    "maxRecordsPerPartition in a job": "Kafka's source heeds it in streaming queries, and in jobs only together with "
    "a minPartitions that cuts partitions; linn heeds it always.",
    "minPartitions beside partitions without records": "In a job, Kafka's source counts partitions of which nothing is "
    "read, and cuts none where they reach minPartitions; linn counts those with records: the others have no task.",
    "small partitions without minPartitions": "linn lets small partitions share a task; Kafka does not. So "
    "tasks are compared only where minPartitions says how many there are.",
    "the first micro-batch with minOffsetsPerTrigger": "Kafka's source takes whatever is there at once, since it "
    "counts maxTriggerDelay from 1970 then; linn waits for that many records, as the option says.",
}
"""Differences that are meant, and why."""
A = "refusals.a"
"""A topic of two partitions."""
UNKNOWN, NO_PARTITION, NEGATIVE, END_OF_STREAM = tuple(ON_PURPOSE)[:4]
REFUSED: tuple[tuple[str, dict[str, str]], ...] = (
    ("", {}),
    ("", {"subscribe": ""}),
    ("", {"subscribe": " , "}),
    ("", {"subscribePattern": ""}),
    ("", {"subscribePattern": "["}),
    ("", {"assign": A}),
    ("", {"assign": json.dumps({A: 0})}),
    (NO_PARTITION, {"assign": json.dumps({A: [7]})}),
    (NO_PARTITION, {"assign": json.dumps({A: []})}),
    ("", {"subscribe": "nowhere"}),
    ("", {"subscribe": A, "assign": json.dumps({A: [0]})}),
    ("", {"subscribe": A, "subscribePattern": A}),
    ("", {"subscribe": A, "startingOffsets": "latest"}),
    ("", {"subscribe": A, "endingOffsets": "earliest"}),
    ("", {"subscribe": A, "startingOffsets": "first"}),
    ("", {"subscribe": A, "startingOffsets": "23"}),
    ("", {"subscribe": A, "startingOffsets": "{"}),
    ("", {"subscribe": A, "startingOffsets": json.dumps({A: {"0": -1, "1": 0}})}),
    ("", {"subscribe": A, "endingOffsets": json.dumps({A: {"0": -2, "1": 0}})}),
    ("", {"subscribe": A, "startingOffsets": json.dumps({A: {"0": 0}})}),
    ("", {"subscribe": A, "startingOffsets": json.dumps({A: {"0": 0, "1": 0, "2": 0}})}),
    ("", {"subscribe": A, "endingOffsets": json.dumps({A: {"0": 0}, "refusals.b": {"0": 0, "1": 0}})}),
    ("", {"subscribe": A, "startingTimestamp": "soon"}),
    ("", {"subscribe": A, "startingTimestamp": str(BASE_MS + 2 * TIMES_MS)}),
    ("", {"subscribe": A, "startingOffsetsByTimestamp": json.dumps({A: {"0": 0}})}),
    ("", {"subscribe": A, "startingOffsetsByTimestamp": str(BASE_MS)}),
    ("", {"subscribe": A, "startingTimestamp": "0", "startingOffsetsByTimestampStrategy": "later"}),
    ("", {"subscribe": A, "endingOffsetsByTimestamp": json.dumps({A: {"0": 0}})}),
    ("", {"subscribe": A, "endingTimestamp": ""}),
    ("", {"subscribe": A, "minPartitions": "0"}),
    ("", {"subscribe": A, "minPartitions": "few"}),
    ("", {"subscribe": A, "maxRecordsPerPartition": "0"}),
    ("", {"subscribe": A, "failOnDataLoss": "maybe"}),
    ("", {"subscribe": A, "includeHeaders": "maybe"}),
    (NEGATIVE, {"subscribe": A, "startingTimestamp": "-1"}),
    (UNKNOWN, {"subscribe": A, "startingOffset": "earliest"}),
)
"""Options of a batch job that linn refuses, as Kafka's source does unless a difference of ON_PURPOSE is named."""
REFUSED_STREAMS: tuple[tuple[str, dict[str, str]], ...] = (
    ("", {"endingOffsets": "latest"}),
    (END_OF_STREAM, {"endingTimestamp": "1"}),
    ("", {"endingOffsetsByTimestamp": '{"endless": {"0": 1}}'}),
    ("", {"startingOffsets": '{"endless": {"1": 1}}'}),
    ("", {"startingTimestamp": "1"}),
    ("", {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}),
    ("", {"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}),
    ("", {"maxOffsetsPerTrigger": "many"}),
    ("", {"maxRecordsPerPartition": "-1"}),
)
JOBS, QUERIES = 5, 2
"""Batch jobs and streaming queries of one seed."""
QUERY_TIMEOUT_S = 120
SYSTEMS = ("linn", "kafka")
Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def supply() -> tuple[list[str], str]:
    try:
        return kafka_supply()
    except PeerMissing as error:
        pytest.skip(f"no oracle: {error}")


@pytest.fixture(scope="module")
def session(supply: tuple[list[str], str]) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        pytest.skip("this process has a Spark session without Kafka's source: run this file by itself")
    session = made_session(**{"spark.jars": ",".join(supply[0])})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def twins(supply: tuple[list[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinBrokers]:
    with twin_brokers(tmp_path_factory.mktemp("twins"), supply[1]) as twins:
        yield twins


@dataclass(frozen=True)
class Outcome:
    """End of a read: rows or a refusal. Two are alike without the text, which is each source's own."""

    refused: bool = False
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    tasks: tuple[Row, ...] = ()
    """Partition, first and last offset of what each task read; only where options say how it is shared."""
    text: str = ""

    def differs(self, other: Outcome) -> str:
        """Say in what; empty: in nothing."""
        for name in ("refused", "columns", "rows", "tasks"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                if name in ("rows", "tasks"):
                    lost = Counter(map(repr, theirs)) - Counter(map(repr, ours))
                    more = Counter(map(repr, ours)) - Counter(map(repr, theirs))
                    return f"{name}: linn lacks {[*lost][:5]}, has {[*more][:5]} of its own"
                return f"{name}: linn {ours!r} {self.text[:150]!r}, Kafka {theirs!r} {other.text[:150]!r}"
        return ""


# --- reading ---------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value of a row that can be compared and hashed."""
    if isinstance(value, bytearray):
        return bytes(value)
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def frame(session: Any, twins: TwinBrokers, system: str, options: dict[str, str], *, is_stream: bool = False) -> Any:
    reader = session.readStream if is_stream else session.read
    loaded = reader.format(system).options(**twins.servers[system], **options).load()
    return loaded.select(*[name for name in SHARED if name in loaded.columns])


def read(session: Any, twins: TwinBrokers, system: str, options: dict[str, str]) -> Outcome:
    from pyspark.sql.functions import spark_partition_id

    try:
        loaded = frame(session, twins, system, options)
        columns = tuple(f"{field.name} {field.dataType.simpleString()} {field.nullable}" for field in loaded.schema)
        rows = [plain(row) for row in loaded.withColumn("task", spark_partition_id()).collect()]
    except refusals() as error:
        return Outcome(refused=True, text=said(error))
    names = [field.name for field in loaded.schema]
    partition, offset, topic = names.index("partition"), names.index("offset"), names.index("topic")
    by_task: dict[Row, list[int]] = {}
    given = {name.lower() for name in options}
    if "minpartitions" in given and "maxrecordsperpartition" not in given:
        for row in rows:
            by_task.setdefault((row[-1], row[topic], row[partition]), []).append(row[offset])
    tasks = sorted((*task[1:], min(offsets), max(offsets)) for task, offsets in by_task.items())
    ordered = sorted((row[:-1] for row in rows), key=lambda row: (row[topic], row[partition], row[offset]))
    return Outcome(columns=columns, rows=tuple(ordered), tasks=tuple(tasks))


def refusals() -> tuple[type[Exception], ...]:
    """The errors of Spark; Py4J's are those of Java that PySpark has no class for."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


def said(error: Exception) -> str:
    """The text of an error without the stack of Java."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith("at ")]
    return " / ".join(lines[:1] + [line for line in lines if "behind its end" in line] + lines[-1:])


def difference(session: Any, twins: TwinBrokers, options: dict[str, str]) -> str:
    """Read from both; say in what they differ."""
    ours, theirs = (read(session, twins, system, options) for system in SYSTEMS)
    if ours.refused and "behind its end" in ours.text and "minpartitions" in {name.lower() for name in options}:
        return ""  # On purpose, if Kafka does not refuse it.
    found = ours.differs(theirs)
    if found.startswith("tasks") and _counts_empty_partitions(theirs, options):
        return ""  # On purpose.
    return f"{found}, with {options}" if found else ""


def _counts_empty_partitions(kafka: Outcome, options: dict[str, str]) -> bool:
    """Whether Kafka's source has cut nothing, although fewer partitions have records than there are to be tasks."""
    lower = {name.lower(): value for name, value in options.items()}
    with_records = {(topic, partition) for topic, partition, _, _ in kafka.tasks}
    return len(kafka.tasks) == len(with_records) < int(lower["minpartitions"])


class Query:
    """A streaming query with a checkpoint, on one of the systems, that keeps the rows of each micro-batch."""

    def __init__(self, session: Any, twins: TwinBrokers, system: str, options: dict[str, str], folder: Path) -> None:
        self.batches: list[tuple[Row, ...]] = []
        self._read = lambda more: frame(session, twins, system, options | more, is_stream=True)
        self._checkpoint = str(folder / system)

    def _keep(self, found: Any, number: int) -> None:
        rows = sorted((plain(row) for row in found.collect()), key=repr)
        if rows:
            self.batches.append(tuple(rows))

    def start(self, more: dict[str, str], **trigger: Any) -> Any:
        """Start it, or start it again on its checkpoint."""
        writer = self._read(more).writeStream.foreachBatch(self._keep)
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def run(self, **more: str) -> Outcome:
        """Read everything that is there; the outcome has the rows of each micro-batch."""
        before = len(self.batches)
        try:
            running = self.start(more, availableNow=True)
            try:
                assert running.awaitTermination(QUERY_TIMEOUT_S), "the query does not end"
            finally:
                running.stop()
        except refusals() as error:
            return Outcome(refused=True, text=said(error))
        return Outcome(rows=tuple(self.batches[before:]))


# --- what is drawn ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Topics:
    """The topics of one seed: a name in common, and how many records each partition has."""

    prefix: str
    sizes: dict[str, list[int]]


def filled(twins: TwinBrokers, rng: Random, prefix: str, partitions: int | None = None) -> Topics:
    """Make two topics with records in both brokers."""
    counts = {name: partitions or rng.randint(1, 3) for name in "ab"}
    sizes = {f"{prefix}.{name}": [rng.choice([0, 1, 7, 40]) for _ in range(counts[name])] for name in "ab"}
    for topic, counts in sizes.items():
        twins.create(topic, len(counts))
        for partition, count in enumerate(counts):
            twins.publish(topic, partition, some_records(rng, count), rng.choice([1, 3, 1000]))
    return Topics(prefix, sizes)


def some_places(rng: Random, topics: Topics) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Draw the option that says what is read, and the partitions that it stands for."""
    names = sorted(topics.sizes)
    everything = {name: [*range(len(topics.sizes[name]))] for name in names}
    kind = rng.randrange(4)
    if kind == 0:
        return {"subscribe": ",".join(names)}, everything
    if kind == 1:
        return {"subscribePattern": f"{topics.prefix}\\.[ab]"}, everything
    if kind == 2:
        return {"subscribe": names[0]}, {names[0]: everything[names[0]]}
    some = {name: sorted(rng.sample(all_, rng.randint(1, len(all_)))) for name, all_ in everything.items()}
    return {"assign": json.dumps(some)}, some


def some_bound(rng: Random, topics: Topics, places: dict[str, list[int]], end: str, other_end: int) -> dict[str, str]:
    """Draw options that say where to start, or to end, some of which take precedence over others."""
    word, name = ("earliest", "starting") if end == "start" else ("latest", "ending")

    def each(draw: Callable[[int], int]) -> str:
        return json.dumps(
            {topic: {str(p): draw(topics.sizes[topic][p]) for p in some} for topic, some in places.items()}
        )

    def time_ms(_: int = 0) -> int:
        return BASE_MS + rng.choice([-5, rng.randrange(TIMES_MS), rng.randrange(TIMES_MS), TIMES_MS + 5])

    given = {
        f"{name}Timestamp": lambda: str(time_ms()),
        f"{name}OffsetsByTimestamp": lambda: each(time_ms),
        f"{name}Offsets": lambda: rng.choice(
            [word, word.upper(), each(lambda size: rng.choice([other_end, rng.randint(0, size), rng.randint(0, size)]))]
        ),
    }
    chosen = rng.sample(sorted(given), rng.choice([0, 1, 1, 1, 2, 3]))
    found = {option: given[option]() for option in chosen}
    if end == "start" and rng.random() < 0.6:
        found["startingOffsetsByTimestampStrategy"] = rng.choice(["error", "latest", "latest"])
    return found


def some_options(rng: Random, topics: Topics) -> dict[str, str]:
    """Draw the options of a batch job; names in any case."""
    options, places = some_places(rng, topics)
    options |= some_bound(rng, topics, places, "start", -2) | some_bound(rng, topics, places, "end", -1)
    more = {
        "includeHeaders": rng.choice(["true", "true", "false"]),
        "minPartitions": str(rng.choice([1, 4, 9])),
        "maxRecordsPerPartition": str(rng.choice([1, 5, 20])),
        "failOnDataLoss": rng.choice(["true", "false"]),
    }
    options |= {name: more[name] for name in rng.sample(sorted(more), rng.choice([0, 1, 2]))}
    return {rng.choice([name, name.lower(), name.upper()]): value for name, value in options.items()}


def some_stream_options(rng: Random, topics: Topics) -> dict[str, str]:
    """Draw the options of a streaming query."""
    options, places = some_places(rng, topics)
    start = some_bound(rng, topics, places, "start", rng.choice([-2, -1]))
    options |= start or {"startingOffsets": rng.choice(["earliest", "earliest", "latest"])}
    if rng.random() < 0.8:
        options["maxOffsetsPerTrigger"] = str(rng.choice([3, 10, 25]))
    if rng.random() < 0.3:
        options["minPartitions"] = "3"
    return options


def check(run: Callable[[int], None], seeds: range) -> None:
    """Run seeds; fail with the differences of each, whole."""
    found = []
    for seed in seeds:
        try:
            run(seed)
        except AssertionError as error:
            found.append(f"SIM_SEEDS={seed}-{seed + 1}: {str(error).partition(chr(10) + 'assert')[0]}")
    assert not found, "\n".join(found)


# --- the promises ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
@pytest.mark.soak(seeds=20, chunk=5)
def test_jobs_read_what_kafkas_source_reads(session: Any, twins: TwinBrokers, seeds: range) -> None:
    def run(seed: int) -> None:
        rng = Random(seed)
        topics = filled(twins, rng, f"job-{seed}")
        found = [difference(session, twins, some_options(rng, topics)) for _ in range(JOBS)]
        assert not any(found), next(each for each in found if each)

    check(run, seeds)


@pytest.mark.timeout(1800)
@pytest.mark.soak(seeds=20, chunk=5)
def test_queries_read_what_kafkas_source_reads_batch_by_batch(
    session: Any, twins: TwinBrokers, seeds: range, tmp_path: Path
) -> None:
    def run(seed: int) -> None:
        rng = Random(seed)
        topics = filled(twins, rng, f"query-{seed}")
        for number in range(QUERIES):
            options, folder = some_stream_options(rng, topics), tmp_path / f"{seed}-{number}"
            queries = [Query(session, twins, system, options, folder) for system in SYSTEMS]
            for _ in range(2):
                ours, theirs = (query.run() for query in queries)
                found = ours.differs(theirs)
                assert not found, f"{found}, with {options}"
                for topic in topics.sizes:
                    twins.publish(topic, 0, some_records(rng, rng.randint(0, 9)), 3)

    check(run, seeds)


def test_what_kafkas_source_refuses_is_refused(session: Any, twins: TwinBrokers) -> None:
    topics = filled(twins, Random(0), "refusals", partitions=2)
    found = {}
    for why, options in REFUSED:
        ours, theirs = (read(session, twins, system, options) for system in SYSTEMS)
        if not ours.refused or theirs.refused != (why == ""):
            found[str(options)] = f"linn {ours.text[:80] or 'reads'}, Kafka {theirs.text[:80] or 'reads'}"
    assert {why for why, _ in REFUSED if why} <= {*ON_PURPOSE}
    assert topics.sizes
    assert not found, "\n".join(f"{options}: {what}" for options, what in found.items())


def test_what_kafkas_source_refuses_of_a_stream_is_refused(session: Any, twins: TwinBrokers, tmp_path: Path) -> None:
    twins.create("endless", 1)
    found = {}
    for number, (why, options) in enumerate(REFUSED_STREAMS):
        folder = tmp_path / str(number)
        ours, theirs = (
            Query(session, twins, system, {"subscribe": "endless", **options}, folder).run() for system in SYSTEMS
        )
        if not ours.refused or theirs.refused != (why == ""):
            found[str(options)] = f"linn {ours.text[:80] or 'reads'}, Kafka {theirs.text[:80] or 'reads'}"
    assert not found, "\n".join(f"{options}: {what}" for options, what in found.items())


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_is_gone_is_lost_to_both(session: Any, twins: TwinBrokers, tmp_path: Path, fails: str) -> None:
    topic, rng = f"short-{fails}", Random(1)
    sizes = {"message_bytes_max": 2_000, "bytes_max": 2_000}
    twins.create(topic, 1, storage="dram", overflow="drop-head", **sizes)
    given = {"subscribe": topic, "failOnDataLoss": fails}
    queries = [Query(session, twins, system, given | {"startingOffsets": "earliest"}, tmp_path) for system in SYSTEMS]
    twins.publish(topic, 0, some_records(rng, 3), 1)
    first = [query.run() for query in queries]
    assert first[0].differs(first[1]) == ""
    twins.publish(topic, 0, some_records(rng, 100), 1)
    start = twins.forget(topic)
    assert start > 3
    ours, theirs = (query.run() for query in queries)
    assert (ours.differs(theirs), ours.refused) == ("", fails == "true")
    for options in (
        {"startingOffsets": json.dumps({topic: {"0": 1}})},
        {"startingOffsets": json.dumps({topic: {"0": -2}})},
        {"endingOffsets": json.dumps({topic: {"0": 999}})},
        {"startingOffsets": json.dumps({topic: {"0": start + 1}}), "endingOffsets": json.dumps({topic: {"0": start}})},
    ):
        assert difference(session, twins, given | options) == ""


@pytest.mark.soak(seeds=5, chunk=5)
def test_micro_batches_wait_for_as_many_records(session: Any, twins: TwinBrokers, seeds: range, tmp_path: Path) -> None:
    def run(seed: int) -> None:
        rng, topic = Random(seed), f"delayed-{seed}"
        twins.create(topic, 2)
        low = rng.randint(2, 12)
        options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": str(low)}
        options |= {"maxTriggerDelay": "1h"} | rng.choice([{}, {"maxOffsetsPerTrigger": str(low + rng.randint(0, 5))}])
        # Kafka's source does not wait before its first micro-batch (see ON_PURPOSE).
        twins.publish(topic, 0, some_records(rng, low), 1)
        queries = [Query(session, twins, system, options, tmp_path / str(seed)) for system in SYSTEMS]
        running = [query.start({}, processingTime="0 seconds") for query in queries]
        try:
            for _ in range(5):
                for each in running:
                    each.processAllAvailable()
                ours, theirs = (query.batches for query in queries)
                assert ours == theirs, f"{options}: linn {[*map(len, ours)]}, Kafka {[*map(len, theirs)]}"
                twins.publish(topic, rng.randrange(2), some_records(rng, rng.randint(1, low)), 1000)
        finally:
            for each in running:
                each.stop()

    check(run, seeds)
