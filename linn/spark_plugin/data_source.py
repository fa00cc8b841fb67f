"""LinnDataSource: topics as a PySpark data source, `format("linn")`, for batch jobs and streaming queries.

Laws: the objects here are pickled and sent to workers, so that none of them has a connection. A reader of a batch job
and the writers remember nothing: PySpark uses one reader for every scan of a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from linn.core.env.real.env import RealEnv
from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.sink.job import WriteJob, Written, abandon, abort, commit, run_number
from linn.spark_plugin.sink.write_options import WriteOptions, checked_write
from linn.spark_plugin.source.arrow_columns import arrow_schema
from linn.spark_plugin.source.options import ReadOptions, checked_options, included
from linn.spark_plugin.source.planning import planned
from linn.spark_plugin.source.ranges import Task
from linn.spark_plugin.source.reading import read_range
from linn.spark_plugin.source.stream_offset import StreamOffset
from linn.spark_plugin.source.stream_planner import StreamPlanner

_COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
    ("routing_key", StringType()),
    ("labels", MapType(StringType(), StringType())),
)
_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def columns(*, includes_headers: bool, includes_id: bool) -> StructType:
    """Return the columns as Spark declares them."""
    headers = [StructField("headers", _HEADERS)] if includes_headers else []
    ids = [StructField("id", BinaryType())] if includes_id else []
    return StructType([*(StructField(name, kind) for name, kind in _COLUMNS), *headers, *ids])


class LinnDataSource(DataSource):
    """Topics of a linn broker. Register it once per session: `spark.dataSource.register(LinnDataSource)`.

    Example:
        spark.dataSource.register(LinnDataSource)
        options = {"linn.bootstrap.servers": "127.0.0.1:5466", "subscribe": "flights"}
        spark.read.format("linn").options(**options).load().show()
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "linn"

    def schema(self) -> StructType:
        """Return the columns. Raises SparkOptionInvalid."""
        return columns(**included(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a batch job. Raises SparkOptionInvalid."""
        return LinnReader(checked_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of a streaming query. Raises SparkOptionInvalid."""
        return LinnStreamReader(checked_options(self.options, is_stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch job, which appends. Raises SparkOptionInvalid."""
        if overwrite:
            raise SparkOptionInvalid('a topic can\'t be overwritten: use mode("append")')
        options = checked_write(self.options, _types(schema), is_stream=False)
        rng = RealEnv().rng
        run = int.from_bytes(rng.bytes(8), "big") or 1
        name = options.name if options.name is not None else f"spark.batch.{rng.bytes(16).hex()}"
        job = WriteJob(options.broker, name, run, options.timeout_s, options.topic, options.exchange)
        return LinnWriter(job, 0 if options.number is None else options.number + 1, options.identity)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer of a streaming query's output. Raises SparkOptionInvalid."""
        return LinnStreamWriter(checked_write(self.options, _types(schema), is_stream=True))


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


class TaskPartition(InputPartition):
    """The ranges of offsets that one task reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class _Reading:
    """Part of a reader that runs in tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises SparkOptionInvalid: the user's schema differs from the source's."""
        self._options = options
        self._includes = {"includes_headers": options.includes_headers, "includes_id": options.includes_id}
        declared = columns(**self._includes).simpleString()
        if schema.simpleString() != declared:
            raise SparkOptionInvalid(f"the columns of linn's Spark source are {declared}")

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the ranges of a task as Arrow batches. Raises SparkDataLost, ConnectionLost, RequestTimeout."""
        task: Task = partition.value or ()  # Spark makes one empty task where a batch job has none.
        schema = arrow_schema(**self._includes)
        return (batch for wanted in task for batch in read_range(self._options, wanted, schema))


class LinnReader(_Reading, DataSourceReader):
    """Reader of a batch job: plans tasks in the driver, and reads in each of them."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan. Raises SparkOptionInvalid, SparkDataLost, ConnectFailed and others."""
        return [TaskPartition(task) for task in planned(self._options)]


class LinnStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a streaming query: one in the query's planning process, and a copy in each task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._planner: StreamPlanner | None = None

    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options, RealEnv().clock.now_ms)
        return self._planner

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_planner": None}

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts. Raises SparkOptionInvalid, ConnectionLost and others."""
        return self._plan().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit if an option sets one; the planner applies it."""
        limits = self._options.limits
        number = limits.offsets_max or limits.offsets_min
        return ReadAllAvailable() if number is None else ReadMaxRows(number)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch. Raises SparkDataLost, ConnectionLost and others."""
        is_limited = not isinstance(limit, ReadAllAvailable)
        return self._plan().end_after(StreamOffset.from_json(start), is_limited=is_limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the present end of the topics, for the query's progress."""
        latest = self._plan().latest()
        return None if latest is None else latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Read no further than the present end of the topics. Raises ConnectionLost and others."""
        self._plan().stop_at_present_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan a micro-batch. Raises SparkDataLost, ConnectionLost and others."""
        tasks = self._plan().planned(StreamOffset.from_json(start), StreamOffset.from_json(end))
        return [TaskPartition(task) for task in tasks]


class TaskWritten(WriterCommitMessage):
    """Message to the driver about the writes of one task."""

    def __init__(self, written: Written) -> None:
        self.written = written


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message.written for message in messages if isinstance(message, TaskWritten)]


class LinnWriter(DataSourceArrowWriter):
    """Writer of a batch job: at its end all of it takes effect, exactly once, or nothing does."""

    def __init__(self, job: WriteJob, sequence: int, identity: str | None) -> None:
        self._job = job
        self._sequence = sequence
        self._identity = identity

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task. Raises LinnError: it may be tried again."""
        return TaskWritten(self._job.write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the output of the tasks. Raises LinnError."""
        commit(_written(messages), self._sequence, self._identity)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the output of the tasks, unless it was committed."""
        abandon(self._job)


class LinnStreamWriter(DataSourceStreamArrowWriter):
    """Writer of a streaming query: at its end all of a micro-batch takes effect, exactly once, or nothing does."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish the rows of a task. Raises LinnError: it may be tried again."""
        return TaskWritten(self._job().write(iterator))

    def _job(self) -> WriteJob:
        """Return the write job of this task's micro-batch, whose number Spark tells each task."""
        context = TaskContext.get()
        assert context is not None, "a task runs in a context"
        query, run = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
        options = self._options
        return WriteJob(
            options.broker, f"spark.{query}", run_number(str(run)), options.timeout_s, options.topic, options.exchange
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch, unless it was committed before. Raises LinnError."""
        commit(_written(messages), batchId + 1)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort what tasks have written of a micro-batch, unless it was committed."""
        abort(_written(messages))
