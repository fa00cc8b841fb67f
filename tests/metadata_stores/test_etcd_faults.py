"""Real etcd that is killed, stopped, compacted and emptied while writers and watchers use it.

What a writer was told stays; a write of unknown outcome was made once or not at all; what watchers know at a revision
is what was written by then, whatever was lost on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from etcd_process import Etcd, running_etcd
from test_etcd_conformance import make_store

from linn.core.env.real.env import RealEnv
from linn.core.errors.metadata import (
    LeaseLost,
    MetadataError,
    MetadataUnavailable,
    MetadataUnknown,
    RevisionConflict,
)
from linn.core.metadata.store import ABSENT, MetadataStore, Snapshot
from linn.metadata_stores.etcd.client import REQUEST_S

KEYS = 4
"""Counters of each writer."""
WAIT_S_MAX = 60.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path) as etcd:
        yield etcd


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Etcd]:
    with running_etcd(tmp_path, 3) as etcd:
        yield etcd


@asynccontextmanager
async def opened(etcd: Etcd, cluster: str = "faults") -> AsyncIterator[MetadataStore]:
    store = make_store(etcd, cluster, RealEnv())
    async with aclosing(store):
        with trio.fail_after(WAIT_S_MAX):
            yield store


@dataclass
class Writer:
    """Counts up keys of its own by compare-and-swap, and knows what each may be."""

    name: str
    store: MetadataStore
    told: dict[str, int] = field(default_factory=dict)
    """The last count of each key that etcd has confirmed."""
    unknown: int = 0
    failed: int = 0
    written: int = 0
    writes: list[tuple[int, str, int]] = field(default_factory=list)
    """Revision, key and count of each confirmed write."""

    async def run(self) -> None:
        """Write for ever; after an unknown outcome it reads first, as the port says."""
        seen: dict[str, tuple[int, int]] | None = {}
        turn = 0
        while True:
            try:
                if seen is None:
                    seen = self._counts(await self.store.load())
                key = f"{self.name}/{turn % KEYS}"
                count, revision = seen.get(key, (0, ABSENT))
                written = await self.store.put_all({key: count + 1}, {key: revision})
            except MetadataUnknown:
                self.unknown += 1
                seen = None
            except RevisionConflict:
                assert self.unknown, "somebody else writes these keys"  # That write has been made after all.
                seen = None
            except MetadataError:
                self.failed += 1
                await trio.sleep(0.05)
            else:
                assert not self.writes or written > self.writes[-1][0]
                self.writes.append((written, key, count + 1))
                seen[key] = (count + 1, written)
                self.told[key] = count + 1
                self.written += 1
                turn += 1

    def _counts(self, snapshot: Snapshot) -> dict[str, tuple[int, int]]:
        found = {}
        for key, stored in snapshot.entries.items():
            if key.startswith(f"{self.name}/"):
                found[key] = stored.value, stored.revision
                # Nothing that was confirmed is lost, and an unknown write was made once at most.
                assert self.told.get(key, 0) <= stored.value <= self.told.get(key, 0) + 1, key
                self.told[key] = stored.value
        assert self.told.keys() <= found.keys()
        return found

    async def wait_written(self, more: int) -> None:
        """Wait until it has written so many more."""
        end = self.written + more
        while self.written < end:
            await trio.sleep(0.01)


@dataclass
class Reader:
    """Follows all keys by one watch after the other."""

    store: MetadataStore
    known: dict[str, Any] = field(default_factory=dict)
    revision: int = 0
    lost: int = 0
    states: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """The keys that it knew, by revision."""

    async def run(self) -> None:
        while True:
            try:
                async with self.store.watch() as watch:
                    self._begin(watch.snapshot)
                    while True:
                        changes = await watch.next()
                        assert changes.revision > self.revision
                        assert all(changes.entries.values())
                        self._know(changes.revision, {key: it.value for key, it in changes.entries.items() if it})
            except MetadataUnavailable:
                self.lost += 1
                await trio.sleep(0.05)

    def _begin(self, snapshot: Snapshot) -> None:
        assert snapshot.revision >= self.revision
        found = {key: stored.value for key, stored in snapshot.entries.items()}
        assert self.known.keys() <= found.keys()
        self._know(snapshot.revision, found)

    def _know(self, revision: int, changed: dict[str, Any]) -> None:
        assert all(self.known.get(key, 0) <= value for key, value in changed.items())
        self.known, self.revision = {**self.known, **changed}, revision
        self.states.append((revision, self.known))

    def check(self, writer: Writer) -> None:
        """Check that it knew each write of a writer from its revision on, and not before."""
        for revision, key, count in writer.writes:
            place = bisect_left(self.states, revision, key=lambda state: state[0])
            assert self.states[place][1][key] >= count, f"{key}: {count} is missed at {self.states[place][0]}"
            assert place == 0 or self.states[place - 1][1].get(key, 0) < count

    async def wait_told(self, writers: list[Writer]) -> None:
        """Wait until it knows all that the writers were told."""
        expected = {key: count for writer in writers for key, count in writer.told.items()}
        while any(self.known.get(key, 0) < count for key, count in expected.items()):
            await trio.sleep(0.01)
        # The last write of each was cut off, and may have been made after all.
        assert all(self.known[key] <= count + 1 for key, count in expected.items())


@asynccontextmanager
async def busy(etcd: Etcd) -> AsyncIterator[tuple[list[Writer], Reader]]:
    """Two writers and a reader at work; at the end the reader knows all that they were told."""
    stores = [make_store(etcd, "faults", RealEnv()) for _ in range(3)]
    writers, reader = [Writer(f"writer-{n}", stores[n]) for n in range(2)], Reader(stores[2])
    async with AsyncExitStack() as stack:
        for store in stores:
            stack.push_async_callback(store.aclose)
        stack.enter_context(trio.fail_after(WAIT_S_MAX))
        async with trio.open_nursery() as reading:
            reading.start_soon(reader.run)
            async with trio.open_nursery() as writing:
                for writer in writers:
                    writing.start_soon(writer.run)
                for writer in writers:
                    await writer.wait_written(20)
                yield writers, reader
                for writer in writers:
                    await writer.wait_written(20)
                writing.cancel_scope.cancel()
            for writer in writers:
                writer._counts(await writer.store.load())
            await reader.wait_told(writers)
            for writer in writers:
                reader.check(writer)
            reading.cancel_scope.cancel()


async def test_etcd_is_killed_and_started_again_under_load(etcd: Etcd) -> None:
    async with busy(etcd) as (writers, reader):
        for _ in range(3):
            etcd.members[0].kill()
            await trio.sleep(0.2)
            await trio.to_thread.run_sync(etcd.start)
            for writer in writers:
                await writer.wait_written(20)
    assert reader.lost >= 3
    assert sum(writer.failed + writer.unknown for writer in writers) > 0


async def test_etcd_is_stopped_for_a_while_under_load(etcd: Etcd) -> None:
    async with busy(etcd) as (writers, _):
        etcd.members[0].pause()
        await trio.sleep(REQUEST_S + 1)
        etcd.members[0].resume()
        for writer in writers:
            await writer.wait_written(20)
    assert all(writer.unknown for writer in writers)


async def test_a_request_to_a_stopped_etcd_ends_in_time(etcd: Etcd) -> None:
    async with opened(etcd) as store:
        lease = await store.grant_lease(60)
        etcd.members[0].pause()
        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for ask, kind in (
                (store.load, MetadataUnavailable),
                (lambda: store.put_all({"a": 1}, {}), MetadataUnknown),
                (lambda: store.renew_lease(lease), MetadataUnavailable),
                (lambda: store.revoke_lease(lease), MetadataUnknown),
            ):
                nursery.start_soon(_fails_with, ask, kind)
        assert trio.current_time() - begun_s < REQUEST_S + 2
        etcd.members[0].resume()


async def _fails_with(ask: Any, kind: type[MetadataError]) -> None:
    with pytest.raises(kind) as caught:
        await ask()
    assert type(caught.value) is kind


async def test_the_leader_of_three_is_killed_under_load(three: Etcd) -> None:
    async with busy(three) as (writers, _):
        leader = await trio.to_thread.run_sync(three.leader)
        leader.kill()
        for writer in writers:
            await writer.wait_written(20)
        await trio.to_thread.run_sync(three.start)
        for writer in writers:
            await writer.wait_written(20)


async def test_any_of_three_is_stopped_under_load(three: Etcd) -> None:
    async with busy(three) as (writers, _):
        for member in three.members:
            member.pause()
            for writer in writers:
                await writer.wait_written(5)
            member.resume()
            await trio.to_thread.run_sync(three.wait_ready, member)


async def test_a_lease_outlives_the_leader_of_etcd(three: Etcd) -> None:
    async with opened(three) as store:
        lease = await store.grant_lease(3.0)
        await store.put_all({"held": 1}, {}, lease)
        leader = await trio.to_thread.run_sync(three.leader)
        leader.kill()
        end_s = trio.current_time() + 6
        while trio.current_time() < end_s:
            with suppress(MetadataUnavailable):
                await store.renew_lease(lease)
            await trio.sleep(0.5)
        assert list((await store.load()).entries) == ["held"]


async def test_without_a_majority_nothing_is_written_and_nothing_is_read(three: Etcd) -> None:
    async with opened(three) as store:
        await store.put_all({"a": 1}, {})
        for member in three.members[1:]:
            member.kill()
        for ask in (store.load, lambda: store.put_all({"a": 2}, {})):
            with pytest.raises((MetadataUnavailable, MetadataUnknown)):
                await ask()
        await trio.to_thread.run_sync(three.start)
        assert (await store.load()).entries["a"].value in (1, 2)


async def test_a_watch_that_was_compacted_away_is_lost_and_the_next_one_has_everything(etcd: Etcd) -> None:
    async with opened(etcd) as store:
        async with store.watch() as watch:
            for number in range(10):
                revision = await store.put_all({"a": number}, {})
            etcd.members[0].ask("/v3/kv/compaction", {"revision": str(revision), "physical": True})
            with pytest.raises(MetadataUnavailable, match="no longer there"):
                await watch.next()
        async with store.watch() as watch:
            assert watch.snapshot.entries["a"].value == 9
            revision = await store.put_all({"a": 10}, {})
            assert (await watch.next()).revision == revision


async def test_all_leases_may_go_at_once(etcd: Etcd) -> None:
    async with opened(etcd) as store, opened(etcd) as other, other.watch() as watch:
        leases = [await store.grant_lease(60) for _ in range(20)]
        for number, lease in enumerate(leases):
            await store.put_all({f"sessions/{number}": number}, {}, lease)
        found = etcd.members[0].ask("/v3/lease/leases", {})["leases"]
        for lease in found:
            etcd.members[0].ask("/v3/lease/revoke", lease)
        gone = set[str]()
        while len(gone) < 20:
            gone |= {key for key, stored in (await watch.next()).entries.items() if stored is None}
        for lease in leases:
            with pytest.raises(LeaseLost):
                await store.renew_lease(lease)


async def test_an_etcd_that_was_emptied_is_noticed_and_not_used(etcd: Etcd) -> None:
    async with opened(etcd) as store, store.watch() as watch:
        for number in range(10):
            await store.put_all({"a": number}, {})
        etcd.members[0].kill()
        etcd.members[0].empty()
        await trio.to_thread.run_sync(etcd.start)
        with suppress(MetadataUnavailable):
            while True:
                await watch.next()
        with pytest.raises(MetadataError, match="it has lost data") as caught:
            await store.load()
        assert not caught.value.retriable
    async with opened(etcd) as fresh:
        assert dict((await fresh.load()).entries) == {}


async def test_keys_of_others_are_not_seen_and_damaged_ones_are_an_error(etcd: Etcd) -> None:
    async with opened(etcd, "one") as one, opened(etcd, "one-more") as other, one.watch() as watch:
        await other.put_all({"a": 1}, {})
        etcd.members[0].ask("/v3/kv/put", {"key": "Zm9v", "value": "YmFy"})
        assert dict((await one.load()).entries) == {}
        revision = await one.put_all({"b": 1}, {})
        assert (await watch.next()).revision == revision
        etcd.members[0].ask("/v3/kv/put", {"key": "L2xpbm4vb25lL3g=", "value": "YmFy"})  # /linn/one/x
        with pytest.raises(MetadataUnavailable, match="no JSON"):
            await watch.next()
        with pytest.raises(MetadataError, match="no JSON"):
            await one.load()
