"""Micro-batches into a Delta table by deltalake, without a JAR.

Laws: tasks write Parquet files into the table's folder and report them to the driver, which commits all of them at
once. The commit carries Delta's transaction (query id, batch id), and another one whose version is a digest of the
micro-batch's input; a micro-batch whose transactions the table has already adds nothing, whichever process commits it.
Files that no commit names are not part of the table; a vacuum removes them.
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

from linn.spark_plugin.driver.delta_files import written_files
from linn.spark_plugin.driver.lake_sink import LakeSink, LastBatch
from linn.spark_plugin.errors import LakeSchemaMismatch, PipelineInvalid
from linn.spark_plugin.sink.batch_identity import BatchIdentity
from linn.spark_plugin.spec import PipelineSpec

_WRITER_FEATURES = frozenset(
    {"appendOnly", "invariants", "timestampNtz", "deletionVectors", "changeDataFeed", "v2Checkpoint"}
)
"""Features of a table that put no demands on appends."""
_WRITER_VERSION_PLAIN, _WRITER_VERSION_FEATURES = 2, 7


class DeltaSink(LakeSink[DeltaTable]):
    """A Delta table that a pipeline appends to."""

    def __init__(self, pipeline: PipelineSpec) -> None:
        assert pipeline.path is not None
        super().__init__(pipeline, pipeline.path)

    def _table(self) -> DeltaTable | None:
        if not DeltaTable.is_deltatable(self._place, dict(self._options)):
            return None
        return DeltaTable(self._place, storage_options=dict(self._options))

    def _made(self, schema: pa.Schema) -> DeltaTable:
        return DeltaTable.create(
            self._place,
            Schema.from_arrow(schema),
            mode="ignore",
            partition_by=list(self._partition_by),
            storage_options=dict(self._options),
        )

    def _files(self, table: DeltaTable) -> list[str]:
        if "deletionVectors" in (table.protocol().reader_features or ()):
            raise PipelineInvalid(f"{self._place} may have deletion vectors: read it with a library of its format")
        return list(table.file_uris())

    def _is_marked(self, table: DeltaTable) -> bool:
        return table.transaction_version(self._marker) is not None

    def _last(self, table: DeltaTable, query_id: str) -> LastBatch | None:
        batch_id = table.transaction_version(query_id)
        if batch_id is None:
            return None
        return LastBatch(batch_id, f"{table.transaction_version(_input_of(query_id)) or 0:015x}")

    def _check_table(self, table: DeltaTable) -> None:
        _check_protocol(table)
        if tuple(table.metadata().partition_columns) != self._partition_by:
            named = ", ".join(table.metadata().partition_columns) or "nothing"
            raise PipelineInvalid(f"{self._place} is partitioned by {named}: say so in partition_by")

    def _check_schema(self, table: DeltaTable, schema: pa.Schema) -> None:
        own = {field.name: str(field.type) for field in table.schema().fields}
        rows = {field.name: str(field.type) for field in Schema.from_arrow(schema).fields}
        if own != rows:
            names = sorted(name for name in own.keys() | rows.keys() if own.get(name) != rows.get(name))
            raise LakeSchemaMismatch(
                f"{self._place} and the pipeline differ in the columns {', '.join(names)}: alter one of them"
            )

    def _written(self, table: DeltaTable, batch: DataFrame, schema: pa.Schema) -> list[Any]:
        write = partial(written_files, path=self._place, storage=self._options, partition_by=self._partition_by)
        return [json.loads(row.file) for row in batch.mapInArrow(_rows(write), "file string").collect()]

    def _commit(self, table: DeltaTable, files: list[Any], identity: BatchIdentity) -> None:
        # They conflict with a concurrent commit of the same id, so that a zombie of this driver can't add them too.
        versions = {identity.query_id: identity.batch_id, self._marker: identity.batch_id}
        versions[_input_of(identity.query_id)] = int(identity.input, 16)
        once = [Transaction(name, version) for name, version in versions.items()]
        told = {"linn.query": identity.query_id, "linn.batch": str(identity.batch_id)}
        actions = [
            AddAction(file["path"], file["size"], file["partition_values"], file["time_ms"], True, file["stats"])
            for file in files
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
            if now is None or not self._is_done(now, identity):
                raise


def _input_of(query_id: str) -> str:
    """Return the id of the transaction whose version is the digest of the input of a query's last micro-batch."""
    return f"linn.input.{query_id}"


def _rows(write: Any) -> Any:
    def write_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = write(batches)
        if found:
            yield pa.RecordBatch.from_pydict({"file": [json.dumps(file) for file in found]})

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
