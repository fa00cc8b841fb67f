"""Lake: the Parquet files that Spark has written, read without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

LOG = "_spark_metadata"
_COMPACT = ".compact"


class _Entry(msgspec.Struct):
    """Line of Spark's log of files."""

    path: str
    action: str = "add"


_read_entry = msgspec.json.Decoder(_Entry).decode


class Written(NamedTuple):
    """Row of a Parquet file."""

    origin: str
    """Value of the partition, from the file's folder."""
    number: int | None
    """Number of the flight; None where the value did not parse."""


def committed_files(folder: Path) -> list[Path]:
    """List the files that Spark's log names: others belong to attempts that failed, and don't count.

    Raises OSError; ValueError: the log is not one.
    """
    logs = {int(path.name.removesuffix(_COMPACT)): path for path in (folder / LOG).glob("[0-9]*")}
    # A compact log holds everything up to its number.
    compact = max((number for number, path in logs.items() if path.name.endswith(_COMPACT)), default=0)
    found: dict[Path, None] = {}
    for number, path in sorted(logs.items()):
        for line in path.read_text().splitlines()[1:] if number >= compact else ():
            entry = _read_entry(line)
            if entry.action == "add":
                found[Path(unquote(urlsplit(entry.path).path))] = None
    return list(found)


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
