"""Random clients of a metadata store under faults, and a plain model with which all that they saw is compared.

    python tests/metadata_stores/store_walk.py sim 17
    python tests/metadata_stores/store_walk.py served 17

The truth is the list of all writes that the store made. The model is a dict for each of them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import trio
from sim_store import LATE_S_MAX

from linn.core.errors.metadata import MetadataUnavailable
from linn.core.errors.tree import LinnError
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, Changes, MetadataStore, Snapshot, Stored
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.testing.sim_net import SimNet

CLIENTS = ("a", "b", "c")
KEYS = ("k0", "k1", "k2", "k3", "k4")
TTL_S = 3.0
BUSY_S = 30.0
"""Time in which clients write."""
QUIET_S = 20.0
"""Time after it, without faults, in which everything must end as it should."""
CALL_S_MAX = 10.0
"""Time after which a client gives up a call."""
LATE_S = 0.2
"""Time for which a fault is felt after its end, by answers on their way."""
LEASE_LATE_S = 1.0


class Truth(NamedTuple):
    """A write that the store made; or the beginning of its next life."""

    at_s: float
    revision: int
    entries: Mapping[str, Stored | None]


@dataclass(eq=False)
class Lease:
    """A lease that a client was granted."""

    number: int
    renewed_s: list[float]
    """When its successful renewals began, and its grant."""
    revoked_s: float = float("inf")
    lost_s: float = float("inf")
    """When it was first known to have ended."""


@dataclass(eq=False)
class Call:
    """A call of a client, and what came of it."""

    kind: str
    began_s: float
    changes: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, int] = field(default_factory=dict)
    lease: Lease | None = None
    ended_s: float = float("inf")
    outcome: str = "cancelled"
    """`ok`, the name of an error, or `cancelled`."""
    result: Any = None

    def __str__(self) -> str:
        text = f"{self.kind} at {self.began_s:.4f}-{self.ended_s:.4f}: {self.outcome} {self.result!s:.200}"
        return f"{text}, {self.changes} if {self.conditions}" if self.kind == "put" else text


@dataclass(eq=False)
class Watched:
    """A watch of a client."""

    opening: Call
    changes: list[tuple[float, Changes]] = field(default_factory=list)
    lost_s: float | None = None
    ended_s: float = 0.0


class World(Protocol):
    """A store that a walk disturbs."""

    @property
    def truth(self) -> list[Truth]:
        """The state at first, and all writes, in order."""

    def client(self, env: SimEnv) -> MetadataStore:
        """Make the store of a client."""

    async def fault(self, rng: random.Random, node: str) -> None:
        """Do something to the store, or to a node's way to it, and end it."""

    async def end_faults(self) -> None:
        """Bring everything back."""


class Walk:
    """A walk of all clients, with everything that they saw."""

    def __init__(self, seed: int, world: World, net: SimNet, *, has_faults: bool) -> None:
        self.calls: list[Call] = []
        self.watches: list[Watched] = []
        self.disturbed: list[tuple[float, float]] = []
        """Times of faults: (begin, end)."""
        self.world = world
        self._seed = seed
        self._net = net
        self._rng = random.Random(f"{seed}/walk")
        self._has_faults = has_faults
        self._envs: dict[str, SimEnv] = {}
        self._count = 0

    async def run(self) -> None:
        """Walk, and wait until everything is quiet."""
        with trio.move_on_at(BUSY_S + QUIET_S):
            async with trio.open_nursery() as nursery:
                for name in CLIENTS:
                    nursery.start_soon(self._node, name)
                if self._has_faults:
                    nursery.start_soon(self._disturb)
                await trio.sleep_forever()

    # --- faults ---

    async def _disturb(self) -> None:
        while trio.current_time() < BUSY_S - 8.0:
            await trio.sleep(self._rng.uniform(0.5, 4.0))
            began, name = trio.current_time(), self._rng.choice(CLIENTS)
            if self._rng.random() < 0.2:
                self._envs[name].kill()
            else:
                await self.world.fault(self._rng, name)
            self.disturbed.append((began, trio.current_time()))
        began = trio.current_time()
        await self.world.end_faults()
        self.disturbed.append((began, trio.current_time()))

    # --- clients ---

    async def _node(self, name: str) -> None:
        env = SimEnv(self._seed, name=name, world=self._net)
        while True:
            self._envs[name] = env
            await env.run_until_death(self._live)
            await trio.sleep(self._rng.uniform(0, 1.0))
            env = env.restart()

    async def _live(self, env: SimEnv) -> None:
        store, known = self.world.client(env), dict[str, int]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, store, known)
            nursery.start_soon(self._write, store, known)
            nursery.start_soon(self._write, store, known)

    async def _call(self, call: Call, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do a call and note it; returns its result, None if it failed."""
        self.calls.append(call)
        with trio.move_on_after(CALL_S_MAX):
            try:
                call.result = await work()
                call.outcome = "ok"
            except LinnError as error:
                call.outcome = type(error).__name__
            call.ended_s = trio.current_time()
        return call.result

    def _new_call(self, kind: str, lease: Lease | None = None) -> Call:
        return Call(kind, trio.current_time(), lease=lease)

    async def _write(self, store: MetadataStore, known: dict[str, int]) -> None:
        lease: Lease | None = None
        while trio.current_time() < BUSY_S:
            await trio.sleep(self._rng.uniform(0, 0.4))
            match self._rng.randrange(8):
                case 0:
                    snapshot = await self._call(self._new_call("load"), store.load)
                    if snapshot is not None:
                        known.clear()
                        known.update({key: stored.revision for key, stored in snapshot.entries.items()})
                case 1 if lease is None:
                    lease = await self._grant(store)
                case 1 | 2 if lease is not None:
                    lease = await self._keep(store, lease)
                case _:
                    await self._put(store, known, lease if self._rng.random() < 0.5 else None)

    async def _grant(self, store: MetadataStore) -> Lease | None:
        call = self._new_call("grant")
        number = await self._call(call, partial(store.grant_lease, TTL_S))
        if number is None:
            return None
        call.lease = Lease(number, [call.began_s])
        return call.lease

    async def _keep(self, store: MetadataStore, lease: Lease) -> Lease | None:
        if self._rng.random() < 0.1:
            lease.revoked_s = trio.current_time()
            await self._call(self._new_call("revoke", lease), partial(store.revoke_lease, lease.number))
            return None
        call = self._new_call("renew", lease)
        await self._call(call, partial(store.renew_lease, lease.number))
        if call.outcome == "ok":
            lease.renewed_s.append(call.began_s)
        return None if call.outcome == "LeaseLost" and self._rng.random() < 0.7 else lease

    async def _put(self, store: MetadataStore, known: dict[str, int], lease: Lease | None) -> None:
        self._count += 1
        changes: dict[str, Any] = {
            key: REMOVED if self._rng.random() < 0.2 else self._count
            for key in self._rng.sample(KEYS, self._rng.randint(1, 3))
        }
        changes[f"last {self._count % 3}"] = self._count  # At least one value tells which write it was.
        compared = self._rng.sample(KEYS, self._rng.randint(0, 2))
        call = self._new_call("put", lease)
        call.changes, call.conditions = changes, {key: known.get(key, ABSENT) for key in compared}
        number = lease.number if lease is not None else NO_LEASE
        revision = await self._call(call, partial(store.put_all, changes, call.conditions, number))
        if revision is not None:
            for key, value in changes.items():
                known[key] = ABSENT if value is REMOVED else revision

    async def _watch(self, store: MetadataStore, known: dict[str, int]) -> None:
        while True:
            watched = Watched(self._new_call("watch"))
            self.calls.append(watched.opening)
            try:
                with trio.move_on_after(CALL_S_MAX) as opening:
                    async with store.watch() as watch:
                        opening.deadline = float("inf")
                        watched.opening.ended_s, watched.opening.result = trio.current_time(), watch.snapshot
                        watched.opening.outcome = "ok"
                        self.watches.append(watched)
                        while True:
                            changes = await watch.next()
                            watched.changes.append((trio.current_time(), changes))
                            for key, stored in changes.entries.items():
                                known[key] = stored.revision if stored is not None else ABSENT
            except MetadataUnavailable:
                watched.lost_s = trio.current_time()
                if watched.opening.outcome != "ok":
                    watched.opening.outcome, watched.opening.ended_s = "MetadataUnavailable", trio.current_time()
            finally:
                watched.ended_s = trio.current_time()
            await trio.sleep(self._rng.uniform(0.01, 0.5))


# --- the model -------------------------------------------------------------------------------------------------------


class Model:
    """States of the store after each of its writes, and all that must hold between them and a walk."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._truth = walk.world.truth
        self._states: list[dict[str, Stored]] = []
        for each in self._truth:
            state = dict(self._states[-1]) if self._states else {}
            for key, stored in each.entries.items():
                state.pop(key, None)
                if stored is not None:
                    state[key] = stored
            self._states.append(state)
        self._index = {each.revision: index for index, each in enumerate(self._truth)}
        self._puts = {max(_values(call)): call for call in walk.calls if call.kind == "put"}
        self._written: dict[int, list[int]] = {}
        """Places of the writes that have a put's value, by that value."""
        for index, each in enumerate(self._truth):
            for value in sorted({stored.value for stored in each.entries.values() if stored is not None}):
                self._written.setdefault(value, []).append(index)

    def check(self) -> None:
        """Raises AssertionError."""
        for before, after in pairwise(self._truth):
            assert after.revision > before.revision, f"revision {after.revision} comes after {before.revision}"
            assert after.at_s >= before.at_s
        for call in self._walk.calls:
            self._check_call(call)
        for watched in self._walk.watches:
            self._check_watch(watched)
        self._check_leases()

    def _disturbed(self, begin_s: float, end_s: float) -> bool:
        return any(begin_s <= end + LATE_S and begin <= end_s for begin, end in self._walk.disturbed)

    def _current(self, begin_s: float, end_s: float) -> range:
        """Places of the states that were current at some moment of a time."""
        first = max(index for index, each in enumerate(self._truth) if each.at_s < begin_s or not index)
        last = max(index for index, each in enumerate(self._truth) if each.at_s <= end_s or not index)
        return range(first, last + 1)

    # --- calls ---

    def _check_call(self, call: Call) -> None:
        match call.outcome:
            case "ok" | "cancelled":
                pass
            case "MetadataUnavailable" | "MetadataUnknown":
                assert self._disturbed(call.began_s, call.ended_s), f"without a fault: {call}"
                assert call.outcome != "MetadataUnknown" or call.kind in ("put", "revoke"), call
            case "LeaseLost":
                assert call.kind in ("put", "renew"), call
                assert call.lease is not None
                call.lease.lost_s = min(call.lease.lost_s, call.ended_s)
                assert self._may_have_ended(call.lease, call.ended_s), f"the lease was renewed: {call}"
            case "RevisionConflict":
                assert call.kind == "put", call
                states = [self._states[index] for index in self._current(call.began_s, call.ended_s)]
                assert any(not _hold(call.conditions, state) for state in states), f"all conditions held: {call}"
            case _:
                raise AssertionError(f"an error that no store raises: {call}")
        if call.kind == "put":
            self._check_put(call)
        if call.kind in ("load", "watch") and call.outcome == "ok":
            self._check_snapshot(call, call.result)

    def _check_put(self, call: Call) -> None:
        places = self._written.get(max(_values(call)), [])
        if call.outcome not in ("ok", "MetadataUnknown", "cancelled"):
            assert not places, f"it was written: {call}"
        assert len(places) <= 1, f"it was written {len(places)} times: {call}"
        assert places or call.outcome != "ok", f"it was not written: {call}"
        for index in places:
            write = self._truth[index]
            assert call.began_s <= write.at_s, f"it was written before: {call}"
            wanted = {k: None if v is REMOVED else Stored(write.revision, v) for k, v in call.changes.items()}
            assert wanted == write.entries, f"{write} was written: {call}"
            assert _hold(call.conditions, self._states[index - 1]), f"no condition was compared: {call}"
            if call.outcome == "ok":
                assert write.revision == call.result, f"{write} was written: {call}"
                assert write.at_s <= call.ended_s, f"it was written after its answer: {call}"

    def _check_snapshot(self, call: Call, snapshot: Snapshot) -> None:
        index = self._index.get(snapshot.revision)
        assert index is not None, f"there is no such revision: {call}"
        assert index in self._current(call.began_s, call.ended_s), f"it is of another time: {call}"
        assert snapshot.entries == self._states[index], f"it is not {self._states[index]}: {call}"

    # --- watches ---

    def _check_watch(self, watched: Watched) -> None:
        seen = watched.opening.result.revision
        known = dict(watched.opening.result.entries)
        for at_s, changes in watched.changes:
            assert changes.revision > seen, f"{changes} comes after {seen}"
            index = self._index.get(changes.revision)
            assert index is not None, f"no such revision: {changes}"
            assert self._truth[index].at_s <= at_s, f"too early: {changes}"
            for key, stored in changes.entries.items():
                known.pop(key, None)
                if stored is not None:
                    known[key] = stored
            assert known == self._states[index], f"after {changes} it is not {self._states[index]}"
            seen = changes.revision
        if watched.lost_s is not None:
            assert self._disturbed(watched.lost_s, watched.lost_s), f"a watch is lost without a fault: {watched}"
        elif watched.ended_s >= BUSY_S + QUIET_S:
            assert known == self._states[-1], f"in the end a watch has not seen all: {known}, not {self._states[-1]}"

    # --- leases ---

    def _may_have_ended(self, lease: Lease, at_s: float) -> bool:
        renewed_s = max(each for each in lease.renewed_s if each <= at_s)
        return at_s >= renewed_s + TTL_S or at_s >= lease.revoked_s or self._disturbed(renewed_s, at_s)

    def _lease_of(self, stored: Stored | None) -> Lease | None:
        return self._puts[stored.value].lease if stored is not None else None

    def _check_leases(self) -> None:
        for index, write in enumerate(self._truth[1:], 1):
            if any(write.entries.values()) or not write.entries:
                continue  # Each put has a value.
            for key in write.entries:
                lease = self._lease_of(self._states[index - 1].get(key))
                assert lease is not None, f"{key} was removed, and has no lease: {write}"
                assert self._may_have_ended(lease, write.at_s), f"the lease was renewed: {write}"
                lease.lost_s = min(lease.lost_s, write.at_s)
        for call in self._walk.calls:
            if call.lease is not None and call.kind in ("put", "renew") and call.outcome == "ok":
                assert call.began_s <= call.lease.lost_s, f"the lease had ended at {call.lease.lost_s}: {call}"
        for index, state in enumerate(self._states):
            end_s = self._truth[index + 1].at_s if index + 1 < len(self._truth) else float("inf")
            for key, stored in state.items():
                lease = self._lease_of(stored)
                if lease is not None:
                    last_s = self._last_s(lease)
                    assert end_s <= last_s + TTL_S + LEASE_LATE_S or (
                        end_s < float("inf") and self._disturbed(last_s, end_s)
                    ), f"{key} is there until {end_s}, and its lease was last renewed at {last_s}"

    def _last_s(self, lease: Lease) -> float:
        """The latest moment at which a lease may have been renewed."""
        ends = [lease.renewed_s[0]]
        for call in self._walk.calls:
            if call.lease is lease and call.kind in ("grant", "renew") and call.outcome != "LeaseLost":
                late_s = 0.0 if call.outcome == "ok" else LATE_S_MAX
                ends.append(min(call.ended_s, call.began_s + CALL_S_MAX) + late_s)
        return max(ends)


def _values(call: Call) -> list[int]:
    return [value for value in call.changes.values() if value is not REMOVED]


def _hold(conditions: Mapping[str, int], state: Mapping[str, Stored]) -> bool:
    return all((state[key].revision if key in state else ABSENT) == wanted for key, wanted in conditions.items())


Opener = Callable[[SimEnv, trio.Nursery], Awaitable[World]]


def run_walk(seed: int, open_world: Opener, *, has_faults: bool = True) -> Walk:
    """Walk with a seed and check all of it. Raises AssertionError."""

    async def main(env: SimEnv) -> Walk:
        async with trio.open_nursery() as nursery:
            walk = Walk(seed, await open_world(env, nursery), env.world, has_faults=has_faults)
            await walk.run()
            nursery.cancel_scope.cancel()
        return walk

    walk = run_simulation(seed, main)
    Model(walk).check()
    return walk


if __name__ == "__main__":
    import sys

    from walked_worlds import WORLDS

    found = run_walk(int(sys.argv[2]), WORLDS[sys.argv[1]])
    for each in found.calls:
        print(each)
