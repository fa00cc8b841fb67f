"""The conformance suite of metadata stores: `MetadataStoreConformance`, to subclass.

    class TestRegistry(MetadataStoreConformance):
        @pytest.fixture
        def harness(self) -> MetadataStoreHarness:
            registry = Registry()
            return MetadataStoreHarness(lambda env: RegistryStore(registry, env))

Law: a test does not know where the values are; it checks the promises on which safety relies. Changes may come one by
one or several writes together, so a test compares the knowledge of a watcher with the writes up to its revision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import trio

from linn.core.env.env import Env
from linn.core.env.real.env import RealEnv
from linn.core.errors.metadata import LeaseLost, RevisionConflict
from linn.core.errors.tree import LimitExceeded
from linn.core.metadata.store import ABSENT, REMOVED, Changes, MetadataStore, Snapshot, Stored, Watch
from linn.testing.metadata_history import Promise, history_of, read_until, read_until_gone, values_of

SCENARIO_S_MAX = 120.0
"""Time after which a test counts as stuck: many times what a store takes on a busy machine."""
CHANGES_TRIED_MAX = 10_000
"""A store whose `changes_max` is higher is not asked to refuse one more."""
TRIES_MAX = 500
"""Attempts of a writer among six, of which one wins each time."""
_KEYS = (
    "plain",
    "a/b",
    "a",
    "a/b/c",
    "a/b0",
    "a/",
    "a//b",
    "/a",
    "..",
    "../a",
    "a b",
    "a%2Fb",
    'quote"',
    "back\\slash",
    "star*",
    "line\nfeed",
    "\u00fcnicode/\u65e5\u672c/\U0001f680",
    "~",
    "\U0010ffff",
    "x" * 600,
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1 << 62,
    0.1,
    "",
    "\u00fcnicode \u65e5\u672c \U0001f680 \x00 \x7f \u2028 \\ \" '",
    [],
    {},
    [None, [[], {}], {"": {"a/b": [1, 2.5, "x"]}}],
    {"null": None, "value": {"revision": 7}, "lease": "1"},
    "x" * (100 << 10),
    {str(number): [number] * 10 for number in range(1000)},
)


class _Address(msgspec.Struct, frozen=True):
    host: str
    port: int | None = None


class _Registration(msgspec.Struct, frozen=True):
    addresses: tuple[_Address, ...]
    features: Mapping[str, int]


def run_in_real_time(scenario: Callable[[Env], Awaitable[None]]) -> None:
    """Run a scenario on this machine, without virtual time."""
    trio.run(scenario, RealEnv())


@dataclass(frozen=True)
class MetadataStoreHarness:
    """Maker of stores, and their times. Each test has a harness of its own, whose stores are empty at first."""

    make: Callable[[Env], MetadataStore]
    """Make a store. All stores that it makes have the same content; it may return the same store again until that is
    closed. The suite closes each."""
    run: Callable[[Callable[[Env], Awaitable[None]]], object] = run_in_real_time
    """Run a scenario: for a simulated store `partial(run_simulation, 0)`."""
    ttl_s: float = 1.0
    """The time to live of leases in the tests. Where time is real, renewals are that much late on a busy machine."""
    late_s: float = 3.0
    """Time after its ttl within which the end of a lease must be seen."""


class Stores:
    """Stores of one scenario, which are closed at its end."""

    def __init__(self, harness: MetadataStoreHarness, env: Env, stack: AsyncExitStack) -> None:
        self.harness = harness
        self.env = env
        self._stack = stack

    def make(self) -> MetadataStore:
        """Make a store."""
        store = self.harness.make(self.env)
        self._stack.push_async_callback(store.aclose)
        return store

    async def watched(self, store: MetadataStore) -> Watch:
        """Open a watch until the end of the scenario."""
        return await self._stack.enter_async_context(store.watch())


def _scenario(test: Callable[[Any, Stores], Awaitable[None]]) -> Callable[[Any, MetadataStoreHarness], None]:
    """Make a test that runs a coroutine function with `Stores` in the harness's time."""

    def run(self: Any, harness: MetadataStoreHarness) -> None:
        async def scenario(env: Env) -> None:
            with trio.fail_after(SCENARIO_S_MAX):
                async with AsyncExitStack() as stack:
                    await test(self, Stores(harness, env, stack))

        harness.run(scenario)

    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    return run


class MetadataStoreConformance:
    """The promises of `linn.core.metadata.store`. A subclass gives the fixture `harness`."""

    # --- values and revisions ----------------------------------------------------------------------------------------

    @_scenario
    async def test_it_is_empty_at_first(self, stores: Stores) -> None:
        snapshot = await stores.make().load()
        assert dict(snapshot.entries) == {}
        assert snapshot.revision >= 0

    @_scenario
    async def test_what_is_written_is_read_through_any_store(self, stores: Stores) -> None:
        writer, reader = stores.make(), stores.make()
        for number in range(20):
            revision = await writer.put_all({"key": number}, {})
            for store in (reader, writer):
                snapshot = await store.load()
                assert dict(snapshot.entries) == {"key": Stored(revision, number)}
                assert snapshot.revision >= revision

    @_scenario
    async def test_revisions_of_the_store_grow_with_every_write(self, stores: Stores) -> None:
        both = stores.make(), stores.make()
        revisions = [(await both[0].load()).revision]
        for number in range(20):
            revisions.append(await both[number % 2].put_all({f"key-{number % 3}": number}, {}))
        revisions.append(await both[1].put_all({"key-0": REMOVED}, {}))
        assert all(after > before for before, after in pairwise(revisions)), revisions
        assert (await both[0].load()).revision >= revisions[-1]

    @_scenario
    async def test_keys_written_in_one_step_have_one_revision_and_others_keep_theirs(self, stores: Stores) -> None:
        store = stores.make()
        first = await store.put_all({"a": 1, "b": 2, "c": 3}, {})
        second = await store.put_all({"b": 4, "d": 5}, {})
        found = await store.load()
        assert dict(found.entries) == {
            "a": Stored(first, 1), "b": Stored(second, 4), "c": Stored(first, 3), "d": Stored(second, 5),
        }  # fmt: skip

    @_scenario
    async def test_a_removed_key_is_gone_and_comes_back_with_a_new_revision(self, stores: Stores) -> None:
        store = stores.make()
        first = await store.put_all({"a": 1, "b": 2}, {})
        removed = await store.put_all({"a": REMOVED, "c": 3}, {"a": first})
        assert values_of((await store.load()).entries) == {"b": 2, "c": 3}
        again = await store.put_all({"a": 1}, {"a": ABSENT})
        assert again > removed > first

    @_scenario
    async def test_removing_what_is_not_there_is_no_error(self, stores: Stores) -> None:
        store = stores.make()
        await store.put_all({"a": 1}, {})
        await store.put_all({"nothing": REMOVED}, {})
        await store.put_all({"nothing": REMOVED, "b": 2}, {"nothing": ABSENT})
        assert values_of((await store.load()).entries) == {"a": 1, "b": 2}

    @_scenario
    async def test_any_json_is_read_as_it_was_written(self, stores: Stores) -> None:
        store, other = stores.make(), stores.make()
        watch = await stores.watched(other)
        for number, value in enumerate(_VALUES):
            revision = await store.put_all({f"value-{number}": value}, {})
            (changes,) = await read_until(watch, revision)
            assert dict(changes.entries) == {f"value-{number}": Stored(revision, value)}
        assert values_of((await other.load()).entries) == {f"value-{n}": value for n, value in enumerate(_VALUES)}

    @_scenario
    async def test_structs_are_written_as_objects(self, stores: Stores) -> None:
        store = stores.make()
        await store.put_all({"node": _Registration((_Address("a", 1), _Address("b")), {"peer": 3})}, {})
        expected = {"addresses": [{"host": "a", "port": 1}, {"host": "b", "port": None}], "features": {"peer": 3}}
        for reader in (store, stores.make()):
            assert values_of((await reader.load()).entries) == {"node": expected}

    @_scenario
    async def test_a_value_that_its_writer_changes_later_stays_as_it_was(self, stores: Stores) -> None:
        store, value = stores.make(), {"list": [1]}
        await store.put_all({"key": value}, {})
        value["list"].append(2)
        assert values_of((await store.load()).entries) == {"key": {"list": [1]}}

    @_scenario
    async def test_any_key_is_a_key_of_its_own(self, stores: Stores) -> None:
        store, other = stores.make(), stores.make()
        history = await history_of(store)
        watch = await stores.watched(other)
        for number, key in enumerate(_KEYS):
            await history.put(store, {key: number})
        revision = await history.put(store, dict.fromkeys(_KEYS[::2], REMOVED))
        assert values_of((await other.load()).entries) == {key: n for n, key in enumerate(_KEYS) if n % 2}
        history.check(watch.snapshot, await read_until(watch, revision))

    # --- conditions --------------------------------------------------------------------------------------------------

    @_scenario
    async def test_a_write_whose_conditions_hold_is_made(self, stores: Stores) -> None:
        store = stores.make()
        a = await store.put_all({"a": 1}, {"a": ABSENT})
        b = await store.put_all({"b": 1}, {"b": ABSENT, "a": a})
        await store.put_all({"a": 2, "c": 3, "b": REMOVED}, {"a": a, "b": b, "nothing": ABSENT})
        assert values_of((await store.load()).entries) == {"a": 2, "c": 3}

    @_scenario
    async def test_a_write_of_which_any_condition_does_not_hold_changes_nothing(self, stores: Stores) -> None:
        store = stores.make()
        old = await store.put_all({"a": 1, "b": 1}, {})
        new = await store.put_all({"b": 2}, {"b": old})
        before = await store.load()
        for wrong in (
            {"a": ABSENT},
            {"a": new},
            {"a": old + 1000},
            {"b": old},
            {"nothing": old},
            {"a": old, "b": old},
            {"b": new, "nothing": ABSENT, "a": ABSENT},
        ):
            with pytest.raises(RevisionConflict):
                await store.put_all({"c": 1, "a": 3, "b": REMOVED}, wrong)
        assert (await store.load()).entries == before.entries

    @_scenario
    async def test_conditions_are_about_keys_and_not_about_the_store(self, stores: Stores) -> None:
        store = stores.make()
        a = await store.put_all({"a": 1}, {})
        await store.put_all({"b": 1}, {})
        await store.put_all({"a": 2}, {"a": a})
        with pytest.raises(RevisionConflict):
            await store.put_all({"a": 3}, {"a": a})

    @_scenario
    async def test_a_key_that_was_removed_and_made_again_is_another(self, stores: Stores) -> None:
        store = stores.make()
        first = await store.put_all({"a": 1}, {})
        await store.put_all({"a": REMOVED}, {"a": first})
        with pytest.raises(RevisionConflict):
            await store.put_all({"a": 2}, {"a": first})
        await store.put_all({"a": 1}, {"a": ABSENT})
        with pytest.raises(RevisionConflict):
            await store.put_all({"a": 2}, {"a": first})

    @_scenario
    async def test_of_several_that_make_one_key_one_wins(self, stores: Stores) -> None:
        both, winners = (stores.make(), stores.make()), list[int]()

        async def make(number: int) -> None:
            try:
                await both[number % 2].put_all({"key": number, f"also-{number}": number}, {"key": ABSENT})
            except RevisionConflict:
                return
            winners.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(make, number)
        (winner,) = winners
        assert values_of((await both[0].load()).entries) == {"key": winner, f"also-{winner}": winner}

    @_scenario
    async def test_no_increment_is_lost_between_writers(self, stores: Stores) -> None:
        both = stores.make(), stores.make()
        await both[0].put_all({"count": 0}, {})

        async def count(number: int) -> None:
            store, done = both[number % 2], 0
            for _ in range(TRIES_MAX):
                seen = (await store.load()).entries["count"]
                with suppress(RevisionConflict):
                    await store.put_all({"count": seen.value + 1}, {"count": seen.revision})
                    done += 1
                if done == 5:
                    return
            raise AssertionError("a writer reads old values, or never wins")

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(count, number)
        assert values_of((await both[1].load()).entries) == {"count": 30}

    # --- watches -----------------------------------------------------------------------------------------------------

    @_scenario
    async def test_a_watch_begins_with_all_keys(self, stores: Stores) -> None:
        store, other = stores.make(), stores.make()
        await store.put_all({"a": 1, "b": 2}, {})
        await store.put_all({"b": REMOVED}, {})
        async with other.watch() as watch:
            assert watch.snapshot.entries == (await store.load()).entries
            revision = await store.put_all({"a": 3}, {})
            changes = await watch.next()
            assert (changes.revision, dict(changes.entries)) == (revision, {"a": Stored(revision, 3)})

    @_scenario
    async def test_a_removal_is_seen_and_null_is_none(self, stores: Stores) -> None:
        store = stores.make()
        await store.put_all({"a": 1, "b": 2}, {})
        watch = await stores.watched(store)
        revision = await store.put_all({"a": None, "b": REMOVED}, {})
        (changes,) = await read_until(watch, revision)
        assert dict(changes.entries) == {"a": Stored(revision, None), "b": None}

    @_scenario
    async def test_watchers_see_every_write_in_order_and_whole(self, stores: Stores) -> None:
        writers, readers = [stores.make(), stores.make()], [stores.make(), stores.make()]
        history = await history_of(writers[0])
        watches = [await stores.watched(store) for store in (*readers, *readers, writers[0])]

        async def write(number: int) -> None:
            for turn in range(25):
                keys = [f"key-{(turn + step) % 7}" for step in range(5)]
                await history.put(writers[number], {key: [number, turn] for key in keys} | {f"last-{number}": turn})
                await history.put(writers[number], {keys[0]: REMOVED, f"last-{number}": -turn})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, 0)
            nursery.start_soon(write, 1)
        for watch in watches:
            history.check(watch.snapshot, await read_until(watch, max(history.writes)))

    @_scenario
    async def test_nothing_is_missed_or_seen_twice_while_a_watch_opens(self, stores: Stores) -> None:
        writer, reader = stores.make(), stores.make()
        history = await history_of(writer)
        found: list[tuple[Snapshot, list[Changes]]] = []

        async def follow(store: MetadataStore, number: int) -> None:
            while len(history.writes) < 10 * number:
                await trio.lowlevel.checkpoint()
                await writer.load()
            async with store.watch() as watch:
                found.append((watch.snapshot, await read_until(watch, await end.wait_value())))

        end = Promise()
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(follow, (writer, reader)[number % 2], number)
            for turn in range(120):
                revision = await history.put(writer, {f"key-{turn % 3}": turn, "turn": turn})
            end.keep(revision)
        for snapshot, changes in found:
            history.check(snapshot, changes)

    @_scenario
    async def test_a_watcher_that_reads_late_holds_up_nobody_and_misses_nothing(self, stores: Stores) -> None:
        store, other = stores.make(), stores.make()
        history = await history_of(store)
        late, prompt = await stores.watched(other), await stores.watched(other)
        for turn in range(100):
            revision = await history.put(store, {f"key-{turn % 5}": "x" * 1000 + str(turn)})
            await read_until(prompt, revision)
        history.check(late.snapshot, await read_until(late, revision))

    @_scenario
    async def test_a_cancelled_wait_loses_nothing(self, stores: Stores) -> None:
        store = stores.make()
        history = await history_of(store)
        watch, found = await stores.watched(stores.make()), list[Changes]()

        async def wait(scope: trio.CancelScope) -> None:
            with scope:
                found.append(await watch.next())

        for turn in range(30):
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()
                nursery.start_soon(wait, scope)
                for _ in range(5):
                    await trio.lowlevel.checkpoint()  # So that it waits.
                revision = await history.put(store, {f"turn-{turn}": turn})
                for _ in range(turn % 6):
                    await stores.env.clock.sleep(0.0005 * (turn // 6))
                scope.cancel()
        while (found[-1].revision if found else 0) < revision:
            found.append(await watch.next())
        history.check(watch.snapshot, found)

    @_scenario
    async def test_a_watch_that_ended_leaves_the_others_alone(self, stores: Stores) -> None:
        store = stores.make()
        history = await history_of(store)
        staying = await stores.watched(store)
        for turn in range(10):
            async with store.watch() as watch:
                revision = await history.put(store, {"turn": turn})
                history.check(watch.snapshot, await read_until(watch, revision))
        history.check(staying.snapshot, await read_until(staying, revision))

    @_scenario
    async def test_a_refused_write_is_seen_by_no_watcher(self, stores: Stores) -> None:
        store = stores.make()
        history = await history_of(store)
        revision = await history.put(store, {"a": 1})
        watch = await stores.watched(store)
        for _ in range(5):
            with pytest.raises(RevisionConflict):
                await store.put_all({"a": 2, "b": 2}, {"a": ABSENT})
        revision = await history.put(store, {"a": 3})
        history.check(watch.snapshot, await read_until(watch, revision))

    # --- leases ------------------------------------------------------------------------------------------------------

    @_scenario
    async def test_keys_of_a_lease_go_when_it_is_revoked_and_all_watchers_learn(self, stores: Stores) -> None:
        store, other = stores.make(), stores.make()
        history = await history_of(store)
        lease = await store.grant_lease(60.0)
        await history.put(store, {"stays": 1})
        await history.put(store, {"a": 1, "b": 1}, lease)
        await history.put(store, {"c": 1}, lease)
        watches = [await stores.watched(each) for each in (store, other)]
        await store.revoke_lease(lease)
        snapshot = await other.load()
        assert values_of(snapshot.entries) == {"stays": 1}
        for watch in watches:
            known = dict(watch.snapshot.entries)
            for changes in await read_until_gone(watch, known, {"a", "b", "c"}):
                assert set(changes.entries.values()) == {None}
            assert known == snapshot.entries

    @_scenario
    async def test_keys_of_a_lease_go_at_its_end_and_no_earlier(self, stores: Stores) -> None:
        store, other, harness = stores.make(), stores.make(), stores.harness
        watch = await stores.watched(other)
        clock = stores.env.clock
        begun_s = clock.monotonic()
        lease = await store.grant_lease(harness.ttl_s)
        await store.put_all({"a": 1, "b": 2}, {}, lease)
        await store.put_all({"stays": 1}, {})
        known = dict(watch.snapshot.entries)
        with trio.fail_after(harness.ttl_s + harness.late_s):
            await read_until_gone(watch, known, {"a", "b"}, at_first=False)
        assert clock.monotonic() - begun_s >= harness.ttl_s, "the lease has ended too early"
        assert values_of(known) == {"stays": 1}
        assert values_of((await store.load()).entries) == {"stays": 1}
        await _check_is_lost(store, lease)

    @_scenario
    async def test_keys_of_a_lease_stay_while_it_is_renewed(self, stores: Stores) -> None:
        store, harness, clock = stores.make(), stores.harness, stores.env.clock
        lease, forgotten = await store.grant_lease(harness.ttl_s), await store.grant_lease(harness.ttl_s)
        await store.put_all({"a": 1}, {}, lease)
        await store.put_all({"b": 1}, {}, forgotten)
        end_s = clock.monotonic() + harness.ttl_s + harness.late_s
        while clock.monotonic() < end_s:
            await store.renew_lease(lease)
            await clock.sleep(harness.ttl_s / 4)
        assert values_of((await store.load()).entries) == {"a": 1}

    @_scenario
    async def test_nothing_is_written_under_a_lease_that_has_ended(self, stores: Stores) -> None:
        store = stores.make()
        lease = await store.grant_lease(60.0)
        await store.revoke_lease(lease)
        await store.put_all({"a": 1}, {})
        await _check_is_lost(store, lease)
        assert values_of((await store.load()).entries) == {"a": 1}
        await store.revoke_lease(lease)

    @_scenario
    async def test_a_key_belongs_to_the_lease_of_its_last_write(self, stores: Stores) -> None:
        store = stores.make()
        first, second = await store.grant_lease(60.0), await store.grant_lease(60.0)
        assert first != second
        await store.put_all({"kept": 1, "moved": 1, "gone": 1, "removed": 1}, {}, first)
        await store.put_all({"kept": 2, "removed": REMOVED}, {})
        await store.put_all({"moved": 2}, {}, second)
        revision = await store.put_all({"removed": 2}, {"removed": ABSENT})
        await store.revoke_lease(first)
        assert values_of((await store.load()).entries) == {"kept": 2, "moved": 2, "removed": 2}
        await store.put_all({"removed": REMOVED}, {"removed": revision})
        await store.revoke_lease(second)
        assert values_of((await store.load()).entries) == {"kept": 2}

    @_scenario
    async def test_conditions_hold_for_keys_of_leases_as_well(self, stores: Stores) -> None:
        store, other = stores.make(), stores.make()
        lease = await store.grant_lease(60.0)
        held = await store.put_all({"controller": 1}, {"controller": ABSENT}, lease)
        rival = await other.grant_lease(60.0)
        with pytest.raises(RevisionConflict):
            await other.put_all({"controller": 2}, {"controller": ABSENT}, rival)
        await store.put_all({"work": 1}, {"controller": held})
        await store.revoke_lease(lease)
        with pytest.raises(RevisionConflict):
            await store.put_all({"work": 2}, {"controller": held})
        assert await other.put_all({"controller": 2}, {"controller": ABSENT}, rival) > held
        assert values_of((await store.load()).entries) == {"work": 1, "controller": 2}

    # --- limits, and the end -----------------------------------------------------------------------------------------

    @_scenario
    async def test_as_many_changes_and_conditions_as_it_says_go_into_one_write(self, stores: Stores) -> None:
        store = stores.make()
        count = min(store.changes_max, 1000)
        assert count >= 100, "the controller writes 100 keys at a time"
        keys = [f"key-{number}" for number in range(count)]
        revision = await store.put_all(dict.fromkeys(keys, 1), dict.fromkeys(keys, ABSENT))
        await store.put_all(dict.fromkeys(keys, 2), dict.fromkeys(keys, revision))
        assert values_of((await store.load()).entries) == dict.fromkeys(keys, 2)

    @_scenario
    async def test_more_than_that_is_refused_and_changes_nothing(self, stores: Stores) -> None:
        store = stores.make()
        if store.changes_max > CHANGES_TRIED_MAX:
            return
        await store.put_all({"key-0": 0}, {})
        too_many = [f"key-{number}" for number in range(store.changes_max + 1)]
        with pytest.raises(LimitExceeded):
            await store.put_all(dict.fromkeys(too_many, 1), {})
        with pytest.raises(LimitExceeded):
            await store.put_all({"key-0": 1}, dict.fromkeys(too_many[1:], ABSENT) | {"other": ABSENT})
        assert values_of((await store.load()).entries) == {"key-0": 0}

    @_scenario
    async def test_a_value_is_stored_whole_or_refused(self, stores: Stores) -> None:
        store, sizes = stores.make(), (1 << 20, 4 << 20, 16 << 20)
        expected: dict[str, Any] = {"small": 1}
        await store.put_all(expected, {})
        for size in sizes:
            try:
                await store.put_all({"large": "x" * size}, {})
            except LimitExceeded:
                break
            expected["large"] = "x" * size
        assert values_of((await store.load()).entries) == expected

    @_scenario
    async def test_values_outlive_the_stores_that_wrote_them(self, stores: Stores) -> None:
        store = stores.make()
        revision = await store.put_all({"a": 1}, {})
        await store.aclose()
        await store.aclose()
        found = await stores.make().load()
        assert dict(found.entries) == {"a": Stored(revision, 1)}
        assert found.revision >= revision


async def _check_is_lost(store: MetadataStore, lease: int) -> None:
    """Check that a lease has ended for all that may be done with it."""
    with pytest.raises(LeaseLost):
        await store.renew_lease(lease)
    with pytest.raises(LeaseLost):
        await store.put_all({"a": "late", "z": "late"}, {}, lease)
    await store.revoke_lease(lease)
