"""Checkpoints of streaming queries, and the folders of files that belong to them, on whatever file system Spark knows.

Law: a folder of files has one query. Spark's sink leaves out each micro-batch whose number the folder has already, of
whatever query, without a word. So folder and checkpoint have the same token, as the name of a file in a folder of ours.
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
"""Folder in the output with the token of its query; readers pass over names that begin so."""
_OF_CHECKPOINT = "linn-output"
"""Folder in the checkpoint with the token of its output."""
_BATCH = re.compile(r"(\d+)(?:\.compact)?")


def dead_letter_checkpoint_of(state_dir: str, pipeline: PipelineSpec) -> str:
    """Return the place of the checkpoint of its dead letters, which a query of their own writes."""
    return f"{checkpoint_of(state_dir, pipeline).rstrip('/')}-dead-letters"


def exists(session: SparkSession, *parts: str) -> bool:
    """Return whether there is a file or folder."""
    files, place = _place(session, *parts)
    return bool(files.exists(place))


def is_new(session: SparkSession, checkpoint: str) -> bool:
    """Return whether there is no checkpoint yet: a query that starts there is a new one, and begins anew."""
    return not exists(session, checkpoint, "metadata")


def committed_offsets(session: SparkSession, checkpoint: str) -> Offsets:
    """Return the end of the last micro-batch that is in the sink; nothing if there is none."""
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
    """Check that a folder of files belongs to a checkpoint; take it for the checkpoint if nobody has.

    Raises:
        CheckpointMissing: the folder's checkpoint is gone.
        CheckpointOutdated: it is an older copy.
        PipelineInvalid: the folder is another query's.
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
    """Put the checkpoint's token into the output. Raises PipelineInvalid: another query has done so, or does.

    Each looks after it has written, so that at least one of them sees the other. A file made exclusively would not do:
    on a local disk, and in stores of objects, Hadoop looks first and writes then.
    """
    # The checkpoint's comes first: whatever a crash leaves is taken up the next time.
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
    """Return the largest number of a micro-batch in a log of Spark's; -1 without one."""
    found = map(_BATCH.fullmatch, _names(session, *parts))
    return max((int(match[1]) for match in found if match is not None), default=-1)


def _names(session: SparkSession, *parts: str) -> list[str]:
    """List the names in a folder; none if there is no folder. Hidden ones, such as checksums, are left out."""
    files, place = _place(session, *parts)
    if not files.exists(place):
        return []
    names = [str(file.getPath().getName()) for file in files.listStatus(place)]
    return [name for name in names if not name.startswith(".")]


def _place(session: SparkSession, *parts: str) -> tuple[Any, Any]:
    """Return a place as Hadoop has it, after the file system that it is in."""
    jvm: Any = session._jvm
    place = jvm.org.apache.hadoop.fs.Path("/".join(part.rstrip("/") for part in parts))
    return place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), place
