"""The conformance suite of participants, blocking and async ones: `ParticipantConformance`, to subclass.

    class TestLedger(ParticipantConformance):
        @pytest.fixture
        def harness(self, tmp_path: Path) -> ParticipantHarness:
            path = tmp_path / "ledger.db"
            return ParticipantHarness(
                make=lambda: LedgerParticipant(path), write=lambda ledger, text: ledger.add(text), effects=...
            )

Laws: a test uses a participant only through the methods of its port, and the store only through the harness. An
`AsyncParticipant` runs under asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from linn.client.participants.participant import NO_FLOOR, AsyncParticipant, Floor, Mark, Participant, Place
from linn.core.errors.tree import ParticipantConflict, TransactionEnded
from linn.testing.sim_env import SimEnv

TOPIC_ID = UUID("00000000-0000-4000-8000-0000000000aa")
PLACE = Place(TOPIC_ID, 0, "billing")
COMMITS = 1_000
"""Commits after which a store must not have grown."""
_WALKS, _STEPS = 6, 60
_RACES = 20
_PLACES = (
    *(Place(UUID(int=7), 0, ""), Place(UUID(int=8), 0, ""), Place(UUID(int=7), 1, ""), Place(UUID(int=7), 10, "")),
    *(Place(UUID(int=7), 0, reader) for reader in ("a", "A", "a/b", "a-b", "a_b", "a%2fb", "..", "0", "é", "a" * 250)),
)
"""Places that a store might confuse."""


def _nothing(handle: Any) -> None:
    """Leave a handle as it is."""


@dataclass(frozen=True)
class ParticipantHarness:
    """A store, and functions that inspect it from outside; they may be coroutine functions."""

    make: Callable[[], Participant[Any] | AsyncParticipant[Any]]
    """Make a participant, always on the same store, as after a restart of the program."""
    write: Callable[[Any, str], object]
    """Write an effect through a handle. The same text may be written again, as another effect."""
    effects: Callable[[], Any]
    """Read all stored effects, in any order, without a participant."""
    abandon: Callable[[Any], object] = _nothing
    """Cut a handle off from the store, as the death of its process does."""
    end: Callable[[Any], object] | None = None
    """End the transaction through the handle, as an application must not; None if that can't be done."""
    stored: Callable[[], Any] | None = None
    """Count the rows, keys or bytes of marks and floors; None if they can't be told from the effects."""
    waits: bool = False
    """Whether `begin` waits until no other instance has a transaction about the same place."""


class Instance:
    """Blocking facade of a participant, whose methods may be coroutines."""

    def __init__(self, harness: ParticipantHarness, run: Callable[[object], Any]) -> None:
        self.harness, self.run = harness, run
        self.made = harness.make()

    def open(self) -> Instance:
        """Open the participant, and return this instance."""
        self.run(self.made.open())
        return self

    def floor(self, place: Place = PLACE) -> Floor:
        """Return the floor of a place."""
        return Floor(*self.run(self.made.floor(place)))

    def begin(self, place: Place = PLACE) -> Any:
        """Begin a transaction, and return its handle."""
        return self.run(self.made.begin(place))

    def applied(self, mark: Mark) -> list[int]:
        """Return the offsets of a mark that had their effect; checks that the ranges are in order and disjoint."""
        parts = [(first, end) for first, end in self.run(self.made.applied(mark))]
        assert all(mark.first <= first < end <= mark.end for first, end in parts), parts
        assert all(before[1] <= after[0] for before, after in pairwise(parts)), parts
        return [offset for first, end in parts for offset in range(first, end)]

    def prepare(self) -> None:
        """Ask whether the transaction could be committed."""
        self.run(self.made.prepare())

    def write(self, handle: Any, text: str) -> None:
        """Write an effect."""
        self.run(self.harness.write(handle, text))

    def commit(self, *marks: Mark, floor: Floor = NO_FLOOR) -> None:
        """Commit marks and a floor."""
        self.run(self.made.commit(marks, floor))

    def rollback(self) -> None:
        """Undo the transaction."""
        self.run(self.made.rollback())

    def close(self) -> None:
        """Close it."""
        self.run(self.made.close())

    # --- whole transactions --------------------------------------------------------------------------------------

    def apply(self, text: str, *marks: Mark, floor: Floor = NO_FLOOR, place: Place = PLACE) -> None:
        """Begin, write and commit."""
        self.write(self.begin(place), text)
        self.commit(*marks, floor=floor)

    def apply_again(self, text: str, *marks: Mark, floor: Floor = NO_FLOOR) -> None:
        """Apply marks again, expect the conflict, and roll back."""
        with pytest.raises(ParticipantConflict):
            self.apply(text, *marks, floor=floor)
        self.rollback()

    def found(self, mark: Mark, place: Place = PLACE) -> list[int]:
        """Return the offsets of a mark that had their effect, in a transaction of its own."""
        self.begin(place)
        offsets = self.applied(mark)
        self.rollback()
        return offsets


@contextmanager
def instances(harness: ParticipantHarness) -> Iterator[Callable[[], Instance]]:
    """Yield a maker of opened instances, and close them in the end."""
    made: list[Instance] = []
    with asyncio.Runner() as runner:

        def run(result: object) -> Any:
            async def awaited(result: Awaitable[object]) -> object:
                return await result

            return runner.run(awaited(result)) if inspect.isawaitable(result) else result

        def make() -> Instance:
            made.append(Instance(harness, run))
            return made[-1].open()

        try:
            yield make
        finally:
            for instance in made:
                instance.close()


@contextmanager
def instance_of(harness: ParticipantHarness) -> Iterator[Instance]:
    """Yield an opened instance, and close it in the end."""
    with instances(harness) as make:
        yield make()


def effects_of(instance: Instance) -> Counter[str]:
    """Return the stored effects."""
    return Counter(instance.run(instance.harness.effects()))


class ParticipantConformance:
    """The promises of `linn.participants.Participant`. A subclass gives the fixture `harness`."""

    # --- all or nothing ----------------------------------------------------------------------------------------------

    def test_nothing_is_there_at_first(self, harness: ParticipantHarness) -> None:
        with instance_of(harness) as participant:
            assert participant.floor() == NO_FLOOR
            assert participant.found(Mark(1, 0, 1_000)) == []
            assert effects_of(participant) == {}

    def test_effects_marks_and_floor_are_stored_together(self, harness: ParticipantHarness) -> None:
        with instance_of(harness) as participant:
            handle = participant.begin()
            participant.write(handle, "first")
            participant.write(handle, "second")
            assert effects_of(participant) == {}, "seen before the commit"
            participant.prepare()
            assert effects_of(participant) == {}, "seen after prepare"
            participant.commit(Mark(3, 10, 20), floor=Floor(3, 5))
            assert effects_of(participant) == Counter(["first", "second"])
            assert participant.floor() == Floor(3, 5)
            assert participant.found(Mark(3, 0, 30)) == [*range(5), *range(10, 20)]

    def test_a_rollback_leaves_nothing(self, harness: ParticipantHarness) -> None:
        with instance_of(harness) as participant:
            participant.apply("kept", Mark(1, 0, 10))
            for _ in range(2):
                participant.write(participant.begin(), "undone")
                assert participant.applied(Mark(1, 0, 30)) == [*range(10)]
                participant.prepare()
                participant.rollback()
                participant.rollback()
                assert effects_of(participant) == Counter(["kept"])
                assert participant.floor() == NO_FLOOR
                assert participant.found(Mark(1, 0, 30)) == [*range(10)]
            participant.apply("after it", Mark(1, 10, 20))
            assert effects_of(participant) == Counter(["kept", "after it"])

    def test_a_transaction_without_effects_leaves_its_marks(self, harness: ParticipantHarness) -> None:
        with instance_of(harness) as participant:
            participant.begin()
            participant.commit(Mark(1, 4, 6))
            assert participant.found(Mark(1, 0, 10)) == [4, 5]
            participant.apply_again("late", Mark(1, 5, 6))
            assert effects_of(participant) == {}

    def test_a_floor_is_raised_without_marks(self, harness: ParticipantHarness) -> None:
        with instances(harness) as make:
            participant = make()
            participant.begin()
            participant.commit(floor=Floor(2, 40))
            assert make().floor() == Floor(2, 40)
            assert participant.found(Mark(2, 38, 50)) == [38, 39]

    def test_a_floor_at_offset_0_says_that_something_was_committed(self, harness: ParticipantHarness) -> None:
        """A consumer uses that to find out whether the kind of a topic has changed."""
        with instances(harness) as make:
            make().apply("first", Mark(1, 0, 3), floor=Floor(1, 0))
            assert make().floor() == Floor(1, 0) != NO_FLOOR

    def test_numbers_may_be_large(self, harness: ParticipantHarness) -> None:
        epoch, offset = (1 << 32) - 1, (1 << 62) + 1
        with instances(harness) as make:
            make().apply("large", Mark(epoch, offset, offset + 3), floor=Floor(epoch, offset - 2))
            participant = make()
            assert participant.floor() == Floor(epoch, offset - 2)
            assert participant.found(Mark(epoch, offset - 4, offset + 5)) == [
                *(offset - 4, offset - 3),
                *(offset, offset + 1, offset + 2),
            ]

    # --- conflicts ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "marks",
        [
            [Mark(2, 10, 20)],
            [Mark(2, 19, 21)],
            [Mark(2, 9, 11)],
            [Mark(2, 5, 40)],
            [Mark(2, 14, 15)],
            [Mark(2, 4, 5)],
            [Mark(2, 4, 6)],
            [Mark(1, 0, 1)],
            [Mark(2, 30, 40), Mark(2, 19, 20)],
            [Mark(3, 10, 20), Mark(2, 10, 11)],
        ],
        ids=str,
    )
    def test_a_conflict_stores_nothing(self, harness: ParticipantHarness, marks: Sequence[Mark]) -> None:
        with instance_of(harness) as participant:
            participant.apply("first", Mark(2, 10, 20), floor=Floor(2, 5))
            participant.apply_again("twice", *marks, floor=Floor(3, 30))
            assert effects_of(participant) == Counter(["first"])
            assert participant.floor() == Floor(2, 5)
            assert participant.found(Mark(2, 0, 50)) == [*range(5), *range(10, 20)]
            assert participant.found(Mark(3, 0, 50)) == []
            participant.apply("next", Mark(2, 20, 30), Mark(3, 10, 20), Mark(2, 5, 10))
            assert effects_of(participant) == Counter(["first", "next"])
            assert participant.found(Mark(2, 0, 50)) == [*range(30)]

    def test_two_instances_know_of_one_another(self, harness: ParticipantHarness) -> None:
        with instances(harness) as make:
            pair = [make(), make()]
            for number in range(6):
                participant, other = pair[number % 2], pair[1 - number % 2]
                mark = Mark(1, 10 * number, 10 * number + 10)
                assert other.found(mark) == []
                participant.apply(str(number), mark, floor=Floor(1, 5 * number))
                assert other.floor() == Floor(1, 5 * number)
                assert other.found(mark) == [*range(mark.first, mark.end)]
                other.apply_again("twice", mark)
            assert effects_of(participant) == Counter(map(str, range(6)))

    def test_of_two_that_race_one_has_a_conflict(self, harness: ParticipantHarness) -> None:
        start = threading.Barrier(2, timeout=60)
        outcomes: list[str] = []

        def race(name: str) -> None:
            with instance_of(harness) as participant:
                for number in range(_RACES):
                    start.wait()
                    try:
                        participant.apply(f"{number}", Mark(1, number, number + 1), floor=Floor(1, number // 2))
                        outcomes.append(f"{number} done")
                    except ParticipantConflict:
                        outcomes.append(f"{number} conflict")
                        participant.rollback()

        with instance_of(harness) as watching:
            _in_threads(race, "ann", "bob")
            expected = [f"{number} {end}" for number in range(_RACES) for end in ("done", "conflict")]
            assert sorted(outcomes) == sorted(expected)
            assert effects_of(watching) == Counter(map(str, range(_RACES)))

    def test_transactions_that_overlap_in_time_conflict(self, harness: ParticipantHarness) -> None:
        if harness.waits:
            return
        with instances(harness) as make:
            participant, other = make(), make()
            handles = participant.begin(), other.begin()
            assert participant.applied(Mark(1, 0, 10)) == other.applied(Mark(1, 0, 10)) == []
            for instance, handle in zip((participant, other), handles, strict=True):
                instance.write(handle, "once")
            participant.commit(Mark(1, 0, 10), floor=Floor(1, 10))
            with pytest.raises(ParticipantConflict):
                other.commit(Mark(1, 9, 12), floor=Floor(1, 12))
            other.rollback()
            assert effects_of(participant) == Counter(["once"])
            assert other.floor() == Floor(1, 10)

    # --- marks and floors --------------------------------------------------------------------------------------------

    def test_epochs_are_told_apart(self, harness: ParticipantHarness) -> None:
        with instance_of(harness) as participant:
            participant.apply("old", Mark(4, 10, 20))
            participant.apply("new", Mark(6, 10, 15))
            assert participant.found(Mark(4, 0, 30)) == [*range(10, 20)]
            assert participant.found(Mark(5, 0, 30)) == []
            assert participant.found(Mark(6, 0, 30)) == [*range(10, 15)]
            participant.apply("between", Mark(5, 0, 30))
            assert effects_of(participant) == Counter(["old", "new", "between"])

    @pytest.mark.parametrize(
        ("then", "expected"),
        [
            (Floor(3, 100), Floor(3, 100)),
            (Floor(3, 101), Floor(3, 101)),
            (Floor(4, 100), Floor(4, 100)),
            (Floor(5, 300), Floor(5, 300)),
            (Floor(3, 99), Floor(3, 100)),
            (Floor(9, 99), Floor(3, 100)),
            (Floor(2, 101), Floor(3, 100)),
            (Floor(2, 99), Floor(3, 100)),
            (NO_FLOOR, Floor(3, 100)),
        ],
    )
    def test_a_floor_is_raised_if_neither_number_gets_lower(
        self, harness: ParticipantHarness, then: Floor, expected: Floor
    ) -> None:
        with instances(harness) as make:
            participant = make()
            participant.apply("first", Mark(3, 90, 100), floor=Floor(3, 100))
            participant.apply("second", Mark(9, 50, 60), floor=then)
            assert participant.floor() == make().floor() == expected
            assert participant.found(Mark(3, 95, 400)) == [*range(95, expected.offset)]
            assert participant.found(Mark(9, 45, 65)) == [*range(50, 60)]

    def test_a_floor_stands_for_the_marks_below_it_and_for_no_others(self, harness: ParticipantHarness) -> None:
        with instance_of(harness) as participant:
            for epoch in (1, 2, 3):
                participant.apply(f"epoch {epoch}", Mark(epoch, 10, 20), Mark(epoch, 30, 40))
            participant.begin()
            participant.commit(floor=Floor(2, 35))
            for epoch in (1, 2):
                assert participant.found(Mark(epoch, 0, 50)) == [*range(40)]
            assert participant.found(Mark(3, 0, 50)) == [*range(10, 20), *range(30, 40)]
            participant.apply("above", Mark(2, 40, 45), Mark(3, 20, 30))
            participant.apply_again("across", Mark(2, 34, 36))
            assert participant.found(Mark(3, 0, 50)) == [*range(10, 40)]

    @pytest.mark.parametrize("seed", range(_WALKS))
    def test_any_history_agrees_with_a_model(self, harness: ParticipantHarness, seed: int) -> None:
        rng, names = SimEnv(seed).rng, set[tuple[int, int]]()
        floor = NO_FLOOR
        with instance_of(harness) as participant:
            written = 0
            for _ in range(_STEPS):
                epoch, first = 1 + rng.integer(3), rng.integer(60)
                mark = Mark(epoch, first, first + 1 + rng.integer(12))
                wanted = Floor(rng.integer(4), rng.integer(50)) if rng.integer(4) == 0 else NO_FLOOR
                known = [n for n in _offsets(mark) if (epoch, n) in names or _is_dealt_with(floor, epoch, n)]
                handle = participant.begin()
                assert participant.applied(mark) == known
                participant.write(handle, "an effect")
                if known:
                    with pytest.raises(ParticipantConflict):
                        participant.commit(mark, floor=wanted)
                    participant.rollback()
                    continue
                participant.commit(mark, floor=wanted)
                written += 1
                names |= {(epoch, offset) for offset in _offsets(mark)}
                floor = wanted if wanted.epoch >= floor.epoch and wanted.offset >= floor.offset else floor
                assert participant.floor() == floor
            assert written
            assert effects_of(participant) == {"an effect": written}

    @pytest.mark.parametrize("is_raised", [True, False])
    def test_marks_take_no_more_room_after_many_commits(self, harness: ParticipantHarness, is_raised: bool) -> None:
        if harness.stored is None:
            return
        with instance_of(harness) as participant:
            sizes, gap = [], 2 if is_raised else 0  # Without a floor, marks are merged.
            for number in range(COMMITS):
                participant.begin()
                floor = Floor(1, 10 * number - 30) if is_raised and number > 3 else NO_FLOOR
                participant.commit(Mark(1, 10 * number + gap, 10 * number + 10), floor=floor)
                if number in (COMMITS // 20, COMMITS - 1):
                    sizes.append(participant.run(harness.stored()))
            early, late = sizes
            assert 0 < late <= early
            end = 10 * COMMITS
            gaps = {end - 20, end - 19, end - 10, end - 9} | {end - 40, end - 39, end - 30, end - 29} if gap else set()
            assert participant.found(Mark(1, 0, end + 10)) == [offset for offset in range(end) if offset not in gaps]

    def test_places_have_nothing_in_common(self, harness: ParticipantHarness) -> None:
        with instances(harness) as make:
            participant = make()
            for number, place in enumerate(_PLACES):
                participant.apply(str(number), Mark(1, 10, 11 + number), floor=Floor(1, 1 + number % 9), place=place)
            again = make()
            for number, place in enumerate(_PLACES):
                assert again.floor(place) == Floor(1, 1 + number % 9)
                assert again.found(Mark(1, 0, 50), place) == [*range(1 + number % 9), *range(10, 11 + number)]
            assert effects_of(participant) == Counter(map(str, range(len(_PLACES))))

    # --- the end of an instance --------------------------------------------------------------------------------------

    def test_everything_is_there_after_a_restart(self, harness: ParticipantHarness) -> None:
        with instances(harness) as make:
            participant = make()
            participant.apply("first", Mark(1, 0, 10), floor=Floor(1, 5))
            participant.close()
            again = make()
            assert again.floor() == Floor(1, 5)
            assert again.found(Mark(1, 0, 20)) == [*range(10)]
            again.apply("second", Mark(1, 10, 12))
            again.apply_again("twice", Mark(1, 9, 10))
            assert effects_of(again) == Counter(["first", "second"])

    def test_close_rolls_back_and_may_be_repeated(self, harness: ParticipantHarness) -> None:
        with instances(harness) as make:
            participant = make()
            participant.write(participant.begin(), "undone")
            participant.close()
            participant.close()
            again = make()
            assert again.found(Mark(1, 0, 10)) == []
            again.apply("done", Mark(1, 0, 10))
            assert effects_of(again) == Counter(["done"])

    def test_an_instance_that_is_abandoned_leaves_nothing(self, harness: ParticipantHarness) -> None:
        with instances(harness) as make:
            participant = make()
            participant.apply("first", Mark(1, 0, 10), floor=Floor(1, 3))
            handle = participant.begin()
            participant.write(handle, "undone")
            participant.prepare()
            again = make()
            assert again.floor() == Floor(1, 3), "opened while another instance has a transaction"
            participant.run(harness.abandon(handle))
            assert again.found(Mark(1, 0, 20)) == [*range(10)]
            again.apply("second", Mark(1, 10, 20))
            assert effects_of(again) == Counter(["first", "second"])

    @pytest.mark.parametrize("method", ["begin", "applied", "prepare", "commit"])
    def test_a_lost_connection_is_made_again(self, harness: ParticipantHarness, method: str) -> None:
        mark = Mark(1, 10, 20)
        with instance_of(harness) as participant:
            participant.apply("first", Mark(1, 0, 10))
            handle = participant.begin()
            if method == "begin":
                participant.rollback()
            else:
                participant.write(handle, "second")
            participant.run(harness.abandon(handle))
            with suppress(Exception):
                _call(participant, method, mark)
            participant.rollback()
            participant.begin()
            if not (parts := participant.applied(mark)):
                participant.rollback()
                participant.apply("second", mark)
            assert len(parts) in (0, 10)
            participant.rollback()
            assert effects_of(participant) == Counter(["first", "second"])
            assert participant.found(Mark(1, 0, 30)) == [*range(20)]

    def test_what_the_application_has_ended_takes_no_marks(self, harness: ParticipantHarness) -> None:
        if harness.end is None:
            return
        mark = Mark(1, 0, 10)
        with instance_of(harness) as participant:
            for ask in (
                participant.prepare,
                lambda: participant.applied(mark),
                lambda: participant.commit(mark, floor=Floor(1, 10)),
            ):
                participant.run(harness.end(participant.begin()))
                with pytest.raises(TransactionEnded):
                    ask()
                participant.rollback()
                assert participant.floor() == NO_FLOOR
                assert participant.found(mark) == []
            participant.apply("after it", mark)
            assert participant.found(mark) == [*range(10)]


def _call(participant: Instance, method: str, mark: Mark) -> None:
    """Call a method by name."""
    if method == "begin":
        participant.begin()
    elif method == "applied":
        participant.applied(mark)
    elif method == "prepare":
        participant.prepare()
    else:
        participant.commit(mark)


def _offsets(mark: Mark) -> Iterable[int]:
    return range(mark.first, mark.end)


def _is_dealt_with(floor: Floor, epoch: int, offset: int) -> bool:
    return epoch <= floor.epoch and offset < floor.offset


def _in_threads(race: Callable[[str], None], *names: str) -> None:
    """Run a function in a thread for each name; the first failure is raised."""
    failures: list[BaseException] = []

    def guarded(name: str) -> None:
        try:
            race(name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure
