"""Errors of the Spark source."""

from __future__ import annotations

from linn.core.errors.tree import LinnError


class SparkOptionInvalid(LinnError):
    """An option of `format("linn")` is unknown, wrong, or contradicts another one."""

    code = "spark.option_invalid"


class SparkDataLost(LinnError):
    """Records that a Spark job was to read are no longer in the topic."""

    code = "spark.data_lost"
