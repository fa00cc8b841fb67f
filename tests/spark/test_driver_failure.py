"""Classification of failures: one line, a class, and whether a restart can help."""

from __future__ import annotations

import pytest

from linn.core.errors.tree import LinnError
from linn.spark_plugin.driver.failure import Failure, described, failure_of, one_line
from linn.spark_plugin.errors import CheckpointMissing, CheckpointOutdated, SparkDataLost

TRACEBACK = """Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "mine.py", line 28, in write
    raise {}
{}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = e02318e4, runId = 15abacd9]
Current State: ACTIVE [spark.option_invalid]
"""
STREAM = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR] An error "
    "occurred in the user provided function in foreach batch sink. Reason: An exception was raised: "
)


def of(raised: str) -> str:
    return STREAM + TRACEBACK.format("it", raised)


class AnalysisException(Exception):
    """Exception with the name of Spark's."""


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (SparkDataLost("it is gone"), Failure("it is gone", "spark.data_lost", True)),
        (CheckpointMissing("it is gone"), Failure("it is gone", "spark.checkpoint_missing", True)),
        (CheckpointOutdated("it is old"), Failure("it is old", "spark.checkpoint_outdated", True)),
        (LinnError("try again"), Failure("try again", "linn.error", False)),
        (
            Exception(of("linn.spark_plugin.errors.SparkDataLost: partition 1 is gone [spark.data_lost]")),
            Failure("partition 1 is gone", "spark.data_lost", True),
        ),
        (
            Exception(of("linn.errors.ConnectFailed: nobody listens [client.connect_failed]")),
            Failure("nobody listens", "client.connect_failed", False),
        ),
        (Exception(of("ValueError: user error\nsecond line")), Failure("ValueError: user error", "ValueError", False)),
        (
            Exception(
                of("py4j.protocol.Py4JJavaError: An error occurred.\n: org.sqlite.SQLiteException: no such table")
            ),
            Failure("SQLiteException: no such table", "SQLiteException", False),
        ),
        (
            AnalysisException("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved.\nPlan"),
            Failure("A column `x` cannot be resolved.", "UNRESOLVED_COLUMN", True),
        ),
        (
            Exception("[STREAM_FAILED] Query [id = 1] terminated: [TABLE_OR_VIEW_NOT_FOUND] There is no table x."),
            Failure("There is no table x.", "TABLE_OR_VIEW_NOT_FOUND", True),
        ),
        (
            Exception("[STREAM_FAILED] Query [id = 1] terminated: [CANNOT_READ_FILE] Try again."),
            Failure("Try again.", "CANNOT_READ_FILE", False),
        ),
        (AnalysisException("no condition"), Failure("no condition", "AnalysisException", True)),
        (OSError(), Failure("OSError", "OSError", False)),
    ],
)
def test_a_failure_is_a_line_a_class_and_whether_it_is_fatal(error: Exception, failure: Failure) -> None:
    assert failure_of(error) == failure


def test_the_plan_of_a_query_is_not_taken_for_its_error() -> None:
    assert described("it failed\n=== Streaming Query ===\n'x [spark.data_lost]") is None


def test_a_line_is_short() -> None:
    assert one_line("\n\n  first \nsecond") == "first"
    assert len(one_line("x" * 10_000)) == 500
