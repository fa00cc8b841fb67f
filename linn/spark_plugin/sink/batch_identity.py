"""Identity of a micro-batch: makes its write count once, and tells it from another micro-batch with the same number.

Law: the number of a micro-batch alone does not identify its rows. A checkpoint that was restored from an older copy
assigns used numbers to other rows.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple

QUERY_ID = "sql.streaming.queryId"
"""Spark's property with the id of the query whose micro-batch is being written."""


class BatchIdentity(NamedTuple):
    """Query, which lives as long as its checkpoint, number of a micro-batch in it, and digest of the micro-batch's
    input.
    """

    query_id: str
    batch_id: int
    input: str
    """Digest of the offsets between which the micro-batch reads."""


def query_of(frame: Any) -> str | None:
    """Return the id of the query whose micro-batch a frame is, inside `foreachBatch`; None: it belongs to no query."""
    found: str | None = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    return found


def identity_of(frame: Any, batch_id: int) -> BatchIdentity:
    """Return the identity of a micro-batch, inside of `foreachBatch`."""
    query_id = query_of(frame)
    assert query_id, "Spark names the query to the thread that runs its micro-batches"
    return BatchIdentity(query_id, batch_id, digest(offsets_of(frame, query_id, batch_id)))


def offsets_of(frame: Any, query_id: str, batch_id: int) -> list[str]:
    """Return the entries of Spark's log for the previous and this micro-batch: JSON with the offsets of each source."""
    session = frame.sparkSession
    queries = session._jsparkSession.sharedState().activeStreamingQueries()
    log = queries.get(session._jvm.java.util.UUID.fromString(query_id)).offsetLog()
    found = [log.get(number) for number in (batch_id - 1, batch_id)]
    return [str(option.get().toString()) for option in found if option.isDefined()]


def digest(offsets: list[str]) -> str:
    """Return a digest of offsets: 15 hexadecimal digits, as many as a version in Delta holds."""
    return blake2b("\n".join(offsets).encode()).hexdigest()[:15]


def name_records(offsets: list[str]) -> bool:
    """Tell whether offsets alone identify records, as linn's and Kafka's do, by topic.

    Offsets of a folder of files are numbers in the checkpoint's own list, and another copy of it fills that
    differently.
    """
    try:
        sources = [source for text in offsets for source in json.loads(text)]
    except ValueError:
        return False
    return all(
        isinstance(source, dict) and all(isinstance(topic, dict) for topic in source.values()) for source in sources
    )
