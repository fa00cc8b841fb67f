"""The catalog in the metadata store of a cluster, as one broker writes and follows it.

Laws: each change of the catalog also writes the key CATALOG, under the condition that no other broker has written it
since this broker's catalog was up to date. So a change is checked at the broker that a client is connected to, and
against the very catalog to which it is applied. A write without an answer is never repeated: its tag in CATALOG shows
whether it was made, and if not, another write of CATALOG prevents that it still will be. A write under a lease has
the same condition, and leaves CATALOG alone, which must not end with the lease: its own entries show whether it was
made. Nothing kept depends on such an entry, since it may end at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import trio

from linn.core.cluster.entries import PARTS
from linn.core.cluster.placement import PlacedTopic
from linn.core.env.env import Clock, Rng
from linn.core.errors.metadata import LeaseLost, MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, MetadataStore, Snapshot, Stored

CATALOG = "catalog"
TOPICS = "topics/"
PREFIXES = (TOPICS, "exchanges/", "users/", "roles/", "secrets/")
"""Prefixes of the catalog's other keys."""
_TAG_BYTES = 16
FIND_OUT_TRIES = 20
FIND_OUT_PAUSE_S = 0.5
"""Tries to find out what became of a write, and the pause between them: 10 s, longer than an election in the store."""


class CatalogStore:
    """The entries of the catalog alone, and the changes that others have made to them."""

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self.revision = ABSENT
        """The revision of CATALOG up to which this broker's catalog has all changes."""
        self._pending: dict[str, Stored | None] = {}
        self._whole: frozenset[str] | None = None
        """Keys of a snapshot that was not taken yet; keys that are missing in it were removed."""
        self.topics: dict[str, PlacedTopic] = {}
        """Topics that are placed on nodes, by their keys, as the metadata store has them."""
        self._held: dict[str, object] = {}
        """Ids of the topics that a node holds alone, by their keys."""
        self._keys_by_id: dict[str, str] = {}
        self._moved_ids: set[str] = set()
        """Ids of topics of which partitions were placed, or got another leader."""
        self._noted = self._taken = ABSENT
        """Revisions of CATALOG that was noted and that was taken last."""
        self._moved = trio.Event()

    @property
    def changes_max(self) -> int:
        """See `MetadataStore.changes_max`."""
        return self._store.changes_max - 1

    async def load(self) -> Snapshot:
        """See `MetadataStore.load`."""
        revision, entries = await self._store.load()
        self.revision = _revision_of(entries)
        return Snapshot(revision, {key: stored for key, stored in entries.items() if key.startswith(PREFIXES)})

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """See `MetadataStore.put_all`.

        Raises also RevisionConflict where another broker has changed the catalog: `wait_newer`, and check the change
        again.
        """
        tag, is_leased = self._new_tag(), lease != NO_LEASE
        conditions = {**conditions, CATALOG: self.revision}
        try:
            written = changes if is_leased else {**changes, CATALOG: tag}
            revision = await self._store.put_all(written, conditions, lease)
        except MetadataUnknown as error:
            revision = await self._find_out(tag, changes, error)
        except LeaseLost as error:
            raise MetadataUnavailable("the session of this broker has ended, and another one begins") from error
        if not is_leased:
            self.revision = revision
        return revision

    async def _find_out(self, tag: str, changes: Mapping[str, Any], cause: MetadataUnknown) -> int:
        """Return the revision of a write whose answer was lost.

        Raises MetadataUnavailable: it was not made, and never will be. MetadataUnknown: the store could not be read for
        long, or others have changed the catalog since then.
        """
        fence = self._new_tag()
        for _ in range(FIND_OUT_TRIES):
            await self._clock.sleep(FIND_OUT_PAUSE_S)
            try:
                entries = (await self._store.load()).entries
                now = entries.get(CATALOG, Stored(ABSENT, ""))
                if now.revision == self.revision:
                    now = Stored(await self._store.put_all({CATALOG: fence}, {CATALOG: now.revision}), fence)
                    entries = (await self._store.load()).entries
            except (MetadataUnavailable, MetadataUnknown, RevisionConflict):
                continue
            if now.value == fence:
                self.revision = now.revision
                if _is_made(entries, changes):
                    return _revision_in(entries, changes)
                raise MetadataUnavailable(f"the change was not made: {cause.text}")
            if now.value == tag:
                return now.revision
            if _is_made(entries, changes):
                return _revision_in(entries, changes) or self.revision
            break
        raise cause

    def _new_tag(self) -> str:
        return self._rng.bytes(_TAG_BYTES).hex()

    def note_snapshot(self, entries: Mapping[str, Stored]) -> None:
        """Take note of all keys of the store, after a watch was opened."""
        self._pending = {key: stored for key, stored in entries.items() if key.startswith(PREFIXES)}
        self._whole = frozenset(self._pending)
        self.topics, self._keys_by_id, self._held = {}, {}, {}
        self._note(entries)

    def note_changes(self, entries: Mapping[str, Stored | None]) -> None:
        """Take note of changed keys, None: removed."""
        self._pending |= {key: stored for key, stored in entries.items() if key.startswith(PREFIXES)}
        self._note(entries)

    def _note(self, entries: Mapping[str, Stored | None]) -> None:
        catalog = entries.get(CATALOG)
        if catalog is not None:
            self._noted = catalog.revision
        for key, stored in entries.items():
            if key.startswith(TOPICS):
                self._note_topic(key, stored)
            elif key.startswith(PARTS):
                self._moved_ids.add(_topic_id(key))

    def _note_topic(self, key: str, stored: Stored | None) -> None:
        self._held.pop(key, None)
        before = self.topics.pop(key, None)
        if before is not None:
            del self._keys_by_id[before.id]
        if stored is not None:
            # The shape is checked where the catalog follows it: an entry without these has no partitions.
            value = stored.value if isinstance(stored.value, dict) else {}
            id, settings = value.get("id"), value.get("settings")
            if "holder" in value:
                self._held[key] = id
            elif isinstance(id, str) and isinstance(settings, dict):
                sizes = [_number(settings.get(name)) for name in ("partitions", "replicas", "min_in_sync")]
                self.topics[key] = PlacedTopic(key, stored.revision, id, settings.get("storage"), *sizes)
                self._keys_by_id[id] = key
                self._moved_ids.add(id)

    def is_held(self, id: str) -> bool:
        """Whether a node holds a topic of this id alone."""
        return id in self._held.values()

    def topic_of_part(self, key: str) -> PlacedTopic | None:
        """The topic of a partition, by the key of its entry; None: it is gone."""
        topic = self._keys_by_id.get(_topic_id(key))
        return self.topics[topic] if topic is not None else None

    def take_moved(self) -> set[str]:
        """Take the ids of topics of which partitions were placed, or got another leader."""
        moved, self._moved_ids = self._moved_ids, set()
        return moved

    def take(self, known: Mapping[str, int]) -> dict[str, Stored | None]:
        """Take the changes that were noted, without those whose revision `known` has, None: removed.

        The broker's catalog is up to date with them when `followed` is called.
        """
        changes, whole = self._pending, self._whole
        self._pending, self._whole = {}, None
        self._taken = self._noted
        if whole is not None:
            changes |= dict.fromkeys(key for key in known if key not in whole and key not in changes)
        return {
            key: stored
            for key, stored in changes.items()
            if (key in known if stored is None else stored.revision > known.get(key, ABSENT))
        }

    def followed(self) -> None:
        """Note that the broker's catalog has the changes that were taken."""
        self.revision = max(self.revision, self._taken)
        self._moved.set()
        self._moved = trio.Event()

    async def wait_newer(self, revision: int) -> None:
        """Wait until the broker's catalog is of a later revision of CATALOG."""
        while self.revision <= revision:
            await self._moved.wait()


def _number(value: Any) -> int:
    """A setting's value, or 1 where it has none."""
    return value if type(value) is int and value > 0 else 1


def _topic_id(part: str) -> str:
    return part.removeprefix(PARTS).partition("/")[0]


def _revision_of(entries: Mapping[str, Stored]) -> int:
    return entries[CATALOG].revision if CATALOG in entries else ABSENT


def _revision_in(entries: Mapping[str, Stored], changes: Mapping[str, Any]) -> int:
    """The revision of a write that was made."""
    return max([entries[key].revision for key in changes if key in entries], default=ABSENT)


def _is_made(entries: Mapping[str, Stored], changes: Mapping[str, Any]) -> bool:
    """Whether all keys have the values that a write would have given them."""
    return all(
        key not in entries
        if value is REMOVED
        else key in entries and entries[key].value == msgspec.json.decode(msgspec.json.encode(value))
        for key, value in changes.items()
    )
