"""Values as JSON of a schema: parsed rows, and dead letters for values that do not parse.

Law: a row is malformed only if its value is present and is not one JSON value of the schema. A value that is null or
the literal `null`, and a field that is null or missing, are legitimate nulls.
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
_JSON_SPACE = " \t\n\r"
_STRICT = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _FLAG,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


def text_of(column: str) -> Column:
    """Return a column of bytes as text, with U+FFFD in place of invalid UTF-8.

    Spark's cast keeps invalid bytes, and other readers refuse a whole file for them.
    """
    return f.make_valid_utf8(f.col(column).cast("string"))


def parsed(frame: DataFrame, schema: str) -> DataFrame:
    """Add the parsed value, for `good_rows` and `dead_letters`. Raises PipelineInvalid: the schema is invalid."""
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
    fits = f.col(f"{_PARSED}.{_FLAG}").isNull() | (f.trim(text, f.lit(_JSON_SPACE)) == "null")
    return f.col("value").isNotNull() & ~(f.is_valid_utf8(text) & _is_one_value(text) & fits)


def _is_one_value(text: Column) -> Column:
    """Return the condition under which a text is exactly one JSON value.

    `from_json` reads the first value and ignores the rest. So the text is put into an array, followed by one more
    element: if the text itself closes the array, as in `1] junk`, Spark does not read that element, and the array is no
    longer with it than without.
    """

    def length(end: str) -> Column:
        return f.json_array_length(f.concat(f.lit("["), text, f.lit(end)))

    return f.coalesce((length("]") == 1) & (length(",0]") == 2), f.lit(False))


def good_rows(frame: DataFrame, *, keeps_malformed: bool) -> DataFrame:
    """Return the parsed fields beside the record's columns.

    A field has precedence over the record's column of the same name, which is then called `record_NAME`.

    Args:
        frame: made by `parsed`.
        keeps_malformed: keep malformed rows too, with their text in the column `_corrupt_record`; else leave them out.
    """
    fields = [name for name in frame.select(f"{_PARSED}.*").columns if name != _FLAG]
    lowered = {name.lower() for name in fields}
    columns = [f.col(name).alias(f"record_{name}" if name in lowered else name) for name in RECORD_COLUMNS]
    columns += [f.col(f"{_PARSED}.`{name}`") for name in fields]
    if keeps_malformed:
        return frame.select(*columns, f.when(is_malformed(), text_of("value")).alias(CORRUPT))
    return frame.where(~is_malformed()).select(*columns)


def dead_letters(frame: DataFrame, pipeline: str, schema: str) -> DataFrame:
    """Return the malformed rows as records for the dead-letter topic: unchanged, with reason and source in headers.

    Args:
        frame: made by `parsed`, with the column `headers`.
        pipeline: the name of the pipeline.
        schema: the schema that the values do not fit.
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
