"""Failures: an exception of Spark's as one line of text, its class, and whether a restart can help.

Law: of an error that crossed from a worker to the JVM and back only the text is left, so errors of linn are recognised
by the code at the end of the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from linn.core.errors.tree import LinnError

FATAL_CODES = frozenset(
    {
        "auth.forbidden",
        "spark.checkpoint_missing",
        "spark.checkpoint_outdated",
        "spark.data_lost",
        "spark.option_invalid",
        "spark.pipeline_invalid",
        "spark.schema_mismatch",
        "topic.unknown",
    }
)
FATAL_CLASSES = ("AnalysisException", "ParseException")
"""Spark's exceptions about the query itself, which every run would raise."""
FATAL_CONDITIONS = (
    "DATATYPE_MISMATCH",
    "INVALID_SCHEMA",
    "PARSE_SYNTAX_ERROR",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STREAMING_OUTPUT_MODE",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "TABLE_OR_VIEW_NOT_FOUND",
    "UNRESOLVED_",
    "UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE",
)
"""Prefixes of Spark's error conditions that no restart mends."""
_LINE_CHARACTERS_MAX = 500
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR")
"""Conditions that wrap an error and name only where it passed through."""
_LINN = re.compile(r"^(?P<text>[^\n]*?) \[(?P<code>[a-z]+\.[a-z_]+)\]\s*$", re.MULTILINE)
_CLASS = re.compile(r"^.*?\b(?:[a-z_]\w*\.)+[A-Z]\w*: ")
"""Class name before the text of a Python exception."""
_RAISED = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|[a-z]))(?:: (?P<text>.*))?$")
_JAVA = re.compile(r"^: (?:[\w$]+\.)*([\w$]+): ([^\n]*)$", re.MULTILINE)
"""Java exception in the form in which Py4J reports it to Python."""
_CONDITION = re.compile(r"\[(?P<name>[A-Z][A-Z0-9_]+)(?:\.[A-Z0-9_]+)*\] (?=(?P<text>[^\n]*))")


class Failure(NamedTuple):
    """Failure, with the fields of a status line."""

    error: str
    """One line for a person."""
    error_class: str
    """Code of linn, condition of Spark, or name of an exception's class."""
    fatal: bool
    """Whether no automatic restart helps."""


def failure_of(error: BaseException) -> Failure:
    """Describe an exception."""
    if isinstance(error, LinnError):
        return Failure(one_line(error.text), error.code, error.code in FATAL_CODES)
    text = str(error)
    is_fatal = any(each.__name__ in FATAL_CLASSES for each in type(error).__mro__)
    found = described(text)
    if found is not None:
        return Failure(found.error, found.error_class, found.fatal or is_fatal)
    return Failure(one_line(text) or type(error).__name__, type(error).__name__, is_fatal)


def described(text: str) -> Failure | None:
    """Describe Spark's message: an error of linn, a Python exception, or a condition of Spark itself."""
    # The plan follows, whose literals could look like an error.
    text = text.partition("\n=== Streaming Query ===")[0].partition("\nJVM stacktrace:")[0]
    of_linn = _LINN.findall(text)
    for line, code in reversed(of_linn):
        return Failure(one_line(_CLASS.sub("", line)), code, code in FATAL_CODES)
    conditions = [found for found in _CONDITION.finditer(text) if found["name"] not in _WRAPPERS]
    fatal = any(found["name"].startswith(FATAL_CONDITIONS) for found in conditions)
    _, has_traceback, traceback = text.rpartition("Traceback (most recent call last):")
    in_java = _JAVA.findall(traceback)
    if in_java and not fatal and not conditions:
        name, line = in_java[-1]
        return Failure(one_line(f"{name}: {line}"), name, name in FATAL_CLASSES)
    if has_traceback and not fatal:
        for line in traceback.splitlines():
            raised = _RAISED.match(line)
            if raised is not None:
                name = raised["name"].rpartition(".")[2]
                return Failure(one_line(f"{name}: {raised['text'] or ''}"), name, name in FATAL_CLASSES)
    if conditions:
        return Failure(one_line(conditions[0]["text"]), conditions[0]["name"], fatal)
    return None


def one_line(text: str) -> str:
    """Return the first line that is not empty, at most 500 characters of it."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _LINE_CHARACTERS_MAX else f"{line[: _LINE_CHARACTERS_MAX - 1]}…"
