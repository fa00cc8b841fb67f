"""Lake: the Parquet files that Spark has written, read without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from linn.spark_plugin.spark_metadata import LOG, committed_urls


class Written(NamedTuple):
    """Row of a Parquet file."""

    origin: str
    """Value of the partition, from the file's folder."""
    number: int | None
    """Number of the flight; None where the value did not parse."""


def committed_files(folder: Path) -> list[Path]:
    """List the files that Spark's log names. Other files belong to failed attempts, and don't count.

    Raises OSError; ValueError: the log is malformed.
    """
    log = folder / LOG
    urls = committed_urls((path.name for path in log.glob("[0-9]*")), lambda name: (log / name).read_text())
    return [Path(unquote(urlsplit(url).path)) for url in urls]


def read_lake(folder: Path) -> list[Written]:
    """Read every row that belongs to the output. Raises OSError, ValueError: a file is missing or invalid."""
    from pyarrow.parquet import ParquetFile

    rows: list[Written] = []
    for path in committed_files(folder):
        origin = path.parent.name.removeprefix("origin=")
        with ParquetFile(path) as file:
            numbers = file.read(columns=["number"])["number"].to_pylist()
        rows += [Written(origin, number) for number in numbers]
    return rows
