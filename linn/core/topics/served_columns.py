"""Columns of a published batch that a topic serves, refuses or adds."""

from __future__ import annotations

from itertools import compress

from linn.core.batch.batch import KEY_HASHES, RecordBatch
from linn.core.batch.builder import with_key_hashes
from linn.core.errors.tree import BatchError, FeatureUnsupported
from linn.core.routing.budget import PublishBudget


def check_served(batch: RecordBatch, topic: str, *, is_queue: bool, has_order: bool) -> None:
    """Refuse wishes that would be without effect; priorities in a stream are for its readers, and any order may read
    them.

    Raises FeatureUnsupported, with the indexes of the messages.
    """
    asked = {} if is_queue else {"TTLs": batch.ttls_ms}
    if is_queue and not has_order:
        asked["priorities"] = batch.priorities
    for what, values in asked.items():
        if values is not None and any(values):
            kind = "a queue" if is_queue else "a stream"
            hint = 'without order = "priority"' if what == "priorities" else "yet"
            text = f"topic {topic} is {kind}, which does not serve {what} {hint}"
            raise FeatureUnsupported(text).of_messages(list(compress(range(batch.count), values)))


def add_key_hashes(batch: RecordBatch, budget: PublishBudget) -> RecordBatch:
    """The batch with a column of key hashes, if it has keys and no such column, for an order by key.

    Raises LimitExceeded: it is over the budget, or has too many bytes of keys.
    """
    if batch.is_plain or batch.raw_fields[KEY_HASHES] is not None:
        return batch
    budget.look_into(batch)
    try:
        return with_key_hashes(batch)
    except BatchError:
        return batch  # Its records are dead letters when they are delivered.
