"""The catalog's entries as two brokers of a cluster write them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio
from simulated_time import simulated

from linn.core.cluster.catalog_store import CatalogStore
from linn.core.env.env import Spawn
from linn.core.errors.metadata import MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.metadata.embedded import EmbeddedMetadata
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, Changes
from linn.testing.sim_env import SimEnv


def no_tasks(task: Callable[[], Awaitable[None]]) -> None:
    raise AssertionError("only leases need tasks")


class AnswerlessStore(EmbeddedMetadata):
    """A store that loses its answer to some writes, which it has made, or makes later, or never."""

    lost = ""
    """The fate of the next write: made, late or never."""

    def __init__(self, env: SimEnv, spawn: Spawn) -> None:
        super().__init__(env.disk, "data", env.clock, spawn)
        env.disk.make_dir("data")
        self._late: tuple[Mapping[str, Any], Mapping[str, int]] | None = None

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        lost, self.lost = self.lost, ""
        if lost == "late":
            self._late = changes, conditions
        elif lost != "never":
            revision = await super().put_all(changes, conditions, lease)
            if not lost:
                return revision
        raise MetadataUnknown("there was no answer")

    async def make_late(self) -> None:
        """Make the write that was held back."""
        assert self._late is not None
        await super().put_all(*self._late)


async def pair(env: SimEnv, spawn: Spawn = no_tasks) -> tuple[AnswerlessStore, CatalogStore, CatalogStore]:
    """A store, and two brokers that have read its catalog."""
    store = AnswerlessStore(env, spawn)
    brokers = [CatalogStore(store, env.clock, env.rng) for _ in range(2)]
    for broker in brokers:
        await broker.load()
    return store, brokers[0], brokers[1]


async def told(store: EmbeddedMetadata, broker: CatalogStore) -> dict[str, Any]:
    """Let a broker follow what the store has; what was new to it."""
    broker.note_snapshot((await store.load()).entries)
    taken = broker.take({})
    broker.followed()
    return {key: stored and stored.value for key, stored in taken.items()}


@simulated
async def test_a_change_of_one_key_conflicts_with_an_unknown_change_of_another(env: SimEnv) -> None:
    store, first, second = await pair(env)
    await first.put_all({"exchanges/e": REMOVED}, {})
    with pytest.raises(RevisionConflict):
        await second.put_all({"topics/t": "bound to e"}, {"topics/t": ABSENT})
    assert await told(store, second) == {}
    await second.put_all({"topics/t": "checked again"}, {"topics/t": ABSENT})
    assert await told(store, first) == {"topics/t": "checked again"}


@simulated
async def test_the_own_keys_of_the_cluster_are_no_part_of_the_catalog(env: SimEnv) -> None:
    store, first, _ = await pair(env)
    await store.put_all({"nodes/1": {}, "users/ann": {}}, {})
    assert list((await first.load()).entries) == ["users/ann"]
    assert await told(store, first) == {"users/ann": {}}


@simulated
async def test_a_write_without_an_answer_is_known_by_its_tag(env: SimEnv) -> None:
    store, first, second = await pair(env)
    store.lost = "made"
    revision = await first.put_all({"topics/t": 1}, {"topics/t": ABSENT})
    assert (await store.load()).entries["topics/t"] == (revision, 1)
    await first.put_all({"topics/t": 2}, {"topics/t": revision})
    assert await told(store, second) == {"topics/t": 2}


@pytest.mark.parametrize("fate", ["late", "never"])
@simulated
async def test_a_write_that_was_not_made_never_will_be(env: SimEnv, fate: str) -> None:
    store, first, second = await pair(env)
    store.lost = fate
    with pytest.raises(MetadataUnavailable, match="the change was not made: there was no answer"):
        await first.put_all({"topics/t": 1}, {})
    if fate == "late":
        with pytest.raises(RevisionConflict):
            await store.make_late()
    assert "topics/t" not in (await store.load()).entries
    await first.put_all({"topics/t": 2}, {})
    assert await told(store, second) == {"topics/t": 2}


@pytest.mark.parametrize("made", [True, False])
@simulated
async def test_a_write_without_an_answer_before_other_changes_is_known_by_its_values(env: SimEnv, made: bool) -> None:
    store, first, second = await pair(env)

    async def change_meanwhile() -> None:
        await trio.sleep(0.1)
        await told(store, second)
        await second.put_all({"topics/other": 1}, {})

    store.lost = "made" if made else "never"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(change_meanwhile)
        if made:
            await first.put_all({"topics/t": {"a": [1]}, "topics/u": REMOVED}, {})
        else:
            with pytest.raises(MetadataUnknown):
                await first.put_all({"topics/t": {"a": [1]}, "topics/u": REMOVED}, {})
    with pytest.raises(RevisionConflict):
        await first.put_all({"topics/t": 2}, {})  # It has not followed the other broker.
    await told(store, first)
    await first.put_all({"topics/t": 2}, {})


@simulated
async def test_what_a_broker_has_is_not_new_to_it_and_what_is_missing_in_a_snapshot_is_gone(env: SimEnv) -> None:
    store, first, _ = await pair(env)
    revision = await first.put_all({"topics/t": 1, "users/u": 2}, {})
    known = {"topics/t": revision, "users/u": revision, "roles/r": 1}
    first.note_snapshot((await store.load()).entries)
    assert first.take(known) == {"roles/r": None}
    later = await store.put_all({"topics/t": REMOVED}, {})
    first.note_changes(Changes(later, {"topics/t": None, "users/u": (await store.load()).entries["users/u"]}).entries)
    assert first.take(known) == {"topics/t": None}
    assert first.take(known) == {}


@simulated
async def test_a_write_under_a_lease_is_checked_against_the_catalog_and_leaves_its_key_alone(env: SimEnv) -> None:
    async with trio.open_nursery() as nursery:
        store, first, second = await pair(env, nursery.start_soon)
        lease = await store.grant_lease(60)
        await first.put_all({"exchanges/e": 1}, {})
        with pytest.raises(RevisionConflict):
            await second.put_all({"topics/t": {"id": "1"}}, {"topics/t": ABSENT}, lease)
        await told(store, second)
        before = (await store.load()).entries["catalog"]
        await second.put_all({"topics/t": {"id": "1"}}, {"topics/t": ABSENT}, lease)
        await second.put_all({"topics/u": {"id": "2"}}, {"topics/u": ABSENT}, lease)
        await store.revoke_lease(lease)
        assert (await store.load()).entries["catalog"] == before
        await first.put_all({"topics/v": 1}, {"topics/v": ABSENT})
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lost", ["made", "late", "never"])
@simulated
async def test_the_outcome_of_a_write_under_a_lease_is_found_out(env: SimEnv, lost: str) -> None:
    async with trio.open_nursery() as nursery:
        store, first, _ = await pair(env, nursery.start_soon)
        lease = await store.grant_lease(60)
        store.lost = lost
        change = {"topics/t": {"id": "1"}}
        if lost == "made":
            revision = await first.put_all(change, {"topics/t": ABSENT}, lease)
            assert (await store.load()).entries["topics/t"].revision == revision
        else:
            with pytest.raises(MetadataUnavailable):
                await first.put_all(change, {"topics/t": ABSENT}, lease)
        if lost == "late":
            with pytest.raises(RevisionConflict):
                await store.make_late()
        assert ("topics/t" in (await store.load()).entries) == (lost == "made")
        nursery.cancel_scope.cancel()


@simulated
async def test_a_session_that_has_ended_is_told_as_one_to_wait_for(env: SimEnv) -> None:
    _, first, _ = await pair(env)
    with pytest.raises(MetadataUnavailable, match="another one begins"):
        await first.put_all({"topics/t": 1}, {}, 7)
