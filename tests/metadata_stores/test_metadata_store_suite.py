"""The conformance suite of metadata stores accepts a store that keeps its promises, and notices each broken one."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
from plain_store import Content, PlainStore, PlainWatch

from linn.core.errors.metadata import RevisionConflict
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, Changes, Snapshot, Stored
from linn.testing.deterministic import run_simulation
from linn.testing.metadata_stores import MetadataStoreConformance, MetadataStoreHarness


def harness_of(kind: type[PlainStore]) -> MetadataStoreHarness:
    content = Content()
    return MetadataStoreHarness(partial(kind, content), partial(run_simulation, 0))


class TestPlain(MetadataStoreConformance):
    @pytest.fixture
    def harness(self) -> MetadataStoreHarness:
        return harness_of(PlainStore)


# --- the suite notices what is broken --------------------------------------------------------------------------------


class Trusting(PlainStore):
    """Compares nothing."""

    def check_conditions(self, conditions: Mapping[str, int]) -> None:
        pass


class TrustingAbsence(PlainStore):
    def check_conditions(self, conditions: Mapping[str, int]) -> None:
        super().check_conditions({key: revision for key, revision in conditions.items() if revision != ABSENT})


class FirstOnly(PlainStore):
    def check_conditions(self, conditions: Mapping[str, int]) -> None:
        super().check_conditions(dict(list(conditions.items())[:1]))


class ConditionsOfChanges(PlainStore):
    """Compares keys that it changes, and no others."""

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        return await super().put_all(changes, {k: r for k, r in conditions.items() if k in changes}, lease)


class AtMost(PlainStore):
    """Takes a condition for a bound."""

    def check_conditions(self, conditions: Mapping[str, int]) -> None:
        for key, revision in conditions.items():
            stored = self.content.entries.get(key)
            if (stored.revision if stored is not None else ABSENT) > revision:
                raise RevisionConflict(key)


class Pausing(PlainStore):
    """Lets others write between the comparison and the write."""

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        self.end_leases()
        self.check_conditions(conditions)
        return await super().put_all(changes, {}, lease)


class Piecewise(PlainStore):
    """Writes one key after the other."""

    def write(self, changes: Mapping[str, Any], lease: int) -> int:
        revision = self.content.revision
        for key, value in changes.items():
            revision = super().write({key: value}, lease)
        return revision


class Early(PlainStore):
    """Writes, and compares then."""

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        before = dict(self.content.entries)
        revision = await super().put_all(changes, {}, lease)
        for key, wanted in conditions.items():
            if (before[key].revision if key in before else ABSENT) != wanted:
                raise RevisionConflict(key)
        return revision


class PerKey(PlainStore):
    """Counts the writes of each key by itself."""

    def write(self, changes: Mapping[str, Any], lease: int) -> int:
        revision = super().write(changes, lease)
        for key in changes:
            if key in self.content.entries:
                count = getattr(self.content, "counts", {}).get(key, 0) + 1
                self.content.__dict__.setdefault("counts", {})[key] = count
                self.content.entries[key] = Stored(count, self.content.entries[key].value)
        return revision


class Cached(PlainStore):
    """Reads what it has read before."""

    async def load(self) -> Snapshot:
        self.loaded = getattr(self, "loaded", None) or await super().load()
        return self.loaded


class SameObject(PlainStore):
    def kept(self, value: Any) -> Any:
        return value if isinstance(value, dict) else super().kept(value)


class NullIsRemoved(PlainStore):
    def kept(self, value: Any) -> Any:
        return REMOVED if value is None else super().kept(value)


class Folders(PlainStore):
    """Removes what is below a key together with it."""

    def write(self, changes: Mapping[str, Any], lease: int) -> int:
        below = [k for k in self.content.entries for gone in changes if changes[gone] is REMOVED and k.startswith(gone)]
        return super().write({**changes, **{key: REMOVED for key in below if key not in changes}}, lease)


class Limitless(PlainStore):
    def check_limits(self, changes: Mapping[str, Any], conditions: Mapping[str, int]) -> None:
        pass


class LimitsChangesAlone(PlainStore):
    def check_limits(self, changes: Mapping[str, Any], conditions: Mapping[str, int]) -> None:
        super().check_limits(changes, {})


class Cutting(PlainStore):
    def kept(self, value: Any) -> Any:
        return value[: 1 << 20] if isinstance(value, str) else super().kept(value)


class Gap(PlainStore):
    """Reads all keys some time before its watch begins."""

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[PlainWatch]:
        snapshot = self.snapshot()
        await trio.sleep(0)
        async with super().watch() as watch:
            watch.snapshot = snapshot
            yield watch


class Overlap(PlainStore):
    """Begins its watch some time before it reads all keys."""

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[PlainWatch]:
        async with super().watch() as watch:
            await trio.sleep(0)
            watch.snapshot = self.snapshot()
            yield watch


class SplitTelling(PlainStore):
    """Tells the keys of one write one after the other."""

    def tell(self, changes: Changes) -> None:
        for key, stored in changes.entries.items():
            super().tell(Changes(changes.revision, {key: stored}))


class SilentRemoval(PlainStore):
    def tell(self, changes: Changes) -> None:
        super().tell(Changes(changes.revision, {k: stored for k, stored in changes.entries.items() if stored}))


class OnlyOne(PlainStore):
    """Tells the watcher that came last."""

    def tell(self, changes: Changes) -> None:
        for watch in self.content.watches[-1:]:
            watch.tell(changes)


class ShortMemory(PlainStore):
    """Drops changes that a watcher does not fetch."""

    def tell(self, changes: Changes) -> None:
        super().tell(changes)
        for watch in self.content.watches:
            while len(watch.waiting) > 16:
                watch.waiting.popleft()


class Backwards(PlainStore):
    """Tells what was waiting last first."""

    def tell(self, changes: Changes) -> None:
        for watch in self.content.watches:
            watch.waiting.appendleft(changes)
            watch.changed.unpark_all()


class Twice(PlainStore):
    def tell(self, changes: Changes) -> None:
        for _ in range(2):
            super().tell(changes)


class Impatient(PlainStore):
    """Loses a change when a wait for it is cancelled."""

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[PlainWatch]:
        async with super().watch() as watch:
            fetch = watch.next

            async def lossy() -> Changes:
                changes = await fetch()
                await trio.lowlevel.checkpoint()
                return changes

            watch.next = lossy  # type: ignore[method-assign]
            yield watch


class TellsRefused(PlainStore):
    """Tells what it refuses."""

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        try:
            return await super().put_all(changes, conditions, lease)
        except RevisionConflict:
            self.content.revision += 1
            self.tell(Changes(self.content.revision, {k: Stored(self.content.revision, v) for k, v in changes.items()}))
            raise


class TakesEnded(PlainStore):
    """Writes under a lease that has ended."""

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        return await super().put_all(changes, conditions, lease if lease in self.content.ends_s else NO_LEASE)


class Reviving(PlainStore):
    """Renews a lease that has ended."""

    async def renew_lease(self, lease: int) -> None:
        if lease in self.content.ends_s:
            await super().renew_lease(lease)


class Forgetful(PlainStore):
    async def renew_lease(self, lease: int) -> None:
        self.check_lease(lease)


class Hasty(PlainStore):
    async def grant_lease(self, ttl_s: float) -> int:
        return await super().grant_lease(ttl_s / 2)


class Endless(PlainStore):
    async def grant_lease(self, ttl_s: float) -> int:
        return await super().grant_lease(ttl_s * 1000)


class Keeping(PlainStore):
    """Ends a lease and keeps its keys."""

    def end(self, lease: int) -> None:
        self.content.ends_s.pop(lease, None)


class SilentEnd(PlainStore):
    """Removes the keys of a lease and tells nobody."""

    def end(self, lease: int) -> None:
        watches, self.content.watches = self.content.watches, []
        super().end(lease)
        self.content.watches = watches


class Clinging(PlainStore):
    """Removes keys with any lease under which they were ever written."""

    def forget_lease_of(self, key: str) -> None:
        pass


class ClingingToRemoved(PlainStore):
    def forget_lease_of(self, key: str) -> None:
        if key in self.content.entries and key != "removed":
            super().forget_lease_of(key)


class OneLease(PlainStore):
    """Gives everybody the same lease."""

    async def grant_lease(self, ttl_s: float) -> int:
        return await super().grant_lease(ttl_s) if not self.content.ends_s else self.content.lease_last


class RefusesRevoked(PlainStore):
    async def revoke_lease(self, lease: int) -> None:
        self.check_lease(lease)
        await super().revoke_lease(lease)


class Volatile(PlainStore):
    """Keeps values as long as it is open."""

    async def aclose(self) -> None:
        self.content.entries.clear()


class Used(PlainStore):
    """Has a key from the start."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        return found._replace(entries={"used": Stored(1, True), **found.entries})


class StrictRemoval(PlainStore):
    """Refuses to remove what is not there."""

    def write(self, changes: Mapping[str, Any], lease: int) -> int:
        if any(value is REMOVED and key not in self.content.entries for key, value in changes.items()):
            raise RevisionConflict("there is no such key")
        return super().write(changes, lease)


class TextOfStructs(PlainStore):
    """Writes structs as text."""

    def kept(self, value: Any) -> Any:
        return repr(value) if isinstance(value, msgspec.Struct) else super().kept(value)


class Bare(PlainStore):
    """Begins a watch without the keys that are there."""

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[PlainWatch]:
        async with super().watch() as watch:
            watch.snapshot = Snapshot(watch.snapshot.revision, {})
            yield watch


SUITE = {name: test for name, test in vars(MetadataStoreConformance).items() if name.startswith("test_")}
BROKEN = [
    kind for kind in list(globals().values())
    if inspect.isclass(kind) and issubclass(kind, PlainStore) and kind is not PlainStore
]  # fmt: skip


_failures: dict[type[PlainStore], dict[str, BaseException]] = {}


def failures_of(kind: type[PlainStore]) -> dict[str, BaseException]:
    """Run the suite on a store, once; returns the errors by test."""
    if kind in _failures:
        return _failures[kind]
    found = dict[str, BaseException]()
    for name, test in SUITE.items():
        try:
            test(MetadataStoreConformance(), harness_of(kind))
        except (Exception, BaseExceptionGroup, pytest.fail.Exception) as error:
            found[name] = error
    _failures[kind] = found
    return found


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_store_is_noticed(broken: type[PlainStore]) -> None:
    assert failures_of(broken)


def test_each_test_notices_a_broken_store() -> None:
    noticed = {name for broken in BROKEN for name in failures_of(broken)}
    assert [name for name in SUITE if name not in noticed] == []
