"""Micro-batches into an Iceberg table by pyiceberg, without a JAR.

Laws: tasks write data files and send their descriptions to the driver, which commits them as one snapshot. The same
commit sets the query's property of the table to the batch id and the digest of the micro-batch's input, so that a
committed micro-batch adds nothing when it is replayed, even after its snapshot has expired. Each attempt to commit
checks that property first; pyiceberg's own retries are off, since they would not check it.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

# Private: pyiceberg's public `append` commits as well, and in the driver alone; none checks a schema without writing.
from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from linn.spark_plugin.driver.arrow_tasks import freeze_once
from linn.spark_plugin.driver.lake_sink import NEW_CHECKPOINT, LakeSink, LastBatch
from linn.spark_plugin.errors import LakeSchemaMismatch, PipelineInvalid
from linn.spark_plugin.sink.batch_identity import BatchIdentity
from linn.spark_plugin.spec import PipelineSpec

CATALOG = "catalog."
"""Prefix of the options that are properties of the catalog."""
_KNOWN = ("catalog", "table")
_COMMITS_MAX = 10
_FILE_BYTES_MAX = 128 << 20


class IcebergSink(LakeSink[Table]):
    """An Iceberg table that a pipeline appends to."""

    def __init__(self, pipeline: PipelineSpec) -> None:
        """Raises PipelineInvalid: an option is unknown or missing."""
        super().__init__(pipeline, pipeline.options.get("table", ""))
        for name in self._options:
            if name not in _KNOWN and not name.startswith(CATALOG):
                known = ", ".join((*_KNOWN, NEW_CHECKPOINT))
                raise PipelineInvalid(f"format iceberg has no option {name!r}: it has {known}, {CATALOG}*")
        if "." not in self._place:
            raise PipelineInvalid("format iceberg needs the option table, such as lake.flights")
        self._catalog: Catalog | None = None

    def _table(self) -> Table | None:
        if self._catalog is None:
            properties = {
                name.removeprefix(CATALOG): v for name, v in self._options.items() if name.startswith(CATALOG)
            }
            self._catalog = load_catalog(self._options.get("catalog", "default"), **properties)
        try:
            return self._catalog.load_table(self._place)
        except NoSuchTableError:
            return None

    def _made(self, schema: pa.Schema) -> Table:
        assert self._catalog is not None
        self._catalog.create_namespace_if_not_exists(self._place.rpartition(".")[0])
        with self._catalog.create_table_transaction(self._place, schema) as transaction:
            if self._partition_by:
                with transaction.update_spec() as spec:
                    for name in self._partition_by:
                        spec.add_identity(name)
        return self._catalog.load_table(self._place)

    def _files(self, table: Table) -> list[str]:
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise PipelineInvalid(f"{self._place} has deleted rows in its files: read it with a library of its format")
        return [task.file.file_path for task in tasks]

    def _is_marked(self, table: Table) -> bool:
        return self._marker in table.properties

    def _last(self, table: Table, query_id: str) -> LastBatch | None:
        found = table.properties.get(_property(query_id))
        if found is None:
            return None
        batch_id, _, input_read = found.partition(" ")
        return LastBatch(int(batch_id), input_read)

    def _check_table(self, table: Table) -> None:
        named = tuple(table.schema().find_column_name(field.source_id) for field in table.spec().fields)
        if self._partition_by and named != self._partition_by:
            raise PipelineInvalid(f"{self._place} is partitioned by {', '.join(map(str, named)) or 'nothing'}")

    def _check_schema(self, table: Table, schema: pa.Schema) -> None:
        try:
            _check_pyarrow_schema_compatible(table.schema(), provided_schema=schema)
        except ValueError as error:
            lines = " ".join(str(error).split())
            raise LakeSchemaMismatch(f"{self._place} and the pipeline differ: {lines[:300]}") from error

    def _written(self, table: Table, batch: DataFrame, schema: pa.Schema) -> list[DataFile]:
        write = _task(pickle.dumps((table.metadata, table.io)), schema)
        rows = batch.mapInArrow(write, "files binary").collect()
        return [file for row in rows for file in pickle.loads(row.files)]  # noqa: S301  From this job's own tasks.

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
                if self._is_done(found, identity):
                    return
                table = found


def _property(query_id: str) -> str:
    return f"linn.query.{query_id}"


def _append(table: Table, files: list[DataFile], identity: BatchIdentity, marker: str) -> None:
    # Only in this copy: with it, pyiceberg raises if another commit came first, instead of building on that commit.
    table.metadata.properties["commit.retry.num-retries"] = "0"
    told = {"linn.query": identity.query_id, "linn.batch": str(identity.batch_id)}
    with table.transaction() as transaction:
        last = f"{identity.batch_id} {identity.input}"
        transaction.set_properties({_property(identity.query_id): last, marker: identity.query_id})
        with transaction.update_snapshot(told).fast_append() as snapshot:
            for file in files:
                snapshot.append_data_file(file)


def _task(place: bytes, schema: pa.Schema) -> Any:
    """Return the function of a task: it writes its rows as data files of at most 128 MiB in Arrow."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_once()
        metadata, io = pickle.loads(place)  # noqa: S301  From this job's own driver.
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
