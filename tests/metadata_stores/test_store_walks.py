"""Random clients find a simulated and a served store as the model has it, and the model notices planted faults.

SIM_SEEDS=1000-2000 python -m pytest -m soak tests/metadata_stores/test_store_walks.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from seeds import failures, tiered
from sim_store import SimStore, SimWatch, _Lease, _Request
from store_walk import Opener, run_walk
from walked_worlds import WORLDS, served, simulated

from linn.core.errors.metadata import MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.metadata.served import ServedStore, ServedWatch
from linn.core.metadata.store import NO_LEASE, Changes, Snapshot

SEEDS = 12
QUICK_SEEDS = 1
CALM_SEEDS = 4
MUTANT_SEEDS = 40
"""Seeds within which each planted fault is found; most are in the first."""
FOUND_WITH = {"SureClient": 12, "RepeatingClient": 7}
"""Seeds that find the others, with which their search begins."""


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("seed", tiered(range(SEEDS), QUICK_SEEDS))
def test_under_faults_all_is_as_the_model_has_it(seed: int, name: str) -> None:
    run_walk(seed, WORLDS[name])


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("seed", range(CALM_SEEDS))
def test_without_faults_nothing_fails(seed: int, name: str) -> None:
    walk = run_walk(seed, WORLDS[name], has_faults=False)
    assert {call.outcome for call in walk.calls} == {"ok", "RevisionConflict", "LeaseLost"}
    assert not any(watched.lost_s for watched in walk.watches)


@pytest.mark.parametrize("name", WORLDS)
def test_the_faults_are_felt(name: str) -> None:
    outcomes = Counter(
        (call.kind, call.outcome) for seed in range(CALM_SEEDS) for call in run_walk(seed, WORLDS[name]).calls
    )
    for pair in (
        ("put", "MetadataUnknown"),
        ("put", "MetadataUnavailable"),
        ("put", "RevisionConflict"),
        ("put", "LeaseLost"),
        ("renew", "LeaseLost"),
        ("watch", "MetadataUnavailable"),
    ):
        assert outcomes[pair] > 0, pair


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.soak(seeds=4_000, chunk=100)
def test_many_more_walks(seeds: range, name: str) -> None:
    found = failures(lambda seed: run_walk(seed, WORLDS[name]), seeds, f"tests/metadata_stores/store_walk.py {name}")
    assert found == {}


# --- planted faults of a simulated store -----------------------------------------------------------------------------


class Trusting(SimStore):
    """Compares nothing."""

    def put_all(self, node: str, texts: Any, conditions: Mapping[str, int], lease: int) -> int:
        return super().put_all(node, texts, {}, lease)


class Suspicious(SimStore):
    """Refuses a write whose conditions hold."""

    def put_all(self, node: str, texts: Any, conditions: Mapping[str, int], lease: int) -> int:
        if self._revision % 20 == 0:
            raise RevisionConflict("no reason")
        return super().put_all(node, texts, conditions, lease)


class Sure(SimStore):
    """Says that a write whose answer is lost was not made."""

    def _lose(self, request: _Request[Any]) -> None:
        request.was_sent = False
        super()._lose(request)


class Repeating(SimStore):
    """Makes a write again whose answer is lost."""

    def _lose(self, request: _Request[Any]) -> None:
        super()._lose(request)
        for delay_s in (0.0, 0.5):
            self._after(delay_s, lambda: self._perform_late(request))


class Unsure(SimStore):
    """Loses connections without a fault."""

    def __init__(self, seed: int, spawn: Any) -> None:
        super().__init__(seed, spawn)
        self.loss = 0.01


class Halves(SimStore):
    """Writes one half of the keys after the other."""

    def _write(self, node: str, texts: Mapping[str, bytes | None], lease: int, cause: str) -> int:
        first = dict(list(texts.items())[:1])
        super()._write(node, first, lease, cause)
        return super()._write(node, {k: text for k, text in texts.items() if k not in first}, lease, cause)


class Forgetful(SimStore):
    """Loses its last write when it stops."""

    def stop(self) -> None:
        for key in [key for key, entry in self._entries.items() if entry.revision == self._revision]:
            del self._entries[key]
        super().stop()


class Stale(SimStore):
    """Reads an older state now and then."""

    older: Snapshot | None = None

    def load(self) -> Snapshot:
        current = super().load()
        if self.older is not None and self._revision % 10 == 0:
            return self.older
        self.older = current
        return current


class StandingStill(SimStore):
    """Does not count the end of a lease."""

    def _write(self, node: str, texts: Mapping[str, bytes | None], lease: int, cause: str) -> int:
        self._revision -= cause == "lease"
        return super()._write(node, texts, lease, cause)


class Clinging(SimStore):
    """Removes keys with any lease under which they were ever written."""

    def _write(self, node: str, texts: Mapping[str, bytes | None], lease: int, cause: str) -> int:
        held = {number: dict(each.keys) for number, each in self._leases.items()}
        revision = super()._write(node, texts, lease, cause)
        for number, keys in held.items():
            if number in self._leases:
                self._leases[number].keys.update(keys)
        return revision


class Endless(SimStore):
    """Ends no lease by its time."""

    def _end_in_time(self, number: int) -> None:
        pass


class Hasty(SimStore):
    """Ends leases early."""

    def grant_lease(self, node: str, ttl_s: float) -> int:
        return super().grant_lease(node, ttl_s / 4)


class Reviving(SimStore):
    """Renews a lease that has ended."""

    def renew_lease(self, number: int) -> None:
        if number not in self._leases:
            self._leases[number] = _Lease("", 3.0, 0.0)
        self._leases[number].ends_at = trio.current_time() + 3.0
        self._await_end(number)


class DroppingWatch(SimWatch):
    """Drops a change now and then."""

    def tell(self, arrives_at: float, revision: int, texts: Mapping[str, bytes | None]) -> bool:
        return revision % 20 == 0 or super().tell(arrives_at, revision, texts)


class BackwardWatch(SimWatch):
    """Brings the last change first."""

    def tell(self, arrives_at: float, revision: int, texts: Mapping[str, bytes | None]) -> bool:
        taken = super().tell(arrives_at, revision, texts)
        self._told.rotate(1)
        return taken


class RepeatingWatch(SimWatch):
    """Brings each change twice."""

    def tell(self, arrives_at: float, revision: int, texts: Mapping[str, bytes | None]) -> bool:
        return super().tell(arrives_at, revision, texts) and super().tell(arrives_at, revision, texts)


class PartialWatch(SimWatch):
    """Leaves out removals."""

    def tell(self, arrives_at: float, revision: int, texts: Mapping[str, bytes | None]) -> bool:
        return super().tell(arrives_at, revision, {key: text for key, text in texts.items() if text is not None})


def with_watch(kind: type[SimWatch]) -> type[SimStore]:
    """A store whose watches are of a kind."""

    class Watched(SimStore):
        def new_watch(self, node: str) -> SimWatch:
            return kind(node, self._rng)

    Watched.__name__ = kind.__name__
    return Watched


# --- planted faults of a served store --------------------------------------------------------------------------------


class SureClient(ServedStore):
    """Says that a write was not made when its connection is lost."""

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        try:
            return await super().put_all(changes, conditions, lease)
        except MetadataUnknown as error:
            raise MetadataUnavailable(error.text) from error


class RepeatingClient(ServedStore):
    """Sends a write again when its connection is lost."""

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        try:
            return await super().put_all(changes, conditions, lease)
        except MetadataUnknown:
            return await super().put_all(changes, conditions, lease)


class NumberingClient(ServedStore):
    """Takes the server's number for the lease."""

    async def grant_lease(self, ttl_s: float) -> int:
        lease = await super().grant_lease(ttl_s)
        assert self._link is not None
        number = self._link.leases[lease]
        self._link.lease = lambda lease: lease  # type: ignore[method-assign]
        return number


class ResumingClient(ServedStore):
    """Opens a lost watch again and says nothing."""

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[ServedWatch]:
        async with super().watch() as watch:
            fetch = watch.next

            async def resume() -> Changes:
                nonlocal fetch
                try:
                    return await fetch()
                except MetadataUnavailable:
                    again = ServedWatch(await self._dial(watches=True))
                    await again.begin()
                    fetch = again.next
                    return await fetch()

            watch.next = resume  # type: ignore[method-assign]
            yield watch


PLANTED: dict[str, Opener] = {
    kind.__name__: partial(simulated, kind=kind)
    for kind in (
        Trusting, Suspicious, Sure, Repeating, Unsure, Halves, Forgetful, Stale, StandingStill, Clinging, Endless,
        Hasty, Reviving, with_watch(DroppingWatch), with_watch(BackwardWatch), with_watch(RepeatingWatch),
        with_watch(PartialWatch),
    )
} | {
    kind.__name__: partial(served, client=kind)
    for kind in (SureClient, RepeatingClient, NumberingClient, ResumingClient)
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    first = FOUND_WITH.get(name, 0)
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            run_walk(seed, PLANTED[name])
        except (AssertionError, ExceptionGroup):
            return
    pytest.fail(f"{name} was not found with {MUTANT_SEEDS} seeds")
