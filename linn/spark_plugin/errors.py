"""Errors of the Spark source."""

from __future__ import annotations

from linn.core.errors.tree import LinnError


class SparkOptionInvalid(LinnError):
    """An option of `format("linn")` is unknown, wrong, or contradicts another one."""

    code = "spark.option_invalid"


class SparkWriteInterrupted(LinnError):
    """A write has lost its transaction in the middle; nothing of it counts, and it can be done again."""

    code = "spark.write_interrupted"
    retriable = True


class SparkDataLost(LinnError):
    """Records that a Spark job was to read are no longer in the topic."""

    code = "spark.data_lost"


class SparkPipelineUnknown(LinnError):
    """There is no Spark pipeline of that name."""

    code = "spark.pipeline_unknown"
