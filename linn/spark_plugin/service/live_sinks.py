"""Limits of sinks that requests give to topics: such a pipeline has the rights of the broker's user.

Laws: everything is refused that is not known to be harmless, such as characters to which readers of paths or SQL give
different meanings. None of this binds the configuration file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from linn.api import Secret, did_you_mean
from linn.core.config.service_tables import FILE_ONLY
from linn.spark_plugin.service.settings import SinkSettings, SparkSettings
from linn.spark_plugin.spec import CONNECTION

SOURCE_OPTIONS = frozenset(
    (
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsets",
        "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "failOnDataLoss",
        "minPartitions",
        "maxRecordsPerPartition",
        "includeHeaders",
        "includeId",
        "where",
    )
)
"""Options of the source, without the broker's address and the choice of topics."""
_FILES = ("compression", "maxRecordsPerFile")
OPTIONS = {
    "parquet": (*_FILES, "parquet.block.size", "parquet.page.size"),
    "json": (*_FILES, "dateFormat", "timestampFormat", "timestampNTZFormat", "ignoreNullFields", "lineSep"),
    "delta": ("newCheckpoint",),
    "iceberg": ("newCheckpoint", "table"),
    "jdbc": ("dbtable", "batchsize"),
    "linn": ("topic", "exchange"),
    "console": ("numRows", "truncate"),
}
"""Options by format. Others name classes, hosts, files and statements: they come from `[spark.connections]`."""
_TABLE = re.compile(r"\w+(\.\w+){0,3}")
"""A table's name: Spark puts it into statements as it is."""


def live_problem(settings: SparkSettings, sink: SinkSettings) -> str | None:
    """Return why a request may not give a topic this sink, worded as the end of a line; None if it may."""
    if not settings.live:
        return f"{FILE_ONLY}, which opens it to requests with live = true in [spark]"
    for key, place in (("path", sink.path), ("checkpoint", sink.checkpoint)):
        if place is not None and (problem := _place_problem(place, settings.paths)) is not None:
            return f"{key} {problem}"
    if sink.transform is not None and sink.transform.partition(":")[0] not in settings.modules:
        return f"transform is of a module that is not among the modules of [spark]: {sink.transform[:60]!r}"
    if sink.sql is not None and (problem := query_problem(sink.sql)) is not None:
        return f"sql {problem}"
    return _options_problem(settings, sink)


def _options_problem(settings: SparkSettings, sink: SinkSettings) -> str | None:
    for name in sink.source_options:
        if name not in SOURCE_OPTIONS:
            return f"source_options has {name[:60]!r}, which only the file may have{did_you_mean(name, SOURCE_OPTIONS)}"
    known = (CONNECTION, *OPTIONS[sink.format])
    for name in sink.options:
        if name not in known:
            return f"options has {name[:60]!r}, which only the file may have, or its [spark.connections]"
    if sink.format == "jdbc" and CONNECTION not in sink.options:
        return "needs options.connection, the name of one of [spark.connections]"
    if not all(_TABLE.fullmatch(str(sink.options[key])) for key in ("dbtable", "table") if key in sink.options):
        return "names a table with other characters than letters, digits, underscores and dots"
    return connection_problem(settings, sink)


def connection_problem(settings: SparkSettings, sink: SinkSettings) -> str | None:
    """Return why a sink can't have the connection that it names; None if it can, or names none."""
    name = sink.options.get(CONNECTION)
    if name is None:
        return None
    if isinstance(name, Secret):
        return f"{CONNECTION} is a name, and no secret"
    if name not in settings.connections:
        return f'there is no connection "{name[:80]}" in [spark]'  # A request is told of no other.
    if sink.format == "jdbc" and not {"url"} & (settings.connections[name].keys() | sink.options.keys()):
        return f'the connection "{name}" has no url'
    return None


# --- places ---


class _Place(NamedTuple):
    scheme: str
    authority: str
    is_absolute: bool
    parts: tuple[str, ...]

    def is_below(self, other: _Place) -> bool:
        """Whether it is in a folder of `other`'s file system, at any depth."""
        count = len(other.parts)
        return self[:3] == other[:3] and len(self.parts) > count and self.parts[:count] == other.parts


_PLACE = re.compile(r"(?:([a-z][a-z0-9+.-]*):)?(?://([^/]*))?([^:]*)")
_HARMLESS = re.compile(r"[\w./:@=+, -]*")
"""Without backslashes, percent signs, `?` and `#`, which URLs give a meaning, and the wildcards of file systems."""


def is_plain(place: str) -> bool:
    """Whether a folder or URL has one meaning, so that others can be compared with it."""
    return _parsed(place) is not None


def _place_problem(place: str, allowed: Iterable[str]) -> str | None:
    found = _parsed(place)
    if found is None:
        return f"has a character or a part that paths of live sinks don't have: {place[:80]!r}"
    for each in allowed:
        above = _parsed(each)
        if above is not None and found.is_below(above):
            return None
    return f"is not below one of the paths of [spark]: {place[:80]!r}"


def _parsed(text: str) -> _Place | None:
    """Parse a folder or URL; None if file systems may read it in different ways."""
    match = _PLACE.fullmatch(text)
    if match is None or not _HARMLESS.fullmatch(text):
        return None
    scheme, authority, path = match[1] or "", match[2] or "", match[3]
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts or any(part != part.strip() for part in parts):
        return None
    return _Place(scheme, authority, path.startswith("/"), parts)


# --- queries ---

_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\w+|\s+|--|/\*|.""", re.DOTALL)
_STATEMENTS = frozenset(("INSERT", "MERGE", "UPDATE", "DELETE"))
"""Words of statements that may follow WITH."""
_CALLS = ("REFLECT", "JAVA_METHOD")
"""Parts of the names of functions that call any method of Java."""


def query_problem(sql: str) -> str | None:
    """Return why a text is not one query that only computes, worded as the end of a line; None if it is.

    Spark replaces `${env:NAME}` before it parses, even in literals. Statements may hide behind WITH, programs behind
    TRANSFORM ... USING, any method of Java behind functions, and names of all of them in IDENTIFIER(...). That a query
    reads files (csv.`/etc/passwd`) is a setting of Spark, which drivers turn off where `live` is true.
    """
    if "\\" in sql or "${" in sql:
        return r"has a \ or ${ in it"
    words = [token for token in _TOKEN.findall(sql) if not token.isspace()]
    if not words or words[0].upper() not in ("SELECT", "WITH"):
        return "does not begin with SELECT or WITH"
    for token, following in zip(words, [*words[1:], ""], strict=True):
        word, is_literal = token.upper(), token[0] in "'\"" and len(token) > 1
        if is_literal:
            continue
        if token in ("'", '"', "`", ";", "--", "/*") or (token[0] != "`" and not token.isascii()):
            return f"has {token!r} outside of quotes: it must be one statement without comments"
        if word in _STATEMENTS or word == "IDENTIFIER" or any(part in word for part in _CALLS):
            return f"has {token!r}, which only the file may have"
        if word == "USING" and following != "(":
            return "has USING without columns in parentheses"
    return None
