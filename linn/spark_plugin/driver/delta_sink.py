"""Micro-batches into a Delta table by deltalake, without a JAR.

Laws: tasks write Parquet files into the table's folder and say so to the driver, which commits them all at once. The
commit carries Delta's transaction (query id, batch id); a micro-batch whose transaction the table has already adds
nothing, whoever commits it and whenever. Files that no commit names are no part of the table; a vacuum removes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from linn.spark_plugin.driver.arrow_tasks import nullable
from linn.spark_plugin.driver.batch_identity import NEW_CHECKPOINT, BatchIdentity, identity_of
from linn.spark_plugin.driver.delta_files import written_files
from linn.spark_plugin.errors import CheckpointMissing, LakeSchemaMismatch, PipelineInvalid
from linn.spark_plugin.spec import PipelineSpec

_WRITER_FEATURES = frozenset(
    {"appendOnly", "invariants", "timestampNtz", "deletionVectors", "changeDataFeed", "v2Checkpoint"}
)
"""Features of a table that ask nothing of somebody who appends."""
_WRITER_VERSION_PLAIN, _WRITER_VERSION_FEATURES = 2, 7


class DeltaSink:
    """A Delta table that a pipeline appends to."""

    def __init__(self, pipeline: PipelineSpec) -> None:
        assert pipeline.path is not None
        self._path = pipeline.path
        self._marker = f"linn.pipeline.{pipeline.name}"
        self._partition_by = pipeline.partition_by
        self._storage = {name: value for name, value in pipeline.options.items() if name != NEW_CHECKPOINT}
        self._takes_new_checkpoint = pipeline.options.get(NEW_CHECKPOINT) == "true"

    def check(self, *, is_new: bool) -> None:
        """Check that the table is one to append to.

        Raises:
            CheckpointMissing: it has rows of this pipeline's, whose checkpoint is gone.
            PipelineInvalid: it asks of a writer what this one does not do.
        """
        table = self._table()
        if table is None:
            return
        if is_new and not self._takes_new_checkpoint and table.transaction_version(self._marker) is not None:
            raise CheckpointMissing(
                f"{self._path} has rows of this pipeline and its checkpoint is gone: restore the checkpoint, or write "
                f"all that the topic has once more with the option {NEW_CHECKPOINT}=true"
            )
        _check_protocol(table)
        if tuple(table.metadata().partition_columns) != self._partition_by:
            named = ", ".join(table.metadata().partition_columns) or "nothing"
            raise PipelineInvalid(f"{self._path} is partitioned by {named}: say so in partition_by")

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch once. Raises LakeSchemaMismatch, and what deltalake and Spark raise."""
        identity = identity_of(batch, batch_id)
        schema = nullable(to_arrow_schema(batch.schema, timezone="UTC"))
        table = self._table()
        if table is None:
            table = self._made(schema)
        if _has(table, identity):
            return
        self._check_schema(table, schema)
        write = partial(written_files, path=self._path, storage=self._storage, partition_by=self._partition_by)
        found = [json.loads(row.file) for row in batch.mapInArrow(_rows(write), "file string").collect()]
        if found:
            self._commit(table, found, identity)

    def _table(self) -> DeltaTable | None:
        if not DeltaTable.is_deltatable(self._path, self._storage):
            return None
        return DeltaTable(self._path, storage_options=self._storage)

    def _made(self, schema: pa.Schema) -> DeltaTable:
        return DeltaTable.create(
            self._path,
            Schema.from_arrow(schema),
            mode="ignore",
            partition_by=list(self._partition_by),
            storage_options=self._storage,
        )

    def _check_schema(self, table: DeltaTable, schema: pa.Schema) -> None:
        own = {field.name: str(field.type) for field in table.schema().fields}
        rows = {field.name: str(field.type) for field in Schema.from_arrow(schema).fields}
        if own != rows:
            names = sorted(name for name in own.keys() | rows.keys() if own.get(name) != rows.get(name))
            raise LakeSchemaMismatch(
                f"{self._path} and the pipeline differ in the columns {', '.join(names)}: alter one of them"
            )

    def _commit(self, table: DeltaTable, found: list[dict[str, Any]], identity: BatchIdentity) -> None:
        # Both conflict with a concurrent commit of the same id, so that a zombie of this driver can't add them too.
        once = [Transaction(identity.query_id, identity.batch_id), Transaction(self._marker, identity.batch_id)]
        told = {"linn.query": identity.query_id, "linn.batch": str(identity.batch_id)}
        actions = [
            AddAction(each["path"], each["size"], each["partition_values"], each["time_ms"], True, each["stats"])
            for each in found
        ]
        try:
            table.create_write_transaction(
                list(actions),
                "append",
                table.schema(),
                list(self._partition_by),
                commit_properties=CommitProperties(custom_metadata=told, app_transactions=once),
            )
        except CommitFailedError:
            now = self._table()
            if now is None or not _has(now, identity):
                raise


def _has(table: DeltaTable, identity: BatchIdentity) -> bool:
    version = table.transaction_version(identity.query_id)
    return version is not None and version >= identity.batch_id


def _rows(write: Any) -> Any:
    def write_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = write(batches)
        if found:
            yield pa.RecordBatch.from_pydict({"file": [json.dumps(each) for each in found]})

    return write_batches


def _check_protocol(table: DeltaTable) -> None:
    protocol = table.protocol()
    configuration = table.metadata().configuration
    features = set(protocol.writer_features or ())
    asked = sorted(features - _WRITER_FEATURES)
    asked += sorted(name for name in configuration if name.startswith("delta.constraints."))
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        asked.append("column mapping")
    is_known = protocol.min_writer_version <= _WRITER_VERSION_PLAIN or (
        protocol.min_writer_version == _WRITER_VERSION_FEATURES
    )
    if not is_known and not asked:
        asked = [f"writer version {protocol.min_writer_version}"]
    if any("delta.invariants" in (field.metadata or {}) for field in table.schema().fields):
        asked.append("invariants")
    if asked:
        raise PipelineInvalid(f"the Delta table asks of its writers what linn does not do: {', '.join(asked)}")
