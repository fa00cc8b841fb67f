"""The verb that tells what became of messages, by their ids."""

from __future__ import annotations

from uuid import UUID

from linn import verbs
from linn.core.errors.messages import StatusUnsupported
from linn.core.errors.tree import ConfigError, LimitExceeded
from linn.core.topics.catalog import Catalog
from linn.message_status import IDS_MAX, MessageStatus


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
