"""LakeSink: a table in a lake that a pipeline appends to, each micro-batch exactly once; the base class of the formats.

Laws: a table stores, for each query, the number of the last committed micro-batch and the digest of its input. So a
repeated micro-batch adds nothing, and a different micro-batch with the same number is refused. Tasks write the files,
and the driver commits all of them at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from linn.spark_plugin.driver.arrow_tasks import nullable
from linn.spark_plugin.errors import CheckpointMissing, CheckpointOutdated, PipelineInvalid
from linn.spark_plugin.sink.batch_identity import BatchIdentity, identity_of
from linn.spark_plugin.spec import PipelineSpec

T = TypeVar("T")
NEW_CHECKPOINT = "newCheckpoint"
"""Option of the lake formats: begin with a new checkpoint on a table that the pipeline has written to before."""


class LastBatch(NamedTuple):
    """The last micro-batch of a query that was committed to a table."""

    batch_id: int
    input: str


class LakeSink(ABC, Generic[T]):
    """A table of the format's library, `T`, by its name or place."""

    def __init__(self, pipeline: PipelineSpec, place: str) -> None:
        self._place = place
        self._marker = f"linn.pipeline.{pipeline.name}"
        self._partition_by = pipeline.partition_by
        self._options: Mapping[str, str] = {
            name: value for name, value in pipeline.options.items() if name != NEW_CHECKPOINT
        }
        self._takes_new_checkpoint = pipeline.options.get(NEW_CHECKPOINT) == "true"

    def check(self, *, is_new: bool) -> None:
        """Check that the pipeline can append to the table, if it exists. `is_new`: the pipeline has no checkpoint.

        Raises:
            CheckpointMissing: the table has rows of this pipeline, whose checkpoint is gone.
            PipelineInvalid: the table is partitioned in another way, or needs features that the writer lacks.
        """
        table = self._table()
        if table is None:
            return
        if is_new and not self._takes_new_checkpoint and self._is_marked(table):
            raise CheckpointMissing(
                f"{self._place} has rows of this pipeline and its checkpoint is gone: restore the checkpoint, or write "
                f"all that the topic has once more with the option {NEW_CHECKPOINT}=true"
            )
        self._check_table(table)

    def files(self) -> list[str]:
        """List the files of the table as it is now; empty if there is no table.

        Raises PipelineInvalid: rows in the files are deleted.
        """
        table = self._table()
        return [] if table is None else self._files(table)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, inside `foreachBatch`. Raises as `write_once`."""
        self.write_once(batch, identity_of(batch, batch_id))

    def write_once(self, batch: DataFrame, identity: BatchIdentity) -> None:
        """Write a micro-batch, unless it was committed.

        Raises CheckpointOutdated, LakeSchemaMismatch, PipelineInvalid, and errors of the library and Spark.
        """
        schema = nullable(to_arrow_schema(batch.schema, timezone="UTC"))
        table = self._table()
        if table is None:
            unknown = [name for name in self._partition_by if name not in schema.names]
            if unknown:
                raise PipelineInvalid(
                    f"partition_by names the column {unknown[0]}, and the rows have {', '.join(schema.names)}"
                )
            table = self._made(schema)
        if self._is_done(table, identity):
            return
        self._check_schema(table, schema)
        files = self._written(table, batch, schema)
        if files:
            self._commit(table, files, identity)

    def _is_done(self, table: T, identity: BatchIdentity) -> bool:
        """Whether a micro-batch was committed last. Raises CheckpointOutdated: another one has its place."""
        last = self._last(table, identity.query_id)
        if last is None or last.batch_id < identity.batch_id:
            return False
        if last == (identity.batch_id, identity.input):
            return True
        raise CheckpointOutdated(
            f"{self._place} has micro-batch {last.batch_id} of this query, and {identity.batch_id} would be of other "
            "records: the checkpoint is an older copy; nothing was written: restore the newest checkpoint"
        )

    @abstractmethod
    def _table(self) -> T | None:
        """Load the table; None if it does not exist."""

    @abstractmethod
    def _made(self, schema: pa.Schema) -> T:
        """Make the table."""

    @abstractmethod
    def _files(self, table: T) -> list[str]:
        """List the files of the table. Raises PipelineInvalid: they have deleted rows."""

    @abstractmethod
    def _is_marked(self, table: T) -> bool:
        """Whether the pipeline has written to the table."""

    @abstractmethod
    def _last(self, table: T, query_id: str) -> LastBatch | None:
        """Return the last micro-batch of a query that was committed; None if there is none."""

    @abstractmethod
    def _check_table(self, table: T) -> None:
        """Check the features that the table requires of writers. Raises PipelineInvalid."""

    @abstractmethod
    def _check_schema(self, table: T, schema: pa.Schema) -> None:
        """Check that rows fit the table. Raises LakeSchemaMismatch."""

    @abstractmethod
    def _written(self, table: T, batch: DataFrame, schema: pa.Schema) -> list[Any]:
        """Have the tasks write the rows; return the files for the commit."""

    @abstractmethod
    def _commit(self, table: T, files: list[Any], identity: BatchIdentity) -> None:
        """Commit files as this micro-batch, unless another process has committed it meanwhile."""
