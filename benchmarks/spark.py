"""Spark lines: topics as a source and a sink of PySpark jobs, beside Spark's own sources.

Laws: one session and one broker serve all lines. All jobs take turns in each round. The first round is the warm-up of
Python's workers and of Java's compiler, and is not counted. Neither the broker nor Spark has a processor of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import linn.sync
from benchmarks.client import MANY, VALUES, some_values
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.load import RECORD_BYTES, LoadFailed, cpu_s
from benchmarks.peers.kafka_process import KafkaProcess, kafka_process
from benchmarks.peers.peer import PeerFailed, PeerMissing
from benchmarks.peers.tool import ToolFailed
from benchmarks.plan import Plan
from benchmarks.servers import fresh_folder, share_processors
from benchmarks.spark_session import kafka_supply, spark_missing, spark_session
from linn.testing.process import BrokerProcess

GROUP = "spark"
PARTITIONS = 4
GENERATED_ROWS = VALUES
"""Rows of one generated Arrow batch: as many distinct values as the topic has, so that Parquet packs both alike."""
SOURCE_RATE, SOURCE_CPU_US = Bound(1_200_000), Bound(0.3, at_most=True)
SINK_RATE = Bound(350_000)
OF_GENERATED, OF_KAFKA = Bound(0.85), Bound(2.0)
MICRO_BATCH_MS = Bound(200, at_most=True)
FIRST_BATCHES = 5
"""Micro-batches at the start of a query that are not counted."""
QUERY_TIMEOUT_S = 600
CONFIG = f"""
[topics.rows]
kind = "stream"
partitions = {PARTITIONS}

[topics.written]
kind = "stream"
partitions = {PARTITIONS}

[topics.singles]
kind = "stream"

[topics.copies]
kind = "stream"
"""


def spark_lines(plan: Plan) -> Iterator[Line]:
    """All lines, at the end: the jobs take turns. None without PySpark or Java."""
    missing = spark_missing()
    if missing is not None:
        print(f"  {GROUP} is skipped: {missing}", file=sys.stderr, flush=True)
        return
    share_processors()
    with ExitStack() as stack:
        folder = stack.enter_context(fresh_folder(plan.folder))
        home = folder / "broker"
        home.mkdir()
        process = stack.enter_context(BrokerProcess(home, CONFIG))
        jars, kafka = stack.enter_context(_kafka(folder))
        jobs = Jobs(stack.enter_context(spark_session(jars)), plan, process, kafka, folder)
        yield from counted(jobs, plan.spark_rounds)


def counted(jobs: Jobs, rounds: int) -> Iterator[Line]:
    """Return the lines of so many rounds, after one that is not counted."""
    jobs.prepare()
    for number in range(1 + rounds):
        jobs.run_round()
        if number == 0:
            jobs.figures.clear()
    yield from jobs.lines()


@contextmanager
def _kafka(folder: Path) -> Iterator[tuple[list[str], KafkaProcess | None]]:
    """Run a Kafka, with the JARs of Spark's source for it; neither, and a line that says why, if it can't be had."""
    with ExitStack() as stack:
        jars: list[str] = []
        process: KafkaProcess | None = None
        try:
            jars, broker_jars = kafka_supply()
            home = folder / "kafka"
            home.mkdir()
            process = stack.enter_context(kafka_process(broker_jars, home, PARTITIONS))
        except (PeerMissing, PeerFailed, ToolFailed) as error:
            print(f"  Spark's Kafka source is skipped: {error}", file=sys.stderr, flush=True)
        yield jars, process


@dataclass
class Jobs:
    """The jobs, and their figures of each round: rows per second, broker microseconds per row, or milliseconds."""

    spark: Any
    plan: Plan
    process: BrokerProcess
    kafka: KafkaProcess | None
    folder: Path
    figures: dict[str, list[float]] = field(default_factory=dict)
    _rounds: int = 0

    # --- what is read ---

    def prepare(self) -> None:
        """Publish the rows, and copy them into files and into Kafka."""
        values = some_values(min(MANY, self.plan.spark_rows))
        with linn.sync.connect(self.process.url) as client:
            with client.producer("rows") as producer:
                for number, first in enumerate(range(0, self.plan.spark_rows, len(values))):
                    producer.publish_many(values[: self.plan.spark_rows - first], partition=number % PARTITIONS)
            with client.producer("singles") as producer:
                producer.publish_many([bytes(RECORD_BYTES)] * self.plan.spark_batches)
        self.rows().write.parquet(str(self.folder / "files"))
        if self.kafka is not None and not self._copied_to_kafka():
            self.kafka = None

    def _copied_to_kafka(self) -> bool:
        """Copy the rows into Kafka. A Kafka that refuses them is left out of the lines, and a line says so."""
        # Batches as large as linn's, so that Kafka is read at its best.
        batches = {"kafka.batch.size": str(1 << 20), "kafka.linger.ms": "20", "kafka.buffer.memory": str(256 << 20)}
        copied = self.rows().select("value", "partition").write.format("kafka")
        try:
            copied.options(topic="rows", **self._kafka_servers(), **batches).save()
        except Exception as error:  # Spark's, which is imported where Spark is installed
            print(f"  Spark's Kafka source is skipped: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            return False
        return True

    def rows(self) -> Any:
        """Return the topic's rows."""
        return self.spark.read.format("linn").options(subscribe="rows", **self._servers()).load()

    def _servers(self) -> dict[str, str]:
        return {"linn.bootstrap.servers": self.process.url}

    def _kafka_servers(self) -> dict[str, str]:
        assert self.kafka is not None
        return {"kafka.bootstrap.servers": self.kafka.address}

    # --- rounds ---

    def run_round(self) -> None:
        """Have each job its turn."""
        self._rounds += 1
        rows = self.plan.spark_rows
        cpu_before_s = cpu_s(self.process.pid)
        self._rate("noop", rows, lambda: _discard(self.rows()))
        self._keep("noop, broker", (cpu_s(self.process.pid) - cpu_before_s) / rows * 1e6)
        self._rate("files", rows, lambda: _discard(self.spark.read.parquet(str(self.folder / "files"))))
        if self.kafka is not None:
            kafka = self.spark.read.format("kafka").options(subscribe="rows", **self._kafka_servers())
            self._rate("kafka", rows, lambda: _discard(kafka.load()))
        self._rate("generated to parquet", rows, lambda: self._store(self._generated()))
        self._rate("parquet", rows, lambda: self._store(self.rows()))
        self._streams()
        self._write("values", "value")
        self._write("keys", "key", "value")
        self._micro_batches()

    def _rate(self, name: str, rows: int, job: Callable[[], None]) -> None:
        started = time.perf_counter()
        job()
        self._keep(name, rows / (time.perf_counter() - started))

    def _keep(self, name: str, figure: float) -> None:
        self.figures.setdefault(name, []).append(figure)

    def _store(self, frame: Any) -> None:
        frame.write.mode("overwrite").parquet(str(self.folder / "stored"))

    def _generated(self) -> Any:
        """Rows of the same columns, which Python makes without a broker."""
        count = -(-self.plan.spark_rows // (PARTITIONS * GENERATED_ROWS))
        made = generated(some_values(GENERATED_ROWS), count, self.plan.spark_rows // PARTITIONS)
        return self.spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(made, self.rows().schema)

    def _write(self, name: str, *columns: str) -> None:
        rows = self.plan.spark_sink_rows
        made = self.spark.range(0, rows, 1, PARTITIONS).selectExpr(
            "cast(cast(id % 1000 as string) as binary) as key",
            f"cast(lpad(cast(id as string), {RECORD_BYTES}, '0') as binary) as value",
        )
        writer = made.select(*columns).write.format("linn").mode("append").options(topic="written", **self._servers())
        cpu_before_s = cpu_s(self.process.pid)
        self._rate(name, rows, writer.save)
        self._keep(f"{name}, broker", (cpu_s(self.process.pid) - cpu_before_s) / rows * 1e6)

    # --- streaming queries ---

    def _streams(self) -> None:
        """Read as many rows in one micro-batch of a streaming query: Spark's rate source, and the topic."""
        rows = self.plan.spark_rows
        second_ago = str(int(time.time() * 1000) - 1500)
        options = {"rowsPerBatch": rows, "numPartitions": PARTITIONS, "startTimestamp": second_ago}
        rate = self.spark.readStream.format("rate-micro-batch").options(**options)
        self._query("rate", rate, "noop")
        self._query("stream", self._stream("rows"), "noop")

    def _stream(self, topic: str, **options: str) -> Any:
        given = {"subscribe": topic, "startingOffsets": "earliest", **self._servers(), **options}
        return self.spark.readStream.format("linn").options(**given)

    def _query(self, name: str, source: Any, sink: str, **options: str) -> list[dict[str, Any]]:
        """Run a query until it has read everything; returns its progress. Raises LoadFailed."""
        checkpoint = str(self.folder / f"checkpoint-{name}-{self._rounds}")
        writer = source.load().writeStream.format(sink).option("checkpointLocation", checkpoint).options(**options)
        running = writer.trigger(availableNow=True).start()
        try:
            if not running.awaitTermination(QUERY_TIMEOUT_S):
                raise LoadFailed(f"the query {name} did not end within {QUERY_TIMEOUT_S} s")
        finally:
            running.stop()
        progress = [each for each in map(_as_dict, running.recentProgress) if each["numInputRows"]]
        # Without the start of the query, which takes as long as the reading of a million rows.
        taken_s = sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000
        self._keep(name, sum(each["numInputRows"] for each in progress) / taken_s)
        return progress

    def _micro_batches(self) -> None:
        """Time micro-batches of one row each, one after the other."""
        for name, sink, options in (("to noop", "noop", {}), ("to linn", "linn", self._servers())):
            source = self._stream("singles", maxOffsetsPerTrigger="1")
            topic = {"topic": "copies"} if options else {}
            progress = self._query(name, source, sink, **options, **topic)[FIRST_BATCHES:]
            self._keep(f"{name}, ms", median(each["durationMs"]["triggerExecution"] for each in progress))

    # --- results ---

    def lines(self) -> Iterator[Line]:
        """Return the lines of all rounds."""
        found = self.figures
        yield Line(GROUP, "source to noop", "records/s", SOURCE_RATE, found["noop"])
        yield Line(GROUP, "source, broker's CPU per row", "us", SOURCE_CPU_US, found["noop, broker"])
        yield self._ratio("source to Parquet, of generated Arrow", OF_GENERATED, "generated to parquet", "parquet")
        yield self._ratio("source to noop, of Parquet files", None, "files", "noop")
        yield self._ratio("stream to noop, of Spark's rate source", None, "rate", "stream")
        if self.kafka is not None:
            yield self._ratio("source to noop, of Spark's Kafka source", OF_KAFKA, "kafka", "noop")
        yield Line(GROUP, "sink, values", "records/s", SINK_RATE, found["values"])
        yield Line(GROUP, "sink, values, broker's CPU per row", "us", None, found["values, broker"])
        yield Line(GROUP, "sink, keys and values", "records/s", SINK_RATE, found["keys"])
        yield Line(GROUP, "sink, keys, broker's CPU per row", "us", None, found["keys, broker"])
        yield Line(GROUP, "micro-batch of one row, to noop", "ms", MICRO_BATCH_MS, found["to noop, ms"])
        yield Line(GROUP, "micro-batch of one row, to linn", "ms", MICRO_BATCH_MS, found["to linn, ms"])

    def _ratio(self, name: str, bound: Bound | None, floor: str, linn: str) -> Line:
        both = zip(self.figures[floor], self.figures[linn], strict=True)
        return line_of_pairs(GROUP, name, bound, [Pair(a / 1e6, b / 1e6) for a, b in both], "M/s")


def _discard(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _as_dict(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


def generated(values: list[bytes], count: int, rows: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for `mapInArrow` that yields, for each row it gets, `rows` rows in up to `count` batches."""

    def make(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from linn.spark_plugin.source.arrow_columns import arrow_schema

        schema = arrow_schema(includes_headers=False, includes_id=False)
        size = len(values)
        constants = {"key": None, "topic": "rows", "timestamp": 1_700_000_000_000_000, "timestampType": 0}
        constants |= {"routing_key": "", "partition": 0}
        columns = {
            name: pa.repeat(pa.scalar(value, schema.field(name).type), size) for name, value in constants.items()
        }
        columns["value"] = pa.array(values, pa.binary())
        columns["labels"] = pa.array([[]] * size, schema.field("labels").type)
        offsets = pa.array(range(size), pa.int64())
        for batch in batches:
            for _ in range(batch.num_rows):
                for number in range(count):
                    columns["offset"] = pc.add(offsets, number * size)
                    made = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
                    yield made.slice(0, max(0, min(size, rows - number * size)))

    return make
