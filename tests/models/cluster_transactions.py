"""Model of transactions over brokers: a coordinator with a replicated log, and participants that are led elsewhere.

A log is at its leader, and a part of it is committed. When another broker leads it, that one has what is committed and
some of the rest. A coordinator may go on for a while after it was replaced: it commits nothing, and answers from what
was committed before. A participant that goes on like this can neither confirm nor show anything that is not committed,
so it does no harm and has no state here. Everything that was ever sent may arrive at any time, once more too: batches,
settlements, requests to commit. A broker alone that restarts is the case in which leaders move and nothing is lost.

Participants are partitions, and a source: the positions of a group, or the settlements of a subscription. In the log of
the source a seat is an assignment or a lease, and the data of a transaction is what it settles.

Rules that are needed, and what goes wrong without them:

1. What the coordinator tells is committed in its log: a name, the branches of a transaction, a commit, and **an abort
   too**. There are no records of aborts in a broker alone, because a restart aborts what is undecided. Here the next
   coordinator would take a transaction for open whose abort was told, and commit it when its request comes late.
2. The branches of a transaction are in the log. The next coordinator would not know them, and abort.
3. Numbers of a name are not used again, nor are seats: taking a name skips the number that may be open.
4. A batch or a settlement is confirmed when it is committed. A commit names what counts, as (branch, participant), and
   all of that was confirmed. The decision carries it, and a participant that asks and is not named in it aborts.
5. A decision is kept until its marks are committed at all whom it names. The next decision of the name waits for that.
6. A participant asks about what has been open for long, not only when its leader is new: no mark comes to one that no
   decision names. It is told commit, abort, or nothing.
7. A coordinator that does not know a transaction says nothing unless it is sure that it was not replaced: a newer one
   may have begun it. This is true of the answer to a commit as well.
8. A mark is applied once, where its part is open, and ends nothing else. A part that has ended is not opened again, and
   a batch does not join the transaction that happens to be open.
9. A seat is given when it is committed, and what is settled comes under the last seat. Whoever takes a seat waits until
   nothing is open before it and **the marks are committed**. If only the first holds, a position moves back: the log
   goes on without the mark, which comes again after the mark of the new owner.
10. A producer that is fenced is told that, not that its transaction was aborted: only the last decision is kept.

Rules that the model does without, or that others cover, so that variants without them do no harm:

- A participant need not ask the coordinator before the first write (KIP-890). It may append and ask at the same time,
  as rule 6 ends whatever was opened in vain. Asking spares readers a stable offset that stands still.
- An append need not check that the permission to write still stands: in this model, permissions never lapse but with
  their leader, and need not lapse then.
- A coordinator never has to answer "unknown" as long as it forgets no name.
- Marks need not be noted in the coordinator's log: that all are committed can be asked again, as they are idempotent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from explore import FAULT

Part = tuple[int, int, int]
"""(producer, number, branch): the branch of a transaction. Numbers of a producer are not used again."""
Share = tuple[int, int]
"""(branch, participant)"""
SOURCE = 2
"""The participant whose records are worked on: a group's positions, or a subscription's settlements."""
JUMP = 10
"""Numbers begin at a new multiple of it for each owner of a name."""
NOBODY = -1
NOTHING = -1


class Event(NamedTuple):
    """Entry of the coordinator's log."""

    kind: str
    """named | branches | commit | abort"""
    producer: int
    number: int
    """The transaction's; of `named`, the last one that can be neither begun nor committed any more."""
    branches: tuple[int, ...] = ()
    """Branches that were announced."""
    counted: tuple[Share, ...] = ()
    """The shares that a commit commits."""
    author: int = NOBODY
    """Process that asked for it: the truth, where processes have the same numbers by mistake."""


class Entry(NamedTuple):
    """Entry of a participant's log."""

    kind: str
    """data | commit | abort | seat; in the source's log, data is what a transaction settles."""
    part: Part = (NOBODY, 0, 0)
    author: int = NOBODY
    unit: int = NOTHING
    """Record of the source that it is the result of, or that it settles."""
    seat: int = 0
    """In the source's log: the assignment or lease, by its number."""


class EventLog(NamedTuple):
    """The coordinator's log at its leader."""

    events: tuple[Event, ...] = ()
    committed: int = 0


class Log(NamedTuple):
    """A participant's log at its leader."""

    entries: tuple[Entry, ...] = ()
    committed: int = 0


class Work(NamedTuple):
    """A transaction that a process has begun."""

    number: int
    unit: int = NOTHING
    seat: int = 0


class Commit(NamedTuple):
    """Request to commit; names what counts, all of which was confirmed."""

    number: int
    counted: tuple[Share, ...]


class Process(NamedTuple):
    """Instance of a producer. All that it ever sent may arrive at any time, and any number of times."""

    phase: str
    """off | naming | announcing | idle | seated | writing | asked | leaving | ended | dead"""
    number: int = 0
    left: int = 0
    """Transactions that it has yet to begin."""
    begun: tuple[Work, ...] = ()
    asked: tuple[Commit, ...] = ()
    told: tuple[tuple[int, bool], ...] = ()
    """Transactions of which it was told whether they are committed."""


class Faults(NamedTuple):
    """Number of times that each fault may still happen."""

    coordinator: int = 0
    """Moves of the coordinator to another broker, which has what is committed and some of the rest."""
    cuts: int = 0
    """Moves of the coordinator in which the former one does not notice."""
    places: int = 0
    """Moves of a participant's leadership."""
    timeouts: int = 0
    takeovers: int = 0
    deaths: int = 0
    aborts: int = 0
    """Transactions that their process gives up."""


class State(NamedTuple):
    """State of the coordinator, the participants, and the processes."""

    log: EventLog
    former: tuple[Event, ...] | None
    """Events of a coordinator that was replaced and does not know it yet."""
    places: tuple[Log, ...]
    permitted: frozenset[tuple[int, Part]]
    """(participant, part): the coordinator has let it write, of which the participant has yet to make use."""
    processes: tuple[Process, ...]
    faults: Faults


class Name(NamedTuple):
    """All that the coordinator remembers of a producer."""

    ended: int = 0
    """The last number whose transaction has ended; the next one is the present transaction."""
    commit: Event | None = None
    """The last decision to commit."""
    branches: tuple[int, ...] = ()
    owner: int = NOBODY
    """Process that has taken the name."""


class Case(NamedTuple):
    """Bounds of one exploration."""

    faults: Faults
    ids: tuple[int, ...] = (0,)
    """Producer id of each process."""
    phases: tuple[str, ...] = ("idle",)
    transactions: tuple[int, ...] = (1,)
    """Number of transactions of each process."""
    branches: tuple[int, ...] = (0,)
    places: tuple[int, ...] = (0, 1)
    """Participants that each transaction writes to."""
    all_commit: bool = False
    """Whether every transaction has to be committed: nothing happens but that brokers restart and leaders move."""


@lru_cache(maxsize=200_000)
def known(events: tuple[Event, ...]) -> dict[int, Name]:
    """Read a coordinator's log."""
    names: dict[int, Name] = {}
    for event in events:
        name = names.get(event.producer, Name())
        if event.kind == "branches":
            name = name._replace(branches=event.branches)
        elif event.kind == "named":
            name = name._replace(ended=event.number, branches=(), owner=event.author)
        else:
            name = name._replace(ended=event.number, commit=event if event.kind == "commit" else name.commit)
        names[event.producer] = name
    return names


@lru_cache(maxsize=200_000)
def open_parts(entries: tuple[Entry, ...]) -> dict[Part, int]:
    """The parts of transactions that have data and no mark after it, with the offset of their first data."""
    parts: dict[Part, int] = {}
    for offset, entry in enumerate(entries):
        if entry.kind == "data":
            parts.setdefault(entry.part, offset)
        else:
            parts.pop(entry.part, None)
    return parts


@lru_cache(maxsize=200_000)
def outcomes(entries: tuple[Entry, ...]) -> dict[Part, str]:
    """The parts of transactions that have a mark, with the last one."""
    return {entry.part: entry.kind for entry in entries if entry.kind in ("commit", "abort")}


@lru_cache(maxsize=200_000)
def readable(log: Log, mutants: frozenset[str]) -> tuple[Entry, ...]:
    """Return the data that readers get."""
    opened = [] if "the stable offset passes what is open" in mutants else open_parts(log.entries).values()
    refused = () if "aborted data is read" in mutants else ("abort",)
    ends = outcomes(log.entries)
    below = log.entries[: min(log.committed, *opened, log.committed)]
    return tuple(entry for entry in below if entry.kind == "data" and ends.get(entry.part) not in refused)


@lru_cache(maxsize=200_000)
def positions(entries: tuple[Entry, ...]) -> tuple[int, ...]:
    """The positions that the source has had: each commit mark sets it behind what its transaction settled."""
    settled = {entry.part: entry.unit + 1 for entry in entries if entry.kind == "data"}
    return (0, *[settled[entry.part] for entry in entries if entry.kind == "commit" and entry.part in settled])


@lru_cache(maxsize=200_000)
def seat(entries: tuple[Entry, ...]) -> Entry:
    """The last assignment of the source."""
    return next((entry for entry in reversed(entries) if entry.kind == "seat"), Entry("seat"))


class ClusterTransactions:
    """Transactions over brokers as designed, or what becomes of them with planted bugs."""

    def __init__(self, case: Case, mutants: frozenset[str] = frozenset()) -> None:
        self.case = case
        self.mutants = mutants
        self.of_reading = mutants & {"the stable offset passes what is open", "aborted data is read"}
        self.has_source = SOURCE in case.places

    def initial(self) -> State:
        processes = zip(self.case.phases, self.case.transactions, strict=True)
        return State(
            log=EventLog(),
            former=None,
            places=(Log(),) * (max(self.case.places) + 1),
            permitted=frozenset(),
            processes=tuple(Process(phase, left=left) for phase, left in processes),
            faults=self.case.faults,
        )

    # --- what must hold ----------------------------------------------------------------------------------------------

    def broken(self, state: State) -> str | None:
        decisions = [event for event in state.log.events[: state.log.committed] if event.kind == "commit"]
        counted = {
            (event.author, (event.producer, event.number, branch), place)
            for event in decisions
            for branch, place in event.counted
        }
        for place, log in enumerate(state.places):
            if place != SOURCE:
                seen = readable(log, self.of_reading)
                if any((entry.author, entry.part, place) not in counted for entry in seen):
                    return "a record is readable that no decision covers"
            if _is_written_after_its_end(log.entries):
                return "a transaction is written to after its end"
        units = [
            work.unit
            for event in decisions
            for work in state.processes[event.author].begun
            if work.number == event.number and work.unit != NOTHING
        ]
        if len(units) > len({*units}):
            return "a record has its effect twice"
        if self.has_source and (reached := positions(state.places[SOURCE].entries)) != tuple(sorted(reached)):
            return "a position moves back"
        for index, process in enumerate(state.processes):
            for number, is_committed in process.told:
                if not is_committed and any((index, number) == (event.author, event.number) for event in decisions):
                    return "a producer is told that its transaction was aborted, and it is committed"
        return None if _is_fenced(state.log.events) else "a fenced producer commits"

    def unkept(self, state: State) -> str | None:
        decisions = [event for event in state.log.events if event.kind == "commit"]
        for place, log in enumerate(state.places):
            if open_parts(log.entries):
                return "a transaction stays open in a participant"
            ends = outcomes(log.entries)
            for event in decisions:
                for branch, where in event.counted:
                    part = event.producer, event.number, branch
                    if where != place:
                        continue
                    if ends.get(part) != "commit" or not any(
                        (entry.kind, entry.part, entry.author) == ("data", part, event.author) for entry in log.entries
                    ):
                        return f"participant {place} misses its part of a committed transaction"
        for index, process in enumerate(state.processes):
            if process.phase not in ("off", "idle", "ended", "dead"):
                return "a producer waits for ever"
            for number, is_committed in process.told:
                if is_committed and not any((index, number) == (event.author, event.number) for event in decisions):
                    return "an acknowledged transaction is not committed"
                if self.case.all_commit and not is_committed:
                    return "a transaction does not survive that leaders move"
        return None

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for index, process in enumerate(state.processes):
            yield from self._process(state, index, process)
            for work in process.begun:
                for branch in self.case.branches:
                    for place in self.case.places:
                        yield from self._write(state, index, work, branch, place)
            for commit in process.asked:
                yield from self._commit(state, index, commit)
        yield from self._end(state)
        for place, log in enumerate(state.places):
            yield from self._participant(state, place, log)
        if state.log.committed < len(state.log.events):
            whole = state.log._replace(committed=len(state.log.events))
            yield "the coordinator's log is committed", state._replace(log=whole)
        if state.former is not None:
            yield "the former coordinator notices", state._replace(former=None)
        if state.faults.coordinator:
            yield from self._move_coordinator(state)

    # --- processes ---------------------------------------------------------------------------------------------------

    def _process(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        if process.phase == "off" and state.faults.takeovers:
            after = _with(state, index, process._replace(phase="naming"))
            yield f"{FAULT}process {index} takes its name over", _spent(after, "takeovers")
        elif process.phase == "naming":
            yield from self._take_name(state, index, process)
        elif process.phase == "announcing":
            yield from self._announce(state, index, process)
        elif process.phase == "idle" and process.left:
            yield from self._begin(state, index, process)
        elif process.phase == "seated":
            yield from self._sit_down(state, index, process)
        elif process.phase == "writing":
            yield from self._ask(state, index, process)
        if process.phase in ("writing", "asked") and state.faults.deaths:
            yield f"{FAULT}process {index} dies", _spent(_with(state, index, process._replace(phase="dead")), "deaths")

    def _take_name(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        producer = self.case.ids[index]
        position, named = _found(state.log.events, "named", index)
        if named is None:
            ended = known(state.log.events).get(producer, Name()).ended
            jumped = ended if "a new owner goes on with the numbers" in self.mutants else (ended // JUMP + 1) * JUMP
            after = _logged(state, Event("named", producer, jumped, author=index))
            yield f"the coordinator names process {index}", after
        elif position < state.log.committed or "a name is given before it is committed" in self.mutants:
            owner = process._replace(phase="idle", number=named.number)
            yield f"process {index} has its name", _with(state, index, owner)

    def _announce(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        position, announced = _found(state.log.events, "branches", index)
        if announced is None:
            event = Event("branches", self.case.ids[index], process.number, self.case.branches, (), index)
            yield f"the coordinator notes the branches of process {index}", _logged(state, event)
        elif position < state.log.committed or "branches are announced before they are committed" in self.mutants:
            yield f"process {index} has its branches", _with(state, index, process._replace(phase="idle"))

    def _begin(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        if self.has_source:
            taken = _with(state, index, process._replace(phase="seated", left=process.left - 1))
            yield f"process {index} asks for something to work on", self._seated(taken, index)
        else:
            begun = process._replace(
                phase="writing",
                number=process.number + 1,
                left=process.left - 1,
                begun=(*process.begun, Work(process.number + 1)),
            )
            yield f"process {index} begins {begun.number}", _with(state, index, begun)

    def _seated(self, state: State, index: int) -> State:
        number = seat(state.places[SOURCE].entries).seat + 1
        return _appended(state, SOURCE, Entry("seat", author=index, seat=number))

    def _sit_down(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        """Begin to work, once the assignment is committed and everything before it has ended."""
        log = state.places[SOURCE]
        place, last = max(
            ((at, entry) for at, entry in enumerate(log.entries) if (entry.kind, entry.author) == ("seat", index)),
            default=(0, None),
        )
        if last is None or last.seat in [work.seat for work in process.begun]:
            yield f"process {index} asks again for something to work on", self._seated(state, index)
        elif last != seat(log.entries):
            yield f"process {index} has lost its seat", _with(state, index, process._replace(phase="idle"))
        elif place < log.committed or "a seat is given before it is committed" in self.mutants:
            seen = (
                log.entries
                if "a mark counts for a new owner before it is committed" in self.mutants
                else (log.entries[: log.committed])
            )
            is_waiting = open_parts(log.entries) or open_parts(seen)
            if is_waiting and "a new owner does not wait for what is open" not in self.mutants:
                return
            work = Work(process.number + 1, positions(seen)[-1], last.seat)
            begun = process._replace(phase="writing", number=work.number, begun=(*process.begun, work))
            yield f"process {index} begins {work.number} with record {work.unit}", _with(state, index, begun)

    def _ask(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        """Ask to commit branches of which everything is confirmed, or give up."""
        shares = [(branch, place) for branch in self.case.branches for place in self.case.places]
        confirmed = tuple(share for share in shares if self._is_confirmed(state, index, process, *share))
        choices = [confirmed] if self.has_source or self.case.all_commit else [confirmed, confirmed[:1]]
        for counted in sorted({*choices} - {()}):
            if counted == tuple(shares) or not (self.has_source or self.case.all_commit):
                commit = Commit(process.number, counted)
                asked = process._replace(phase="asked", asked=(*process.asked, commit))
                yield f"process {index} asks to commit {commit.number}: {counted}", _with(state, index, asked)
        if state.faults.aborts:
            after = _with(state, index, process._replace(phase="leaving"))
            yield f"{FAULT}process {index} gives {process.number} up", _spent(after, "aborts")

    def _is_confirmed(self, state: State, index: int, process: Process, branch: int, place: int) -> bool:
        part = self.case.ids[index], process.number, branch
        entries, committed = state.places[place]
        seen = entries if "a batch is confirmed before it is committed" in self.mutants else entries[:committed]
        return any((entry.kind, entry.part, entry.author) == ("data", part, index) for entry in seen)

    # --- participants ------------------------------------------------------------------------------------------------

    def _write(self, state: State, index: int, work: Work, branch: int, place: int) -> Iterator[tuple[str, State]]:
        """Let a participant take a batch or a settlement, which may be late or a repetition."""
        part = self.case.ids[index], work.number, branch
        entries = state.places[place].entries
        data = Entry("data", part, index, work.unit, work.seat if place == SOURCE else 0)
        label = f"participant {place} takes {part} of process {index}"
        if data in entries:
            if "a part that has ended is opened again" not in self.mutants or part not in outcomes(entries):
                return
        elif self._is_late(entries, part):
            yield from self._refused(state, index, work, f"{label}: too late")
            return
        if place == SOURCE and work.seat != seat(entries).seat and "a former owner settles" not in self.mutants:
            yield from self._refused(state, index, work, f"{label}: its seat is gone")
        elif any((other[0], other[2]) == (part[0], part[2]) and other != part for other in open_parts(entries)):
            if "a batch goes to the transaction that is open" in self.mutants:
                other = next(iter(open_parts(entries)))
                yield f"{label} as {other}", _appended(state, place, data._replace(part=other))
        elif (
            (place, part) in state.permitted
            or part in open_parts(entries)
            or "a participant does not ask first" in self.mutants
        ):
            after = state._replace(permitted=state.permitted - {(place, part)})
            yield label, _appended(after, place, data)
        else:
            yield from self._check(state, index, work, part, place, label)

    def _is_late(self, entries: tuple[Entry, ...], part: Part) -> bool:
        if "a part that has ended is opened again" in self.mutants:
            return False
        if part in outcomes(entries):
            return True
        return any(
            (entry.part[0], entry.part[2]) == (part[0], part[2]) and entry.part[1] > part[1] for entry in entries
        )

    def _check(
        self, state: State, index: int, work: Work, part: Part, place: int, label: str
    ) -> Iterator[tuple[str, State]]:
        """Ask the coordinator, or one that was replaced, whether a transaction is under way."""
        for who, events in (("", state.log.events), (" (former)", state.former)):
            if events is None:
                continue
            name = known(events).get(part[0], Name())
            is_branch = self.case.branches == (0,) or part[2] in name.branches
            if work.number <= name.ended or (work.number == name.ended + 1 and not is_branch and not who):
                yield from self._refused(state, index, work, f"{label}: the coordinator{who} says no")
            elif work.number == name.ended + 1 and is_branch:
                yield (
                    f"{label}: the coordinator{who} permits it",
                    state._replace(permitted=state.permitted | {(place, part)}),
                )

    def _refused(self, state: State, index: int, work: Work, label: str) -> Iterator[tuple[str, State]]:
        """Tell a process that a write is refused: it gives the transaction up, if it is still at it."""
        process = state.processes[index]
        if process.phase == "writing" and process.number == work.number:
            yield label, _with(state, index, process._replace(phase="leaving"))

    def _participant(self, state: State, place: int, log: Log) -> Iterator[tuple[str, State]]:
        if log.committed < len(log.entries):
            after = _with_log(state, place, log._replace(committed=len(log.entries)))
            yield f"participant {place} is committed", after
        for part in open_parts(log.entries):
            outcome = self._outcome(state.log, part, place, has_moved=state.faults.places < self.case.faults.places)
            if outcome:
                after = _appended(state, place, Entry(outcome, part))
                yield f"participant {place} is told of {part}: {outcome}", after
            if state.former is not None:
                former = EventLog(state.former, len(state.former))
                said = self._outcome(former, part, place, is_former=True)
                if said not in ("", outcome):
                    after = _appended(state, place, Entry(said, part))
                    yield f"participant {place} is told of {part} by the former coordinator: {said}", after
        yield from self._late_marks(state, place, log)
        if state.faults.places:
            permitted = frozenset(each for each in state.permitted if each[0] != place)
            if "a permission outlives its leader" in self.mutants:
                permitted = state.permitted
            after = _spent(state._replace(permitted=permitted), "places")
            for kept in range(log.committed, len(log.entries) + 1):
                label = f"{FAULT}participant {place} moves to a broker without its last {len(log.entries) - kept}"
                yield label, _with_log(after, place, Log(log.entries[:kept], log.committed))

    def _outcome(
        self, log: EventLog, part: Part, place: int, *, is_former: bool = False, has_moved: bool = False
    ) -> str:
        """The end of a transaction as a coordinator tells it to a participant; "": not yet, or not by this one."""
        events = log.events
        name = known(events[: log.committed]).get(part[0], Name())
        if "a mark is sent before the decision is committed" in self.mutants:
            name = name._replace(commit=known(events).get(part[0], Name()).commit)
        if "an abort is told before it is committed" in self.mutants:
            name = name._replace(ended=known(events).get(part[0], Name()).ended)
        commit = name.commit
        if commit is not None and part[1] == commit.number:
            is_for_all = "a commit is for every participant that asks" in self.mutants
            return "commit" if (part[2], place) in commit.counted or is_for_all else "abort"
        if part[1] <= name.ended:
            if "participants ask after a move only" in self.mutants and not has_moved:
                return ""
            return "" if "participants do not ask" in self.mutants else "abort"
        is_branch = self.case.branches == (0,) or part[2] in name.branches
        is_unknown = part[1] > name.ended + 1 or not is_branch
        if "what is unknown is not answered" in self.mutants:
            return ""
        if is_unknown and (not is_former or "a coordinator aborts what it does not know yet" in self.mutants):
            return "abort"
        return ""

    def _late_marks(self, state: State, place: int, log: Log) -> Iterator[tuple[str, State]]:
        """Let marks that were sent twice do harm, as planted bugs."""
        for event in state.log.events[: state.log.committed]:
            part = event.producer, event.number, 0
            if event.kind != "commit" or (0, place) not in event.counted:
                continue
            if "a mark ends a later transaction" in self.mutants:
                for other in open_parts(log.entries):
                    if other[0] == event.producer and other[1] > event.number:
                        after = _appended(state, place, Entry("commit", other))
                        yield f"late mark of {part} ends {other} in participant {place}", after
            if "a mark is applied again" in self.mutants and outcomes(log.entries).get(part):
                last = [entry.part for entry in log.entries if entry.kind == "commit"][-1:]
                if last != [part]:
                    after = _appended(state, place, Entry("commit", part))
                    yield f"late mark of {part} is applied again in participant {place}", after

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def _commit(self, state: State, index: int, commit: Commit) -> Iterator[tuple[str, State]]:
        """Decide about a transaction, or tell what was decided."""
        producer = self.case.ids[index]
        process = state.processes[index]
        name = known(state.log.events).get(producer, Name())
        is_asked = process.phase == "asked" and process.number == commit.number
        label = f"the coordinator gets commit {commit.number} of process {index}"
        if commit.number == name.ended + 1:
            if self._is_complete(state, name.commit):
                event = Event("commit", producer, commit.number, counted=commit.counted, author=index)
                yield label, _logged(state, event)
        elif is_asked:
            commit_of = name.commit
            name = known(state.log.events[: state.log.committed]).get(producer, Name())
            if "a commit is acknowledged before it is committed" in self.mutants:
                name = name._replace(commit=commit_of)
            if name.commit is not None and name.commit.number == commit.number:
                yield f"{label}: it is committed", self._told(state, index, is_committed=True)
            elif name.owner not in (NOBODY, index) and "who is fenced is told of an abort" not in self.mutants:
                yield f"{label}: fenced", _with(state, index, process._replace(phase="ended"))
            elif commit.number <= name.ended:
                yield f"{label}: it is aborted", self._told(state, index, is_committed=False)
        if is_asked and state.former is not None:
            name = known(state.former).get(producer, Name())
            if (
                "a replaced coordinator refuses what it does not know yet" in self.mutants
                and commit.number > name.ended + 1
            ):
                yield f"{label}: unknown", self._told(state, index, is_committed=False)

    def _is_complete(self, state: State, commit: Event | None) -> bool:
        """Whether the marks of a decision are committed wherever it counts."""
        if commit is None or "a decision replaces one whose marks are missing" in self.mutants:
            return True
        for branch, place in commit.counted:
            entries, committed = state.places[place]
            if "marks count before they are committed" in self.mutants:
                committed = len(entries)
            if (commit.producer, commit.number, branch) not in outcomes(entries[:committed]):
                return False
        return True

    def _told(self, state: State, index: int, is_committed: bool) -> State:
        process = state.processes[index]
        told = *process.told, (process.number, is_committed)
        return _with(state, index, process._replace(phase="idle", told=told))

    def _end(self, state: State) -> Iterator[tuple[str, State]]:
        """Abort what is under way: its process gives it up, is dead, or takes too long."""
        for index, process in enumerate(state.processes):
            producer = self.case.ids[index]
            name = known(state.log.events).get(producer, Name())
            durable = known(state.log.events[: state.log.committed]).get(producer, Name())
            label = f"{process.number} of process {index}"
            if process.phase in ("writing", "asked", "leaving", "dead") and process.number == name.ended + 1:
                after = _logged(state, Event("abort", producer, process.number))
                if process.phase in ("leaving", "dead"):
                    yield f"the coordinator aborts {label}", after
                elif state.faults.timeouts:
                    yield f"{FAULT}{label} takes too long", _spent(after, "timeouts")
            elif process.phase == "leaving" and process.number <= durable.ended:
                yield f"{label} is aborted", self._told(state, index, is_committed=False)

    def _move_coordinator(self, state: State) -> Iterator[tuple[str, State]]:
        after = _spent(state, "coordinator")
        events, committed = state.log
        for kept in range(committed, len(events) + 1):
            label = f"{FAULT}the coordinator moves to a broker without its last {len(events) - kept}"
            log = EventLog(events[:kept], committed)
            if "a new coordinator aborts what is open" in self.mutants:
                for producer in sorted({*self.case.ids}):
                    ended = known(log.events).get(producer, Name()).ended
                    log = log._replace(events=(*log.events, Event("abort", producer, ended + 1)))
            yield label, after._replace(log=log)
            if state.faults.cuts:
                yield (
                    f"{label}, and the former one goes on",
                    _spent(after._replace(log=log, former=events[:committed]), "cuts"),
                )


# --- parts of a state ------------------------------------------------------------------------------------------------


def _is_written_after_its_end(entries: tuple[Entry, ...]) -> bool:
    ended: set[Part] = set()
    for entry in entries:
        if entry.kind == "data" and entry.part in ended:
            return True
        if entry.kind in ("commit", "abort"):
            ended.add(entry.part)
    return False


@lru_cache(maxsize=200_000)
def _is_fenced(events: tuple[Event, ...]) -> bool:
    """Whether no commit of an owner comes after its name was taken over."""
    owners: dict[int, int] = {}
    for event in events:
        if event.kind == "named":
            owners[event.producer] = event.author
        elif event.kind == "commit" and owners.get(event.producer, event.author) != event.author:
            return False
    return True


def _found(events: tuple[Event, ...], kind: str, author: int) -> tuple[int, Event | None]:
    found = [(at, event) for at, event in enumerate(events) if (event.kind, event.author) == (kind, author)]
    return found[-1] if found else (0, None)


def _spent(state: State, fault: str) -> State:
    return state._replace(faults=state.faults._replace(**{fault: getattr(state.faults, fault) - 1}))


def _with(state: State, index: int, process: Process) -> State:
    return state._replace(processes=(*state.processes[:index], process, *state.processes[index + 1 :]))


def _with_log(state: State, place: int, log: Log) -> State:
    return state._replace(places=(*state.places[:place], log, *state.places[place + 1 :]))


def _appended(state: State, place: int, entry: Entry) -> State:
    log = state.places[place]
    return _with_log(state, place, log._replace(entries=(*log.entries, entry)))


def _logged(state: State, event: Event) -> State:
    return state._replace(log=state.log._replace(events=(*state.log.events, event)))


CASES = {
    "restart": Case(Faults(coordinator=2, cuts=1, places=2), transactions=(2,), all_commit=True),
    "timeout": Case(Faults(coordinator=1, cuts=1, timeouts=1, places=1)),
    "next": Case(Faults(coordinator=1, cuts=1, places=1), transactions=(2,)),
    "death": Case(Faults(coordinator=1, cuts=1, places=1, deaths=1, aborts=1)),
    "names": Case(Faults(coordinator=1, takeovers=2, places=1), (0, 0), ("off", "off"), (2, 1), places=(0,)),
    "cut": Case(Faults(coordinator=1, cuts=1, takeovers=1, places=1), (0, 0), ("idle", "off"), (1, 1), places=(0,)),
    "branches": Case(
        Faults(coordinator=1, cuts=1, places=1, timeouts=1), phases=("announcing",), branches=(0, 1), places=(0,)
    ),
    "source": Case(Faults(coordinator=1, places=1, timeouts=1), (0, 1), ("idle", "idle"), (1, 1), places=(SOURCE,)),
    "effects": Case(Faults(coordinator=1), (0, 1), ("idle", "idle"), (1, 1), places=(0, SOURCE)),
}
"""Bounds under which the model is explored as a whole."""
