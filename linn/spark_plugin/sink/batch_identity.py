"""The identity of a micro-batch: what makes a write of it count once, and tells it from another of the same number.

Law: the number of a micro-batch alone says nothing about its rows. A checkpoint that was restored from an older copy
gives numbers again that were used, to other rows.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple

QUERY_ID = "sql.streaming.queryId"
"""Spark's property that has the id of the query whose micro-batch is being written."""


class BatchIdentity(NamedTuple):
    """A query, which lives as long as its checkpoint, the number of a micro-batch in it, and what that one reads."""

    query_id: str
    batch_id: int
    input: str
    """A digest of the offsets that it reads from and up to."""


def query_of(frame: Any) -> str | None:
    """Return the id of the query whose micro-batch a frame is, inside of `foreachBatch`; None: it is of no query."""
    found: str | None = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    return found


def identity_of(frame: Any, batch_id: int) -> BatchIdentity:
    """Return the identity of a micro-batch, inside of `foreachBatch`."""
    query_id = query_of(frame)
    assert query_id, "Spark names the query to the thread that runs its micro-batches"
    return BatchIdentity(query_id, batch_id, digest(offsets_of(frame, query_id, batch_id)))


def offsets_of(frame: Any, query_id: str, batch_id: int) -> list[str]:
    """Return what Spark's log has of the micro-batch before and of this one: JSON with the offsets of each source."""
    session = frame.sparkSession
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    log = queries.get(session._jvm.java.util.UUID.fromString(query_id)).offsetLog()
    found = [log.get(number) for number in (batch_id - 1, batch_id)]
    return [str(option.get().toString()) for option in found if option.isDefined()]


def digest(offsets: list[str]) -> str:
    """Return 15 hexadecimal digits that stand for offsets: as many as a version of Delta's holds."""
    return blake2b("\n".join(offsets).encode()).hexdigest()[:15]


def name_records(offsets: list[str]) -> bool:
    """Return whether offsets say of themselves which records they stand for, as linn's and Kafka's do, by topic.

    Those of a folder of files are numbers in the checkpoint's own list, which another copy of it fills in its own way.
    """
    try:
        sources = [source for text in offsets for source in json.loads(text)]
    except ValueError:
        return False
    return all(
        isinstance(source, dict) and all(isinstance(topic, dict) for topic in source.values()) for source in sources
    )
