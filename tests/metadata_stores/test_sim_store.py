"""Faults of the simulated store, each by itself; and the same seed gives the same history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from sim_store import (
    LATE_S_MAX,
    LEASE_END_S_MAX,
    LEASE_EXTENSION_S,
    TIMEOUT_S,
    WAITING_MAX,
    SimStore,
    SimWrite,
)

from linn.core.errors.metadata import LeaseLost, MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.metadata.store import ABSENT, REMOVED, Changes, MetadataStore, Watch
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv

TTL_S = 6.0
SEEDS = range(40)
Scenario = Callable[[SimStore, MetadataStore, MetadataStore], Awaitable[None]]


def run(scenario: Scenario, seed: int = 0) -> SimStore:
    """Run `scenario(store, store of the node a, store of the node b)`."""

    async def main(env: SimEnv) -> SimStore:
        async with trio.open_nursery() as nursery:
            store = SimStore(seed, nursery.start_soon)
            a, b = (store.client(SimEnv(seed, name=name, world=env.world)) for name in "ab")
            await scenario(store, a, b)
            nursery.cancel_scope.cancel()
        return store

    return run_simulation(seed, main)


def simulated(scenario: Scenario) -> Callable[[], None]:
    """A test of a scenario."""

    def test() -> None:
        run(scenario)

    return test


async def outcome_of(call: Awaitable[object]) -> str:
    try:
        await call
    except (MetadataUnavailable, MetadataUnknown, LeaseLost, RevisionConflict) as error:
        return type(error).__name__
    return "done"


async def read_until_lost(watch: Watch) -> list[Changes]:
    found: list[Changes] = []
    while True:
        try:
            found.append(await watch.next())
        except MetadataUnavailable:
            return found


# --- outages ---------------------------------------------------------------------------------------------------------


@simulated
async def test_a_stopped_store_refuses_calls_loses_its_watches_and_keeps_everything(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    revision = await a.put_all({"a": 1}, {})
    async with a.watch() as watch:
        store.stop()
        assert await read_until_lost(watch) == []
    assert await outcome_of(a.load()) == "MetadataUnavailable"
    assert await outcome_of(a.watch().__aenter__()) == "MetadataUnavailable"
    store.start()
    found = await b.load()
    assert (found.revision, found.entries["a"].value) == (revision, 1)


def test_a_write_while_the_store_stops_is_done_or_not_or_unknown() -> None:
    outcomes: set[tuple[str, bool]] = set()

    async def scenario(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
        async def stop() -> None:
            await trio.sleep(0.002)
            store.stop()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop)
            outcome = await outcome_of(a.put_all({"a": 1}, {}))
        await trio.sleep(LATE_S_MAX)
        outcomes.add((outcome, "a" in store.content()))

    for seed in SEEDS:
        run(scenario, seed)
    assert outcomes == {
        ("done", True), ("MetadataUnavailable", False), ("MetadataUnknown", False), ("MetadataUnknown", True)
    }  # fmt: skip


@simulated
async def test_a_node_whose_answers_are_cut_writes_without_knowing(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    store.cut("a", requests=False)
    began = trio.current_time()
    assert await outcome_of(a.put_all({"a": 1}, {})) == "MetadataUnknown"
    assert trio.current_time() == began + TIMEOUT_S
    assert await outcome_of(a.load()) == "MetadataUnavailable"
    assert (await b.load()).entries["a"].value == 1
    store.heal("a")
    assert (await a.load()).entries["a"].value == 1


@simulated
async def test_answers_that_are_held_for_a_short_time_arrive(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    async def heal() -> None:
        await trio.sleep(TIMEOUT_S / 2)
        store.heal("a")

    store.cut("a", requests=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heal)
        await a.put_all({"a": 1}, {})


def test_requests_that_are_cut_arrive_late_or_never_and_those_that_were_not_sent_never() -> None:
    outcomes: set[tuple[str, bool]] = set()

    async def scenario(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
        store.cut("a", answers=False)
        outcome = await outcome_of(a.put_all({"a": 1}, {}))
        assert "a" not in store.content()
        store.heal("a")
        await trio.sleep(1.0)
        outcomes.add((outcome, "a" in store.content()))

    for seed in SEEDS:
        run(scenario, seed)
    assert outcomes == {("MetadataUnknown", True), ("MetadataUnknown", False), ("MetadataUnavailable", False)}


def test_lost_connections_leave_writes_made_or_not_made_or_made_late() -> None:
    outcomes: set[tuple[str, str]] = set()

    async def scenario(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
        store.loss = 1.0
        assert await outcome_of(a.put_all({"a": 1}, {})) == "MetadataUnknown"
        at_once = "a" in store.content()
        await trio.sleep(LATE_S_MAX)
        outcomes.add(("at once" if at_once else "", "in the end" if "a" in store.content() else ""))
        assert await outcome_of(a.load()) == "MetadataUnavailable"

    for seed in SEEDS:
        run(scenario, seed)
    assert outcomes == {("at once", "in the end"), ("", "in the end"), ("", "")}


@simulated
async def test_a_cancelled_or_killed_call_may_still_write(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
    with trio.move_on_after(0):
        await a.put_all({"never sent": 1}, {})
    with trio.move_on_after(0.00001):
        await a.put_all({"sent": 1}, {})
    assert store.content() == {}
    await trio.sleep(1.0)
    assert list(store.content()) == ["sent"]


@simulated
async def test_one_node_may_be_slow(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
    store.slow("a", (0.5, 0.6))
    began = trio.current_time()
    await b.load()
    assert trio.current_time() < began + 0.1
    began = trio.current_time()
    await a.load()
    assert 1.0 <= trio.current_time() - began <= 1.2


@simulated
async def test_an_emptied_store_begins_again(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
    lease = await a.grant_lease(TTL_S)
    for number in range(5):
        await a.put_all({"a": number}, {}, lease)
    async with a.watch() as watch:
        store.empty()
        assert await read_until_lost(watch) == []
    assert (await a.load()) == (0, {})
    assert await outcome_of(a.renew_lease(lease)) == "LeaseLost"
    assert await a.put_all({"a": 1}, {"a": ABSENT}) == 1
    assert [write.cause for write in store.history] == ["put"] * 5 + ["emptied", "put"]


# --- leases ----------------------------------------------------------------------------------------------------------


@simulated
async def test_a_lease_of_a_dead_node_ends_by_its_time(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
    granted = trio.current_time()
    await a.put_all({"session": 1}, {}, await a.grant_lease(TTL_S))
    await trio.sleep(60.0)
    (ended,) = [write for write in store.history if write.cause == "lease"]
    assert ended.changes == {"session": REMOVED}
    assert granted + TTL_S <= ended.at_s <= granted + TTL_S + LEASE_END_S_MAX + 0.1


@simulated
async def test_leases_may_end_although_they_are_renewed(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
    leases = [await each.grant_lease(TTL_S) for each in (a, b)]
    await a.put_all({"a": 1}, {}, leases[0])
    await b.put_all({"b": 1}, {}, leases[1])
    await b.put_all({"stays": 1}, {})
    store.end_leases("a")
    assert sorted(store.content()) == ["b", "stays"]
    await b.renew_lease(leases[1])
    store.end_all_leases()
    assert list(store.content()) == ["stays"]
    assert await outcome_of(b.renew_lease(leases[1])) == "LeaseLost"
    assert await outcome_of(b.put_all({"b": 1}, {}, leases[1])) == "LeaseLost"


@simulated
async def test_a_store_that_was_down_gives_each_lease_its_whole_time_again(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    lease = await a.grant_lease(TTL_S)
    await a.put_all({"session": 1}, {}, lease)
    store.stop()
    await trio.sleep(60.0)
    assert list(store.content()) == ["session"]
    store.start()
    await trio.sleep(TTL_S)
    await a.renew_lease(lease)
    for _ in range(3):
        store.stop()
        store.start()
    back = trio.current_time()
    await trio.sleep(60.0)
    (ended,) = [write for write in store.history if write.cause == "lease"]
    late_s = ended.at_s - back - TTL_S - LEASE_EXTENSION_S
    assert 0 <= late_s <= LEASE_END_S_MAX + 0.1


@simulated
async def test_a_holder_whose_clock_drifts_loses_its_lease_early_or_late(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    store.drift("a", 2.0)
    store.drift("b", 0.5)
    began = trio.current_time()
    for node, each in (("a", a), ("b", b)):
        await each.put_all({node: 1}, {}, await each.grant_lease(TTL_S))
    await trio.sleep(60.0)
    ended = {key: write.at_s - began for write in store.history if write.cause == "lease" for key in write.changes}
    assert TTL_S / 2 <= ended["a"] <= TTL_S / 2 + 1.0
    assert TTL_S * 2 <= ended["b"] <= TTL_S * 2 + 1.0


# --- watches ---------------------------------------------------------------------------------------------------------


@simulated
async def test_watches_are_lost_slow_and_cut_for_one_node_alone(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    store.slow_watches("a", (2.0, 3.0))
    async with a.watch() as slow, b.watch() as quick:
        began = trio.current_time()
        first = await b.put_all({"a": 1}, {})
        assert (await quick.next()).revision == first
        assert trio.current_time() < began + 1.0
        assert (await slow.next()).revision == first
        assert 2.0 <= trio.current_time() - began <= 3.5
        store.cut("a")
        second = await b.put_all({"a": 2}, {})
        assert (await quick.next()).revision == second
        cut = trio.current_time()
        assert await read_until_lost(slow) == []
        assert trio.current_time() == pytest.approx(cut + TIMEOUT_S, abs=0.1)
        store.lose_watches("b")
        assert await read_until_lost(quick) == []


@simulated
async def test_a_watch_that_is_cut_for_a_short_time_delivers_late(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    async with a.watch() as watch:
        store.cut("a", requests=False)
        revision = await b.put_all({"a": 1}, {})
        with trio.move_on_after(TIMEOUT_S / 2):
            pytest.fail(f"{await watch.next()} came over a cut")
        store.heal("a")
        assert (await watch.next()).revision == revision


@simulated
async def test_a_watch_with_too_many_waiting_writes_is_lost(
    store: SimStore, a: MetadataStore, b: MetadataStore
) -> None:
    async with a.watch() as watch:
        for number in range(WAITING_MAX + 1):
            await b.put_all({"a": number}, {})
        assert await read_until_lost(watch) == []


def test_changes_come_alone_or_several_at_a_time() -> None:
    counts: set[int] = set()

    async def scenario(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
        async with a.watch() as watch:
            revisions = [await b.put_all({"a": number}, {}) for number in range(3)]
            await trio.sleep(1.0)
            count = 1
            while (await watch.next()).revision < revisions[-1]:
                count += 1
            counts.add(count)

    for seed in SEEDS:
        run(scenario, seed)
    assert counts == {1, 2, 3}


# --- the seed --------------------------------------------------------------------------------------------------------


def history_of(seed: int) -> list[SimWrite]:
    """The history of a busy time with faults."""

    async def scenario(store: SimStore, a: MetadataStore, b: MetadataStore) -> None:
        async def write(each: MetadataStore, name: str) -> None:
            for number in range(30):
                with trio.move_on_after(2.0):
                    await outcome_of(each.put_all({name: number, "both": [name, number]}, {}))

        store.loss = 0.2
        async with trio.open_nursery() as nursery:
            for each, name in ((a, "a"), (b, "b"), (a, "c")):
                nursery.start_soon(write, each, name)
            for _ in range(4):
                await trio.sleep(0.05)
                store.cut("a")
                await trio.sleep(0.5)
                store.heal("a")
                store.stop()
                await trio.sleep(0.01)
                store.start()
        await trio.sleep(LATE_S_MAX)

    return run(scenario, seed).history


def test_the_same_seed_gives_the_same_history_and_others_give_others() -> None:
    histories = [history_of(seed) for seed in range(5)]
    assert histories == [history_of(seed) for seed in range(5)]
    assert len({str(history) for history in histories}) == 5
    assert all(len(history) > 30 for history in histories)
