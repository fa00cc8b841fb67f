"""LinnDataSource: topics as a PySpark data source, `format("linn")`, for batch reads.

Law: the objects here are pickled and sent to workers, so that none of them has a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
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

from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.source.arrow_columns import arrow_schema
from linn.spark_plugin.source.options import ReadOptions, checked_options
from linn.spark_plugin.source.planning import planned
from linn.spark_plugin.source.ranges import OffsetRange
from linn.spark_plugin.source.reading import read_range

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
        options = checked_options(self.options)
        return columns(includes_headers=options.includes_headers, includes_id=options.includes_id)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader. Raises SparkOptionInvalid."""
        return LinnReader(checked_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Refuse, with SparkOptionInvalid."""
        raise SparkOptionInvalid("linn's Spark source reads batches only yet: use spark.read, not spark.readStream")

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Refuse, with SparkOptionInvalid."""
        raise SparkOptionInvalid("linn can't be written from Spark yet: publish with linn.sync in foreachPartition")

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Refuse, with SparkOptionInvalid."""
        return self.writer(schema, overwrite)


class RangePartition(InputPartition):
    """The range of offsets that one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)


class LinnReader(DataSourceReader):
    """Reader of a batch job: plans ranges in the driver, and reads each in a task."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises SparkOptionInvalid: the user's schema is another one."""
        includes = {"includes_headers": options.includes_headers, "includes_id": options.includes_id}
        declared = columns(**includes).simpleString()
        if schema.simpleString() != declared:
            raise SparkOptionInvalid(f"the columns of linn's Spark source are {declared}")
        self._options = options
        self._includes = includes

    def partitions(self) -> Sequence[InputPartition]:
        """Plan. Raises SparkOptionInvalid, SparkDataLost, ConnectFailed and others."""
        return [RangePartition(wanted) for wanted in planned(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield a range as Arrow batches. Raises SparkDataLost, ConnectionLost, RequestTimeout."""
        wanted = partition.value
        if wanted is None:  # Spark makes one empty task where a job has none.
            return iter(())
        schema = arrow_schema(**self._includes)
        return read_range(self._options.url, wanted, schema, fails_on_data_loss=self._options.fails_on_data_loss)
