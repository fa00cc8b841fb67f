"""Checkpoints of streaming queries, on whatever file system Spark knows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from linn.spark_plugin.errors import CheckpointMissing
from linn.spark_plugin.spec import PipelineSpec


def checkpoint_of(state_dir: str, pipeline: PipelineSpec) -> str:
    """Return the place of a pipeline's checkpoint."""
    return pipeline.checkpoint or f"{state_dir.rstrip('/')}/{pipeline.name}/checkpoint"


def dead_letter_checkpoint_of(state_dir: str, pipeline: PipelineSpec) -> str:
    """Return the place of the checkpoint of its dead letters, which a query of their own writes."""
    return f"{checkpoint_of(state_dir, pipeline).rstrip('/')}-dead-letters"


def exists(session: SparkSession, *parts: str) -> bool:
    """Return whether there is a file or folder."""
    jvm: Any = session._jvm
    place = jvm.org.apache.hadoop.fs.Path("/".join(part.rstrip("/") for part in parts))
    configuration = session._jsparkSession.sessionState().newHadoopConf()
    return bool(place.getFileSystem(configuration).exists(place))


def is_new(session: SparkSession, checkpoint: str) -> bool:
    """Return whether there is no checkpoint yet: a query that starts there is a new one, and begins anew."""
    return not exists(session, checkpoint, "metadata")


def check_output(session: SparkSession, checkpoint: str, path: str) -> None:
    """Check that files which a query wrote have its checkpoint beside them.

    Raises:
        CheckpointMissing: Spark would leave out as many micro-batches as the folder has, without a word.
    """
    if is_new(session, checkpoint) and exists(session, path, "_spark_metadata"):
        raise CheckpointMissing(
            f"{path} has output of this pipeline and its checkpoint {checkpoint} is gone: restore the checkpoint, or "
            "give the pipeline another path; to write everything again into this one, empty the folder"
        )
