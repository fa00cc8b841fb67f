"""Errors of the Spark source."""

from __future__ import annotations

from linn.core.errors.tree import LinnError


class SparkOptionInvalid(LinnError):
    """An option of `format("linn")` is unknown, wrong, or contradicts another one."""

    code = "spark.option_invalid"


class SparkWriteInterrupted(LinnError):
    """A write has lost its transaction midway; nothing of it counts, and it can be repeated."""

    code = "spark.write_interrupted"
    retriable = True


class SparkDataLost(LinnError):
    """Records that a Spark job was to read are no longer in the topic."""

    code = "spark.data_lost"


class SparkPipelineUnknown(LinnError):
    """There is no Spark pipeline of that name."""

    code = "spark.pipeline_unknown"


class PipelineInvalid(LinnError):
    """A pipeline asks for something that can't be done: its transform, schema, format or an option is wrong."""

    code = "spark.pipeline_invalid"


class CheckpointMissing(LinnError):
    """A pipeline has written to its sink, and its checkpoint is gone."""

    code = "spark.checkpoint_missing"


class CheckpointOutdated(LinnError):
    """A query's sink has other rows of this micro-batch, or rows of a later one: its checkpoint is an older copy."""

    code = "spark.checkpoint_outdated"


class LakeSchemaMismatch(LinnError):
    """The rows of a pipeline do not fit the columns of its table."""

    code = "spark.schema_mismatch"
