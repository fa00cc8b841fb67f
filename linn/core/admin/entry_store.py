"""The entries of the metadata store, read at a start and written by each change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from linn.core.admin.stored_entries import SECRET, SECRET_BYTES, TOPIC
from linn.core.config.decoder import encode_each
from linn.core.config.topic_settings import NEW_KEYS, BindingSettings, TopicSettings, encode_without_bindings
from linn.core.env.env import Rng
from linn.core.loop.long_work import LongWork
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, MetadataEntries
from linn.core.topics.holder import HOLDER
from linn.core.topics.topic import Topic

NO_CONDITIONS: Mapping[str, int] = MappingProxyType({})
_DEFAULTS = encode_without_bindings(TopicSettings())


class EntryStore:
    """The metadata store, with the revision of each entry."""

    def __init__(self, metadata: MetadataEntries, long_work: LongWork) -> None:
        self._metadata = metadata
        self._long_work = long_work
        self.lease: Callable[[], int] | None = None
        """In a cluster, the lease of this node's session, with which transient entries end; raises MetadataError."""
        self._revisions: dict[str, int] = {}
        self._secrets: dict[str, str] = {}
        self._encoded: dict[str, tuple[Sequence[BindingSettings], Sequence[Mapping[str, Any]]]] = {}
        """The bindings of topics with their encoded form: encoding ten thousand takes 40 ms."""

    async def load(self) -> dict[str, Any]:
        """Read all entries. Raises as `MetadataStore.load`."""
        stored = (await self._metadata.load()).entries
        self._revisions = {key: revision for key, (revision, _) in stored.items()}
        self._secrets = {key: entry for key, (_, entry) in stored.items() if key.startswith(SECRET)}
        return {key: entry for key, (_, entry) in stored.items()}

    def secret(self, name: str, rng: Rng) -> tuple[bytes, Mapping[str, object]]:
        """Return a secret of SECRET_BYTES, and the entry with which to store it if it was drawn just now."""
        key = SECRET + name
        stored = self._secrets.get(key)
        if stored is not None:
            return bytes.fromhex(stored), {}
        drawn = rng.bytes(SECRET_BYTES)
        return drawn, {key: drawn.hex()}

    @property
    def revisions(self) -> Mapping[str, int]:
        """The revision of each entry that the broker's catalog has."""
        return self._revisions

    def note(self, key: str, revision: int | None) -> None:
        """Note that another broker has written an entry, or removed it (None)."""
        if revision is None:
            self._revisions.pop(key, None)
        else:
            self._revisions[key] = revision

    async def put(self, key: str, value: object, *, is_transient: bool = False) -> None:
        """Write an entry. One that `is_transient` ends with this broker: if it is alone, it is not written.

        Raises StorageError, MetadataError: nothing has changed.
        """
        if not is_transient:
            await self.put_all({key: value})
        elif self.lease is not None:
            await self.put_all({key: value}, self.lease())

    async def put_all(self, values: Mapping[str, object], lease: int = NO_LEASE) -> None:
        """Write several entries in as few steps as the store allows. Raises StorageError, MetadataError."""
        keys = iter(values)
        while some := list(islice(keys, self._metadata.changes_max)):
            conditions = {key: self._revisions.get(key, ABSENT) for key in some}
            revision = await self._metadata.put_all({key: values[key] for key in some}, conditions, lease)
            self._revisions.update(dict.fromkeys(some, revision))

    async def remove(self, key: str, conditions: Mapping[str, int] = NO_CONDITIONS) -> None:
        """Remove an entry if it exists, under further conditions. Raises StorageError, MetadataError."""
        if key in self._revisions:
            await self._metadata.put_all({key: REMOVED}, {**conditions, key: self._revisions[key]})
            del self._revisions[key]
            self._encoded.pop(key.removeprefix(TOPIC), None)

    async def save_topic(
        self, topic: Topic, settings: TopicSettings, live: Sequence[BindingSettings], live_keys: Sequence[str]
    ) -> None:
        """Write a topic's settings, the keys that were set live, its live bindings and its `entries`; nothing of a
        transient one if this broker is alone.

        Raises StorageError, MetadataError.
        """
        if settings.is_transient and self.lease is None:
            return
        table = await self.table(topic.name, settings)
        entry = stored_topic(topic, table, live, live_keys)
        await self.put(TOPIC + topic.name, entry, is_transient=settings.is_transient)
        self._encoded[topic.name] = settings.bindings, table["bindings"]

    async def table(self, name: str, settings: TopicSettings) -> Mapping[str, Any]:
        """The settings in their stored form, reusing bindings that were encoded before."""
        before, encoded = self._encoded.get(name, ((), ()))
        if before != settings.bindings:
            encoded = await self._long_work.run(encode_each(settings.bindings), immediate=True)
        table = {**encode_without_bindings(settings), "bindings": encoded}
        return {key: value for key, value in table.items() if key not in NEW_KEYS or value != _DEFAULTS.get(key)}


def stored_topic(
    topic: Topic, settings: Mapping[str, Any], live: Sequence[BindingSettings], live_keys: Sequence[str]
) -> dict[str, Any]:
    """The entry of a topic in the metadata store."""
    about = {"id": str(topic.id), "settings": settings, "live_bindings": live, "live_keys": list(live_keys)}
    entry = about if topic.holder is None else {**about, HOLDER: topic.holder}
    return {**entry, "subscriptions": dict(topic.entries)} if topic.entries else entry
