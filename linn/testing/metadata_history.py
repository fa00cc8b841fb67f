"""The history of a metadata store: all writes of a test, and what its watchers know of them at each revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from linn.core.metadata.store import NO_LEASE, REMOVED, Changes, MetadataStore, Snapshot, Stored, Watch


def values_of(entries: Mapping[str, Stored]) -> dict[str, Any]:
    """Return the values of entries without their revisions."""
    return {key: stored.value for key, stored in entries.items()}


async def read_until(watch: Watch, revision: int) -> list[Changes]:
    """Read changes up to a revision, none beyond the changes that have it."""
    found: list[Changes] = []
    while (found[-1].revision if found else watch.snapshot.revision) < revision:
        found.append(await watch.next())
    return found


@dataclass
class History:
    """All writes of a scenario, by revision; and what a watcher must know of them."""

    before: Snapshot
    writes: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    async def put(self, store: MetadataStore, changes: Mapping[str, Any], lease: int = NO_LEASE) -> int:
        """Write without conditions, and note it; returns the revision."""
        revision = await store.put_all(changes, {}, lease)
        assert revision not in self.writes, f"two writes have the revision {revision}"
        self.writes[revision] = changes
        return revision

    def at(self, revision: int) -> dict[str, Stored]:
        """Return all entries at a revision."""
        entries = dict(self.before.entries)
        for written, changes in sorted(self.writes.items()):
            for key, value in changes.items() if written <= revision else ():
                entries.pop(key, None)
                if value is not REMOVED:
                    entries[key] = Stored(written, value)
        return entries

    def check(self, snapshot: Snapshot, changes: Sequence[Changes]) -> None:
        """Check that a watcher has seen everything after its snapshot, in order, nothing twice, nothing in halves."""
        assert dict(snapshot.entries) == self.at(snapshot.revision), "the snapshot is of no single moment"
        known, seen = dict(snapshot.entries), snapshot.revision
        for each in changes:
            assert each.revision > seen, f"changes up to {each.revision} come after revision {seen}"
            for key, stored in each.entries.items():
                if stored is None:
                    known.pop(key, None)
                    continue
                assert seen < stored.revision <= each.revision, f"{key} of {stored.revision} is among {each}"
                known[key] = stored
            assert known == self.at(each.revision), f"something is missing, or is wrong, at revision {each.revision}"
            seen = each.revision


async def history_of(store: MetadataStore) -> History:
    """Begin a history with what the store has."""
    return History(await store.load())


async def read_until_gone(
    watch: Watch, known: dict[str, Stored], keys: set[str], *, at_first: bool = True
) -> list[Changes]:
    """Read changes into `known` until the keys are gone; `at_first`: whether they are there."""
    found, seen = list[Changes](), keys if at_first else set()
    while keys - seen or keys & known.keys():
        changes = await watch.next()
        found.append(changes)
        for key, stored in changes.entries.items():
            known.pop(key, None)
            if stored is not None:
                known[key] = stored
        seen = seen | changes.entries.keys()
    return found


class Promise:
    """A number that others wait for."""

    def __init__(self) -> None:
        self._known = trio.Event()
        self._value = 0

    def keep(self, value: int) -> None:
        """Give the number."""
        self._value = value
        self._known.set()

    async def wait_value(self) -> int:
        """Wait for the number."""
        await self._known.wait()
        return self._value
