"""Micro-batches into an Iceberg table by pyiceberg, without a JAR.

Laws: tasks write data files and hand the driver their descriptions, which it commits as one snapshot. The same commit
sets the table's property of the query to the batch id, so that a micro-batch that is committed adds nothing when it is
replayed, also after its snapshot has expired. Each attempt to commit looks at that property first, and none of
pyiceberg's own attempts is repeated, since those would not look.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from linn.spark_plugin.driver.arrow_tasks import freeze_once, nullable
from linn.spark_plugin.driver.batch_identity import NEW_CHECKPOINT, BatchIdentity, identity_of
from linn.spark_plugin.errors import CheckpointMissing, LakeSchemaMismatch, PipelineInvalid
from linn.spark_plugin.spec import PipelineSpec

CATALOG = "catalog."
"""Beginning of the options that are properties of the catalog."""
_KNOWN = ("catalog", "table", NEW_CHECKPOINT)
_COMMITS_MAX = 10
_FILE_BYTES_MAX = 128 << 20


class IcebergSink:
    """An Iceberg table that a pipeline appends to."""

    def __init__(self, pipeline: PipelineSpec) -> None:
        """Raises PipelineInvalid: an option is unknown or missing."""
        options = pipeline.options
        for name in options:
            if name not in _KNOWN and not name.startswith(CATALOG):
                raise PipelineInvalid(f"format iceberg has no option {name!r}: it has {', '.join(_KNOWN)}, {CATALOG}*")
        if "." not in options.get("table", ""):
            raise PipelineInvalid("format iceberg needs the option table, such as lake.flights")
        self._name = options["table"]
        self._catalog_name = options.get("catalog", "default")
        self._properties = {name.removeprefix(CATALOG): v for name, v in options.items() if name.startswith(CATALOG)}
        self._partition_by = pipeline.partition_by
        self._marker = f"linn.pipeline.{pipeline.name}"
        self._takes_new_checkpoint = options.get(NEW_CHECKPOINT) == "true"
        self._catalog: Catalog | None = None

    def check(self, *, is_new: bool) -> None:
        """Check that the table is one to append to.

        Raises:
            CheckpointMissing: it has rows of this pipeline's, whose checkpoint is gone.
            PipelineInvalid: it is partitioned in another way.
        """
        table = self._table()
        if table is None:
            return
        if is_new and not self._takes_new_checkpoint and self._marker in table.properties:
            raise CheckpointMissing(
                f"{self._name} has rows of this pipeline and its checkpoint is gone: restore the checkpoint, or write "
                f"all that the topic has once more with the option {NEW_CHECKPOINT}=true"
            )
        named = tuple(table.schema().find_column_name(field.source_id) for field in table.spec().fields)
        if self._partition_by and named != self._partition_by:
            raise PipelineInvalid(f"{self._name} is partitioned by {', '.join(map(str, named)) or 'nothing'}")

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch once. Raises LakeSchemaMismatch, and what pyiceberg and Spark raise."""
        identity = identity_of(batch, batch_id)
        schema = nullable(to_arrow_schema(batch.schema, timezone="UTC"))
        table = self._table()
        if table is None:
            table = self._made(schema)
        if _has(table, identity):
            return
        try:
            _check_pyarrow_schema_compatible(table.schema(), provided_schema=schema)
        except ValueError as error:
            lines = " ".join(str(error).split())
            raise LakeSchemaMismatch(f"{self._name} and the pipeline differ: {lines[:300]}") from error
        write = _task(pickle.dumps((table.metadata, table.io)), schema)
        rows = batch.mapInArrow(write, "files binary").collect()
        files = [file for row in rows for file in pickle.loads(row.files)]
        if files:
            self._commit(table, files, identity)

    def _table(self) -> Table | None:
        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **self._properties)
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _made(self, schema: pa.Schema) -> Table:
        assert self._catalog is not None
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with self._catalog.create_table_transaction(self._name, schema) as transaction:
            if self._partition_by:
                with transaction.update_spec() as spec:
                    for name in self._partition_by:
                        spec.add_identity(name)
        return self._catalog.load_table(self._name)

    def _commit(self, table: Table, files: list[DataFile], identity: BatchIdentity) -> None:
        for attempt in range(_COMMITS_MAX):
            try:
                _append(table, files, identity, self._marker)
                return
            except CommitFailedException:
                if attempt == _COMMITS_MAX - 1:
                    raise
                found = self._table()
                assert found is not None, "the table was there"
                if _has(found, identity):
                    return
                table = found


def _property(query_id: str) -> str:
    return f"linn.query.{query_id}"


def _has(table: Table, identity: BatchIdentity) -> bool:
    return int(table.properties.get(_property(identity.query_id), -1)) >= identity.batch_id


def _append(table: Table, files: list[DataFile], identity: BatchIdentity, marker: str) -> None:
    # This copy alone: with it, pyiceberg raises where another commit came first, and does not go on from that one.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    told = {"linn.query": identity.query_id, "linn.batch": str(identity.batch_id)}
    with table.transaction() as transaction:
        transaction.set_properties({_property(identity.query_id): str(identity.batch_id), marker: identity.query_id})
        with transaction.update_snapshot(told).fast_append() as snapshot:
            for file in files:
                snapshot.append_data_file(file)


def _task(place: bytes, schema: pa.Schema) -> Any:
    """Return the function of a task: it writes its rows as data files of at most 128 MiB of Arrow's."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_once()
        metadata, io = pickle.loads(place)
        for table in tables(batches, schema):
            files = list(_dataframe_to_data_files(table_metadata=metadata, df=table, io=io))
            yield pa.RecordBatch.from_pydict({"files": [pickle.dumps(files)]})

    return write


def tables(batches: Iterable[pa.RecordBatch], schema: pa.Schema, bytes_max: int = _FILE_BYTES_MAX) -> Iterator[Any]:
    """Join batches to tables of about `bytes_max` bytes; batches without rows are left out."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(each.nbytes for each in held) >= bytes_max:
            yield pa.Table.from_batches(held).cast(schema)
            held = []
    if held:
        yield pa.Table.from_batches(held).cast(schema)
