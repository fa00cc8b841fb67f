"""Values as JSON of a schema: which of them parse, and the dead letters of those that do not.

Law: a row is malformed only if its value is there and is not one JSON value of the schema. A value that is null or the
literal `null`, and a field that is null or missing, are legitimate nulls.
"""

from __future__ import annotations

from pyspark.errors import ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from linn.spark_plugin.driver.failure import failure_of
from linn.spark_plugin.errors import PipelineInvalid

CORRUPT = "_corrupt_record"
"""Column with the text of a malformed value, where there is no dead-letter topic."""
RECORD_COLUMNS = ("key", "topic", "partition", "offset", "timestamp")
"""Columns of the record that stay beside the parsed fields."""
_PARSED = "__linn_parsed"
_FLAG = "__linn_corrupt"
_STRICT = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _FLAG,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def parsed(frame: DataFrame, schema: str) -> DataFrame:
    """Add the parsed value, for `good_rows` and `dead_letters`. Raises PipelineInvalid: the schema is none."""
    text = f.col("value").cast("string")
    return frame.withColumn(_PARSED, f.from_json(text, _fields(schema).add(_FLAG, StringType()), _STRICT))


def _fields(schema: str) -> StructType:
    try:
        found = StructType.fromDDL(schema)
    except ParseException as error:
        raise PipelineInvalid(f"the schema {schema!r} is wrong: {failure_of(error).error}") from error
    assert isinstance(found, StructType)
    return found


def is_malformed() -> Column:
    """Return the condition under which a row of `parsed` did not parse."""
    text = f.col("value").cast("string")
    # Spark reads the first JSON value and leaves what follows; inside of an array it has to read everything.
    is_one_value = f.coalesce(f.json_array_length(f.concat(f.lit("["), text, f.lit("]"))) == 1, f.lit(False))
    fits = f.col(f"{_PARSED}.{_FLAG}").isNull() | (f.trim(text) == "null")
    return f.col("value").isNotNull() & ~(f.is_valid_utf8(text) & is_one_value & fits)


def good_rows(frame: DataFrame, *, keeps_malformed: bool) -> DataFrame:
    """Return the parsed fields beside the record's columns.

    A field goes before a column of the record's with the same name, which is then called `record_NAME`.

    Args:
        frame: made by `parsed`.
        keeps_malformed: keep malformed rows too, with their text in the column `_corrupt_record`; else leave them out.
    """
    fields = [name for name in frame.select(f"{_PARSED}.*").columns if name != _FLAG]
    lowered = {name.lower() for name in fields}
    columns = [f.col(name).alias(f"record_{name}" if name in lowered else name) for name in RECORD_COLUMNS]
    columns += [f.col(f"{_PARSED}.`{name}`") for name in fields]
    if keeps_malformed:
        return frame.select(*columns, f.when(is_malformed(), f.col("value").cast("string")).alias(CORRUPT))
    return frame.where(~is_malformed()).select(*columns)


def dead_letters(frame: DataFrame, pipeline: str, schema: str) -> DataFrame:
    """Return the malformed rows as records for the dead-letter topic: as they came, and why and whence in headers.

    Args:
        frame: made by `parsed`, with the column `headers`.
        pipeline: the name of the pipeline.
        schema: the schema that they do not fit.
    """
    told = {
        "linn.dead.reason": f.lit("malformed"),
        "linn.dead.error": f.lit(f"the value is not JSON of the schema {schema}"),
        "linn.dead.pipeline": f.lit(pipeline),
        "linn.dead.topic": f.col("topic"),
        "linn.dead.partition": f.col("partition").cast("string"),
        "linn.dead.offset": f.col("offset").cast("string"),
    }
    added = [f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in told.items()]
    headers = f.concat(f.coalesce(f.col("headers"), f.expr("array()")), f.array(*added))
    return frame.where(is_malformed()).select("key", "value", headers.alias("headers"), "labels", "routing_key")
