"""Cutting a subscription's events down to the records that the topic's log still has after a power loss."""

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
    """The part of an event about offsets below `end`, the end of the log; None if there is none.

    The state log may have outlived records of the data log that were never synced. Their offsets will be given to other
    records, which have not been delivered or settled.
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
