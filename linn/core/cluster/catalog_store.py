"""The catalog in the metadata store of a cluster, as one broker writes and follows it.

Laws: each change of the catalog also writes the key CATALOG, under the condition that nobody has written it since this
broker's catalog was up to date. So a change is checked against the catalog to which it is applied, at whichever broker
it was asked for, and no two brokers need to agree on who checks. A write without an answer is never repeated: its tag
in CATALOG shows whether it was made, and if not, another write of CATALOG sees to it that it never will be.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import trio

from linn.core.env.env import Clock, Rng
from linn.core.errors.metadata import MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, MetadataStore, Snapshot, Stored, Watch

CATALOG = "catalog"
PREFIXES = ("topics/", "exchanges/", "users/", "roles/", "secrets/")
"""Prefixes of the catalog's other keys."""
_TAG_BYTES = 16
FIND_OUT_TRIES = 20
FIND_OUT_PAUSE_S = 0.5
"""Tries to find out what became of a write, and the pause between them: 10 s, longer than an election in the store."""


class CatalogStore:
    """A `MetadataStore` for the keys of the catalog alone, and the changes that others have made to them."""

    def __init__(self, store: MetadataStore, clock: Clock, rng: Rng) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self.revision = ABSENT
        """The revision of CATALOG up to which this broker's catalog has all changes."""
        self._pending: dict[str, Stored | None] = {}
        self._whole: frozenset[str] | None = None
        """Keys of a snapshot that was not taken yet; keys that are missing in it were removed."""
        self._noted = self._taken = ABSENT
        """Revisions of CATALOG that was noted and that was taken last."""
        self._news = trio.Event()
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

    def watch(self) -> AbstractAsyncContextManager[Watch]:
        """See `MetadataStore.watch`: of all keys."""
        return self._store.watch()

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """See `MetadataStore.put_all`.

        Raises also RevisionConflict where another broker has changed the catalog: `wait_newer`, and check the change
        again.
        """
        tag = self._new_tag()
        conditions = {**conditions, CATALOG: self.revision}
        try:
            revision = await self._store.put_all({**changes, CATALOG: tag}, conditions, lease)
        except MetadataUnknown as error:
            revision = await self._find_out(tag, changes, error)
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
            except (MetadataUnavailable, MetadataUnknown, RevisionConflict):
                continue
            if now.value == fence:
                self.revision = now.revision
                raise MetadataUnavailable(f"the change was not made: {cause.text}")
            if now.value == tag:
                return now.revision
            if _is_made(entries, changes):
                return max([entries[key].revision for key in changes if key in entries], default=self.revision)
            break
        raise cause

    def _new_tag(self) -> str:
        return self._rng.bytes(_TAG_BYTES).hex()

    def note_snapshot(self, entries: Mapping[str, Stored]) -> None:
        """Take note of all keys of the store, after a watch was opened."""
        self._pending = {key: stored for key, stored in entries.items() if key.startswith(PREFIXES)}
        self._whole = frozenset(self._pending)
        self._note(entries.get(CATALOG))

    def note_changes(self, entries: Mapping[str, Stored | None]) -> None:
        """Take note of changed keys, None: removed."""
        self._pending |= {key: stored for key, stored in entries.items() if key.startswith(PREFIXES)}
        self._note(entries.get(CATALOG))

    def _note(self, catalog: Stored | None) -> None:
        if catalog is not None:
            self._noted = catalog.revision
        self._news.set()

    async def wait_news(self) -> None:
        """Wait until there is something to take."""
        await self._news.wait()

    def take(self, known: Mapping[str, int]) -> dict[str, Stored | None]:
        """Take the changes that were noted, without those of which `known` has the revision, None: removed.

        The broker's catalog is up to date with them when `followed` is called.
        """
        changes, whole = self._pending, self._whole
        self._pending, self._whole, self._news = {}, None, trio.Event()
        self._taken = self._noted
        if whole is not None:
            changes |= dict.fromkeys(key for key in known if key not in whole and key not in changes)
        return {
            key: stored
            for key, stored in changes.items()
            if (key in known if stored is None else stored.revision > known.get(key, ABSENT))
        }

    def followed(self) -> None:
        """The broker's catalog has what was taken."""
        self.revision = max(self.revision, self._taken)
        self._moved.set()
        self._moved = trio.Event()

    async def wait_newer(self, revision: int) -> None:
        """Wait until the broker's catalog is of a later revision of CATALOG."""
        while self.revision <= revision:
            await self._moved.wait()


def _revision_of(entries: Mapping[str, Stored]) -> int:
    return entries[CATALOG].revision if CATALOG in entries else ABSENT


def _is_made(entries: Mapping[str, Stored], changes: Mapping[str, Any]) -> bool:
    """Whether all keys have the values that a write would have given them."""
    return all(
        key not in entries
        if value is REMOVED
        else key in entries and entries[key].value == msgspec.json.decode(msgspec.json.encode(value))
        for key, value in changes.items()
    )
