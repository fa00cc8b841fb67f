"""The verbs about single messages: what became of some, and which ones come later."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from linn import verbs
from linn.core.batch.record import DUE_MS_MAX
from linn.core.errors.messages import StatusUnsupported
from linn.core.errors.tree import ConfigError, LimitExceeded
from linn.core.loop.long_work import LongWork
from linn.core.topics.catalog import Catalog
from linn.core.topics.topic import Topic
from linn.message_status import IDS_MAX, SCHEDULED_SHOWN_MAX, MessageStatus, ScheduledChanged, ScheduledMessages


async def find_messages(catalog: Catalog, asked: verbs.MessagesAsked) -> list[MessageStatus]:
    """The status of messages of a topic, in the order of the ids.

    Raises TopicUnknown, NotLeader, StorageError, StatusUnsupported; LimitExceeded: there are too many ids;
    ConfigError: one is no UUID.
    """
    topic = catalog.led_topic(asked.topic)
    if topic.ids.statuses is None:
        raise StatusUnsupported(f"topic {topic.name} knows no ids of messages: set its `status` to a time, such as 7d")
    if len(asked.ids) > IDS_MAX:
        raise LimitExceeded(f"{len(asked.ids):,} ids in one request, more than {IDS_MAX:,}")
    try:
        ids = [UUID(id) for id in asked.ids]
    except ValueError as error:
        raise ConfigError('the argument "ids" has an id that is no UUID') from error
    return await topic.ids.statuses.find(ids)


class ScheduledAdministration:
    """Messages that come into their topic later, shown and changed."""

    def __init__(self, catalog: Catalog, long_work: LongWork) -> None:
        self._catalog = catalog
        self._long_work = long_work

    async def list_first(self, asked: verbs.ScheduledAsked) -> ScheduledMessages:
        """The messages of a topic that come next, over all partitions, or the messages with these ids that wait.

        Raises TopicUnknown, NotLeader, StorageError, LimitExceeded, ConfigError.
        """
        timing, count = self._catalog.led_topic(asked.topic).timing, min(asked.count, SCHEDULED_SHOWN_MAX)
        found = list[tuple[int, int, int]]()
        for index, offset in _places_of(asked.ids):
            if (waiting := timing.queues.get(index)) is not None and (due_ms := await waiting.due_ms_of(offset)):
                found.append((due_ms, index, offset))
        for index, queue in list(timing.queues.items()) if not asked.ids else ():
            rows = await self._long_work.run(queue.first(count), immediate=True)
            found += [(due_ms, index, offset) for due_ms, offset in rows]
        first = (found if asked.ids else sorted(found))[:count]
        return {
            "count": timing.waiting_count,
            "first": [{"id": f"{index}/{offset}", "due_ms": due_ms} for due_ms, index, offset in first],
        }

    async def cancel(self, asked: verbs.ScheduledChange) -> list[ScheduledChanged]:
        """Let messages never come. Durable when this returns."""
        return await self._change(asked, None)

    async def move(self, asked: verbs.ScheduledMove) -> list[ScheduledChanged]:
        """Let messages come at another time. Durable when this returns."""
        if not 0 < asked.due_ms <= DUE_MS_MAX:
            raise ConfigError('the argument "due_ms" must be a time after 1970 and before the year 10,000')
        return await self._change(asked, asked.due_ms)

    async def _change(self, asked: verbs.ScheduledChange, due_ms: int | None) -> list[ScheduledChanged]:
        topic = self._catalog.led_topic(asked.topic)
        places = _places_of(asked.ids)
        statuses = topic.ids.statuses if due_ms is None and not asked.validate_only else None
        ids = {} if statuses is None else await _ids_of(topic, places)
        cancelled = dict[int, list[bytes]]()
        changed: list[ScheduledChanged] = []
        for id, (index, offset) in zip(asked.ids, places, strict=True):
            queue = topic.timing.queues.get(index)
            outcome = "gone" if queue is None else queue.change(offset, due_ms, is_dry=asked.validate_only)
            changed.append({"id": id, "outcome": outcome})
            if outcome == "cancelled" and (index, offset) in ids:
                cancelled.setdefault(index, []).append(ids[index, offset])
        if statuses is not None:
            for index, gone in cancelled.items():
                await statuses.cancelled(index, gone)
        for index in dict.fromkeys(index for index, _ in places):
            if (queue := topic.timing.queues.get(index)) is not None and not asked.validate_only:
                await queue.log.commit_all()  # Not a task in the background, which may be cancelled.
        return changed


async def _ids_of(topic: Topic, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    """The ids of the messages that wait at these places. Raises StorageError."""
    found = dict[tuple[int, int], bytes]()
    for index, offset in places:
        queue = topic.timing.queues.get(index)
        is_there = queue is not None and queue.change(offset, None, is_dry=True) == "cancelled"
        if queue is not None and is_there and (id := await queue.id_of(offset)):
            found[index, offset] = id
    return found


def _places_of(ids: Sequence[str]) -> list[tuple[int, int]]:
    """The partitions and numbers of scheduled messages. Raises LimitExceeded, ConfigError."""
    if len(ids) > SCHEDULED_SHOWN_MAX:
        raise LimitExceeded(f"{len(ids):,} ids in one request, more than {SCHEDULED_SHOWN_MAX:,}")
    return [_place_of(id) for id in ids]


def _place_of(id: str) -> tuple[int, int]:
    """The partition and the number of a scheduled message. Raises ConfigError."""
    partition, slash, number = id.partition("/")
    digits = partition + number
    if not slash or not partition or not number or not (digits.isascii() and digits.isdigit()) or len(id) > 30:
        raise ConfigError(f'"{id[:80]}" is no id of a scheduled message, such as 0/5')
    return int(partition), int(number)
