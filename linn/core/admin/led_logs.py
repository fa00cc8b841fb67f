"""The topics of which this broker has logs, in a cluster: a record in the broker's own folder.

Laws: a topic is recorded before its first log is made, with its id, and its record is removed after its last log. So a
broker that was down while a topic was deleted finds the logs, and no topic finds the logs of another of its name. Logs
are deleted only if the metadata of the cluster was read and has no topic of that id.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from linn.core.admin.stored_entries import TOPIC, settings_of_topics
from linn.core.env.log_fields import log_fields
from linn.core.errors.names import AUDIT_TOPIC
from linn.core.errors.tree import StorageError, SyncFailed
from linn.core.metadata.store import REMOVED, MetadataEntries
from linn.core.topics.shared_entry import decode_entries
from linn.core.topics.topic import Topic
from linn.core.topics.topic_maker import TopicMaker

logger = logging.getLogger("linn.administration")


class LedLogs:
    """The record of topics with logs here, and the deletion of logs that belong to no topic any more."""

    def __init__(self, local: MetadataEntries, maker: TopicMaker) -> None:
        self._local = local
        self._maker = maker
        self._entries: dict[str, Mapping[str, Any]] = {}

    async def load(self) -> Mapping[str, Mapping[str, Any]]:
        """Read the record; returns the entries of the topics by name, as they were when they were last opened.

        Raises LogCorrupt, StorageError.
        """
        stored = {key: value for key, (_, value) in (await self._local.load()).entries.items()}
        settings_of_topics(stored)
        self._entries = {key.removeprefix(TOPIC): entry for key, entry in stored.items()}
        return self._entries

    def id_of(self, name: str) -> str | None:
        """The id of the topic of this name that has logs here; None: there is none."""
        return self._entries[name]["id"] if name in self._entries else None

    async def record(self, name: str, entry: Mapping[str, Any]) -> None:
        """Record a topic before its logs are made, or that it has changed. Raises StorageError."""
        if self._entries.get(name) != entry:
            await self._local.put_all({TOPIC + name: entry}, {})
            self._entries[name] = entry

    async def delete_old(self, ids: Mapping[str, str]) -> None:
        """Delete the logs of topics that are gone, as far as possible. `ids`: of the topics that exist, by name.

        Raises SyncFailed.
        """
        for name in [name for name, entry in self._entries.items() if name != AUDIT_TOPIC]:
            if self._entries[name]["id"] != ids.get(name):
                try:
                    await self.delete(self._made(name))
                except SyncFailed:
                    raise
                except StorageError as error:
                    text = "some logs of the deleted topic %(topic)s are left until the next start: %(error)s"
                    logger.warning(text, {"topic": name} | log_fields(error))

    def _made(self, name: str) -> Topic:
        entry = self._entries[name]
        settings = settings_of_topics({TOPIC + name: entry})[name]
        return self._maker.make(name, settings, UUID(entry["id"]), decode_entries(entry.get("subscriptions", {})))

    async def make_way(self, name: str, id: str) -> None:
        """Delete the logs of an earlier topic of a name. Raises StorageError."""
        if self.id_of(name) not in (None, id):
            await self.drop(name)

    async def drop(self, name: str) -> None:
        """Delete the closed logs of the topic that is recorded under a name. Raises StorageError: some are left."""
        await self.delete(self._made(name))

    async def delete(self, topic: Topic) -> None:
        """Delete all logs of a topic, open or not, and its record. Raises StorageError: some are left."""
        await topic.delete()
        if self.id_of(topic.name) == str(topic.id):
            await self._local.put_all({TOPIC + topic.name: REMOVED}, {})
            del self._entries[topic.name]
