"""Cutting a subscription's events down to what the topic's log still holds after a power failure."""

from __future__ import annotations

import dataclasses

from linn.core.queue.event import (
    DeliveryIdsStarted,
    Skipped,
    Started,
    SubscriptionEvent,
)
from linn.core.queue.event_run import EventRun, Snapshot


def clip_event(event: SubscriptionEvent, end: int) -> SubscriptionEvent | None:
    """What is left of an event when the log ends at `end`; None where nothing is.

    The state log may have outlived records of the data log that were never synced. Their offsets will be given to other
    records, which nobody has seen or settled yet.
    """
    if isinstance(event, DeliveryIdsStarted):
        return event
    if isinstance(event, EventRun | Snapshot):
        return event.clipped(end)
    if isinstance(event, Started | Skipped):
        return event if event.offset <= end else dataclasses.replace(event, offset=end)
    if event.end <= end:
        return event
    if event.first >= end:
        return None
    return dataclasses.replace(event, end=end)
