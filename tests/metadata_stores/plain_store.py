"""A metadata store in memory, as plain as one can be: the suite is tried on it, and on broken ones made of it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from linn.core.env.env import Env
from linn.core.errors.metadata import LeaseLost, RevisionConflict
from linn.core.errors.tree import LimitExceeded
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, Changes, Snapshot, Stored

CHANGES_MAX = 100


class Content:
    """The content of all stores of a test."""

    def __init__(self) -> None:
        self.revision = 0
        self.entries: dict[str, Stored] = {}
        self.keys_of: dict[int, dict[str, None]] = {}
        self.ends_s: dict[int, float] = {}
        self.ttls_s: dict[int, float] = {}
        self.lease_last = 0
        self.watches: list[PlainWatch] = []


class PlainWatch:
    """A queue of changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.waiting: deque[Changes] = deque()
        self.changed = trio.lowlevel.ParkingLot()

    async def next(self) -> Changes:
        await trio.lowlevel.checkpoint()
        while not self.waiting:
            await self.changed.park()
        return self.waiting.popleft()

    def tell(self, changes: Changes) -> None:
        self.waiting.append(changes)
        self.changed.unpark_all()


class PlainStore:
    """A `MetadataStore` over `Content`. Its steps are methods of their own, so that a broken store breaks one."""

    changes_max = CHANGES_MAX

    def __init__(self, content: Content, env: Env) -> None:
        self.content = content
        self.env = env

    async def load(self) -> Snapshot:
        await trio.lowlevel.checkpoint()
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        self.end_leases()
        return Snapshot(self.content.revision, dict(self.content.entries))

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[PlainWatch]:
        await trio.lowlevel.checkpoint()
        watch = PlainWatch(self.snapshot())
        self.content.watches.append(watch)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.end_leases_in_time)
            yield watch
            nursery.cancel_scope.cancel()
        self.content.watches.remove(watch)

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        await trio.lowlevel.checkpoint()
        self.end_leases()
        self.check_limits(changes, conditions)
        self.check_conditions(conditions)
        self.check_lease(lease)
        return self.write({key: self.kept(value) for key, value in changes.items()}, lease)

    def check_limits(self, changes: Mapping[str, Any], conditions: Mapping[str, int]) -> None:
        if max(len(changes), len(conditions)) > CHANGES_MAX:
            raise LimitExceeded("too many")

    def check_conditions(self, conditions: Mapping[str, int]) -> None:
        for key, revision in conditions.items():
            stored = self.content.entries.get(key)
            if (stored.revision if stored is not None else ABSENT) != revision:
                raise RevisionConflict(key)

    def check_lease(self, lease: int) -> None:
        if lease != NO_LEASE and lease not in self.content.ends_s:
            raise LeaseLost("it has ended")

    def kept(self, value: Any) -> Any:
        return value if value is REMOVED else json.loads(msgspec.json.encode(value))

    def write(self, changes: Mapping[str, Any], lease: int) -> int:
        content = self.content
        content.revision += 1
        written: dict[str, Stored | None] = {}
        for key, value in changes.items():
            self.forget_lease_of(key)
            if value is REMOVED:
                content.entries.pop(key, None)
                written[key] = None
                continue
            written[key] = content.entries[key] = Stored(content.revision, value)
            if lease != NO_LEASE:
                content.keys_of[lease][key] = None
        self.tell(Changes(content.revision, written))
        return content.revision

    def forget_lease_of(self, key: str) -> None:
        for keys in self.content.keys_of.values():
            keys.pop(key, None)

    def tell(self, changes: Changes) -> None:
        for watch in self.content.watches:
            watch.tell(changes)

    # --- leases ---

    async def grant_lease(self, ttl_s: float) -> int:
        await trio.lowlevel.checkpoint()
        content = self.content
        content.lease_last += 1
        lease = content.lease_last
        content.keys_of[lease], content.ttls_s[lease] = {}, ttl_s
        content.ends_s[lease] = self.env.clock.monotonic() + ttl_s
        return lease

    async def renew_lease(self, lease: int) -> None:
        await trio.lowlevel.checkpoint()
        self.end_leases()
        self.check_lease(lease)
        self.content.ends_s[lease] = self.env.clock.monotonic() + self.content.ttls_s[lease]

    async def revoke_lease(self, lease: int) -> None:
        await trio.lowlevel.checkpoint()
        self.end(lease)

    def end(self, lease: int) -> None:
        self.content.ends_s.pop(lease, None)
        keys = self.content.keys_of.pop(lease, {})
        if keys:
            self.write(dict.fromkeys(keys, REMOVED), NO_LEASE)

    def end_leases(self) -> None:
        now_s = self.env.clock.monotonic()
        for lease in [lease for lease, end_s in self.content.ends_s.items() if end_s <= now_s]:
            self.end(lease)

    async def end_leases_in_time(self) -> None:
        while True:
            self.end_leases()
            await self.env.clock.sleep(0.1)

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
