"""Checkpoints of streaming queries, and the folders of files that belong to them, on any file system that Spark knows.

Law: a folder of files has one query. Spark's sink silently skips a micro-batch whose number the folder has already,
even from another query. So folder and checkpoint hold the same token, as the name of a file in a subfolder.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from linn.core.env.real.env import RealEnv
from linn.spark_plugin.driver.status import Offsets, logged_offsets
from linn.spark_plugin.errors import CheckpointMissing, CheckpointOutdated, PipelineInvalid
from linn.spark_plugin.spec import PipelineSpec, checkpoint_of

_OF_OUTPUT = "_linn_query"
"""Folder in the output with the token of its query; readers ignore names that begin with an underscore."""
_OF_CHECKPOINT = "linn-output"
"""Folder in the checkpoint with the token of its output."""
_BATCH = re.compile(r"(\d+)(?:\.compact)?")


def dead_letter_checkpoint_of(state_dir: str, pipeline: PipelineSpec) -> str:
    """Return the place of the checkpoint of a pipeline's dead letters, which a separate query writes."""
    return f"{checkpoint_of(state_dir, pipeline).rstrip('/')}-dead-letters"


def exists(session: SparkSession, *parts: str) -> bool:
    """Tell whether a file or folder exists."""
    files, place = _place(session, *parts)
    return bool(files.exists(place))


def is_new(session: SparkSession, checkpoint: str) -> bool:
    """Tell whether there is no checkpoint yet, so that a query that starts there is new."""
    return not exists(session, checkpoint, "metadata")


def committed_offsets(session: SparkSession, checkpoint: str) -> Offsets:
    """Return the end offsets of the last micro-batch that is in the sink; empty if there is none."""
    last = _latest(session, checkpoint, "commits")
    if last < 0:
        return {}
    files, place = _place(session, checkpoint, "offsets", str(last))
    jvm: Any = session._jvm
    stream = files.open(place)
    try:
        return logged_offsets(str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")))
    finally:
        stream.close()


def check_output(session: SparkSession, checkpoint: str, path: str) -> None:
    """Check that a folder of files belongs to a checkpoint; claim it if it belongs to none.

    Raises:
        CheckpointMissing: the folder's checkpoint is gone.
        CheckpointOutdated: the checkpoint is an older copy.
        PipelineInvalid: the folder belongs to another query.
    """
    written = _latest(session, path, "_spark_metadata")
    if written < 0:
        _take(session, checkpoint, path)
        return
    if is_new(session, checkpoint):
        raise CheckpointMissing(
            f"{path} has output of this pipeline or another one, and there is no checkpoint {checkpoint}: restore the "
            "checkpoint, or give the pipeline another path; to write everything again into this one, empty the folder"
        )
    tokens = _names(session, path, _OF_OUTPUT)
    if len(tokens) != 1 or tokens[0] not in _names(session, checkpoint, _OF_CHECKPOINT):
        raise _of_another(path)
    if written > _latest(session, checkpoint, "offsets"):
        raise CheckpointOutdated(
            f"the checkpoint {checkpoint} is older than the output {path}, and Spark would leave out micro-batches: "
            "restore the newest checkpoint, or give the pipeline another path"
        )


def _take(session: SparkSession, checkpoint: str, path: str) -> None:
    """Put the checkpoint's token into the output. Raises PipelineInvalid: another query has done so, or is doing so.

    Each query writes first and lists the tokens then, so that at least one of two sees the other. An exclusive create
    would not do: on local disks and in object stores, Hadoop checks first and writes then.
    """
    # The checkpoint's token is written first: the next start completes what a crash interrupts.
    token = min(_names(session, checkpoint, _OF_CHECKPOINT), default="") or RealEnv().rng.bytes(16).hex()
    for parts in (checkpoint, _OF_CHECKPOINT, token), (path, _OF_OUTPUT, token):
        files, place = _place(session, *parts)
        files.createNewFile(place)
    if _names(session, path, _OF_OUTPUT) != [token]:
        files.delete(place, False)
        raise _of_another(path)


def _of_another(path: str) -> PipelineInvalid:
    return PipelineInvalid(
        f"{path} is the output of another query: give the pipeline a path of its own, or empty the folder if that "
        "query is no more"
    )


def _latest(session: SparkSession, *parts: str) -> int:
    """Return the largest number of a micro-batch in a log of Spark's; -1 if the log is empty."""
    found = map(_BATCH.fullmatch, _names(session, *parts))
    return max((int(match[1]) for match in found if match is not None), default=-1)


def _names(session: SparkSession, *parts: str) -> list[str]:
    """List the names in a folder, without hidden names such as checksums; empty if there is no folder."""
    files, place = _place(session, *parts)
    if not files.exists(place):
        return []
    names = [str(file.getPath().getName()) for file in files.listStatus(place)]
    return [name for name in names if not name.startswith(".")]


def _place(session: SparkSession, *parts: str) -> tuple[Any, Any]:
    """Return a place as Hadoop's file system and path."""
    jvm: Any = session._jvm
    place = jvm.org.apache.hadoop.fs.Path("/".join(part.rstrip("/") for part in parts))
    return place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), place
