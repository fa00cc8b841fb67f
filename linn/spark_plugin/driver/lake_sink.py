"""LakeSink: a table in a lake that a pipeline appends to, each micro-batch once. The formats say how.

Laws: a table knows the last micro-batch of each query that was committed to it, so that one which is done again adds
nothing. Tasks write the files, and the driver commits them all at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from linn.spark_plugin.driver.arrow_tasks import nullable
from linn.spark_plugin.driver.batch_identity import NEW_CHECKPOINT, BatchIdentity, identity_of
from linn.spark_plugin.errors import CheckpointMissing, PipelineInvalid
from linn.spark_plugin.spec import PipelineSpec

T = TypeVar("T")


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
        """Check that the table, if there is one, is one to append to. `is_new`: the pipeline has no checkpoint.

        Raises:
            CheckpointMissing: it has rows of this pipeline's, whose checkpoint is gone.
            PipelineInvalid: it is partitioned in another way, or asks of a writer what this one does not do.
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
        """List the files of the table as it is now; none without a table.

        Raises PipelineInvalid: rows were deleted in another way than with their files.
        """
        table = self._table()
        return [] if table is None else self._files(table)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch once. Raises LakeSchemaMismatch, PipelineInvalid, and what library and Spark raise."""
        identity = identity_of(batch, batch_id)
        schema = nullable(to_arrow_schema(batch.schema, timezone="UTC"))
        table = self._table()
        if table is None:
            unknown = [name for name in self._partition_by if name not in schema.names]
            if unknown:
                raise PipelineInvalid(
                    f"partition_by names the column {unknown[0]}, and the rows have {', '.join(schema.names)}"
                )
            table = self._made(schema)
        if self._has(table, identity):
            return
        self._check_schema(table, schema)
        files = self._written(table, batch, schema)
        if files:
            self._commit(table, files, identity)

    @abstractmethod
    def _table(self) -> T | None:
        """The table as it is now; None if there is none."""

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
    def _has(self, table: T, identity: BatchIdentity) -> bool:
        """Whether a micro-batch, or a later one of its query, was committed."""

    @abstractmethod
    def _check_table(self, table: T) -> None:
        """Check what the table asks of its writers. Raises PipelineInvalid."""

    @abstractmethod
    def _check_schema(self, table: T, schema: pa.Schema) -> None:
        """Check that rows fit the table. Raises LakeSchemaMismatch."""

    @abstractmethod
    def _written(self, table: T, batch: DataFrame, schema: pa.Schema) -> list[Any]:
        """Have the tasks write the rows; return the files that the commit names."""

    @abstractmethod
    def _commit(self, table: T, files: list[Any], identity: BatchIdentity) -> None:
        """Commit files as this micro-batch, unless another process has committed it meanwhile."""
