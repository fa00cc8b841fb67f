"""Model of transactions: producers that write to two partitions, and a coordinator whose log has the decision.

The coordinator's log has Named, Joined, PrepareCommit or PrepareAbort, and Complete. A power loss takes any part of the
tail that was not synced, of this log or of a partition's. Batches and requests to commit are repeated until they are
answered, and may arrive at any time later. One process may take the name of another over, which goes on as a zombie.
Partition 1 is a queue as well. A kill takes nothing from a log, so it is a power loss that takes nothing.

Rules that are needed, and what goes wrong without them:

1. A transaction is (producer id, epoch, number), in batches and in markers as well. The coordinator does not know every
   number that an old instance has used: it may never have heard of one, or have lost Joined in a power loss. So a new
   instance may use a number again, and its marker commits the old instance's data.
2. A request to commit names the partitions (and branches) that confirmed batches, and the coordinator commits only if
   all of them have joined. Otherwise a power loss that takes one Joined makes it commit without that partition.
3. A batch of a transaction is confirmed when it is durable, whatever the topic's policy is, and a client asks to commit
   when all of its batches are confirmed.
4. A partition asks for a transaction that has been open for long, and not after its own restart only: if the power
   loss is the coordinator's, no marker comes to a partition whose Joined is lost, which has not restarted. "Older",
   "unknown", "complete" and "you have not joined" all mean abort; "undecided" and "decided" mean wait. An answer
   counts in the run that asked: after a restart the transaction may have joined anew, and be committed.
5. An epoch is handed out when Named is durable, and a request for a name that outlives a restart is made anew.
   Otherwise two instances may be given the same epoch.
6. A transaction that is undecided and of an older epoch is aborted whenever the coordinator sees it, also after a
   restart: a power loss may take PrepareAbort and leave the Named before it.
7. A transaction of a producer joins when its previous one is complete, and that is when all markers are durable.
8. A request to commit is answered, and markers are sent, when the decision is durable. An unanswered request is
   repeated; a producer that is told that it is fenced does not know whether its last request was granted.
9. A coordinator that knows nothing of a transaction refuses to commit it, although it might be an empty one.

Three rules that others cover can be left out without harm to what is read: that a timeout fences the producer before it
aborts (numbers keep late messages out; the fence tells the producer), that a partition refuses data of a transaction
that has ended there (rule 4 ends what is opened again, but the stable offset waits for it), and that Joined is appended
before the data (rule 2 refuses to commit without it, and rule 4 ends what never joined).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from explore import FAULT

Transaction = tuple[int, int, int]
"""(producer id, epoch, number): grows with every transaction of a producer, and with every instance of it."""
Part = tuple[int, int, int, int]
"""Transaction, and branch of it."""
PARTITIONS = (0, 1)
QUEUE = 1
"""The partition that a queue reads as well."""
NOBODY = -1


class Event(NamedTuple):
    """Entry of the coordinator's log."""

    kind: str
    """named | joined | prepare | complete"""
    transaction: Transaction
    branch: int = 0
    partition: int = 0
    commits: tuple[int, ...] = ()
    """The branches that a decision commits; none is an abort."""
    author: int = NOBODY


class Write(NamedTuple):
    """A batch that its producer repeats until it is confirmed or refused."""

    part: Part
    partition: int
    author: int
    """Process that wrote it: the truth, which no one can see in the batch."""
    is_checked: bool = False
    """Whether the coordinator has let it join, of which the partition has yet to make use."""


class Entry(NamedTuple):
    """Batch in a partition's log."""

    kind: str
    """data | commit | abort"""
    part: Part
    author: int = NOBODY
    written_in: Part = (0, 0, 0, 0)
    """Part of a transaction in which its producer wrote it: the truth."""


class Commit(NamedTuple):
    """Request to commit; names the branches that count, and implies that both partitions confirmed them."""

    transaction: Transaction
    branches: tuple[int, ...]
    author: int


class Process(NamedTuple):
    """Instance of a producer."""

    phase: str
    """off | naming | idle | writing | asked | over | ended"""
    epoch: int = 0
    number: int = 0
    left: int = 0
    """Transactions that it has yet to begin."""


class Faults(NamedTuple):
    """Number of times that each fault may still happen."""

    coordinator: int = 0
    """Power losses of the coordinator, each of which may take nothing."""
    partitions: int = 0
    """Power losses of a partition."""
    timeouts: int = 0
    takeovers: int = 0


class State(NamedTuple):
    """State of the coordinator, the partitions, and the producers with their messages."""

    events: tuple[Event, ...]
    synced: int
    logs: tuple[tuple[Entry, ...], ...]
    logs_synced: tuple[int, ...]
    writes: frozenset[Write]
    commits: frozenset[Commit]
    processes: tuple[Process, ...]
    faults: Faults
    promised: frozenset[Commit] = frozenset()
    """Transactions whose commit was acknowledged."""
    answers: frozenset[tuple[Part, int]] = frozenset()
    """Answers "abort" that are on their way to a partition, where a variant says that they take time."""


class Current(NamedTuple):
    """The last transaction of a producer, all that the coordinator remembers."""

    transaction: Transaction
    joined: tuple[tuple[int, int], ...] = ()
    """(branch, partition)"""
    commits: tuple[int, ...] | None = None
    """The decision; None before it."""
    is_complete: bool = False


class Known(NamedTuple):
    """Content of the coordinator's log."""

    epochs: dict[int, int]
    current: dict[int, Current]


class Case(NamedTuple):
    """Bounds of one exploration."""

    faults: Faults
    ids: tuple[int, ...] = (0,)
    """Producer id of each process."""
    phases: tuple[str, ...] = ("idle",)
    transactions: tuple[int, ...] = (1,)
    """Number of transactions of each process."""
    branches: tuple[int, ...] = (0,)
    partitions: tuple[int, ...] = PARTITIONS
    """Partitions that each transaction writes to."""


@lru_cache(maxsize=200_000)
def known(events: tuple[Event, ...]) -> Known:
    """Read the coordinator's log."""
    epochs: dict[int, int] = {}
    current: dict[int, Current] = {}
    for event in events:
        producer, epoch, _ = event.transaction
        now = current.get(producer)
        if event.kind == "named":
            epochs[producer] = epoch
        elif event.kind == "joined":
            if now is None or now.transaction != event.transaction:
                now = Current(event.transaction)
            current[producer] = now._replace(joined=(*now.joined, (event.branch, event.partition)))
        elif now is not None and now.transaction == event.transaction:
            done = now._replace(is_complete=True) if event.kind == "complete" else now._replace(commits=event.commits)
            current[producer] = done
    return Known(epochs, current)


@lru_cache(maxsize=200_000)
def open_parts(log: tuple[Entry, ...]) -> dict[Part, int]:
    """The parts of transactions that have data after their last marker, with the first offset of it."""
    parts: dict[Part, int] = {}
    for offset, entry in enumerate(log):
        if entry.kind == "data":
            parts.setdefault(entry.part, offset)
        else:
            parts.pop(entry.part, None)
    return parts


@lru_cache(maxsize=200_000)
def ended(log: tuple[Entry, ...]) -> frozenset[Part]:
    """The parts of transactions that have a marker."""
    return frozenset(entry.part for entry in log if entry.kind != "data")


@lru_cache(maxsize=200_000)
def readable(log: tuple[Entry, ...], mutants: frozenset[str]) -> tuple[Entry, ...]:
    """Return the data that a read_committed reader gets of the durable part of a log."""
    stable = min(open_parts(log).values(), default=len(log))
    if "stable offset passes what is open" in mutants:
        stable = len(log)
    outcome = {entry.part: entry.kind for entry in log if entry.kind != "data"}
    refused = () if "aborted data is read" in mutants else ("abort",)
    return tuple(entry for entry in log[:stable] if entry.kind == "data" and outcome.get(entry.part) not in refused)


@lru_cache(maxsize=200_000)
def deliverable(log: tuple[Entry, ...], mutants: frozenset[str]) -> tuple[Entry, ...]:
    """Return the data that a queue delivers of the durable part of a log."""
    if "aborted data is given to a queue" in mutants:
        return readable(log, frozenset(["aborted data is read"]))
    return readable(log, mutants)


class Transactions:
    """Transactions as designed, or what becomes of them with planted bugs."""

    def __init__(self, case: Case, mutants: frozenset[str] = frozenset()) -> None:
        self.case = case
        self.mutants = mutants
        self.of_reading = mutants & {"stable offset passes what is open", "aborted data is read"}
        self.of_queues = mutants & {"aborted data is given to a queue"} or self.of_reading

    def initial(self) -> State:
        processes = zip(self.case.phases, self.case.transactions, strict=True)
        return State(
            events=(),
            synced=0,
            logs=((),) * len(PARTITIONS),
            logs_synced=(0,) * len(PARTITIONS),
            writes=frozenset(),
            commits=frozenset(),
            processes=tuple(Process(phase, left=left) for phase, left in processes),
            faults=self.case.faults,
        )

    # --- what must hold ----------------------------------------------------------------------------------------------

    def broken(self, state: State) -> str | None:
        for partition, log in enumerate(state.logs):
            durable = log[: state.logs_synced[partition]]
            if not all(_is_promised(state, entry) for entry in readable(durable, self.of_reading)):
                return "a record that was not committed is readable"
            if partition == QUEUE and not all(
                _is_promised(state, entry) for entry in deliverable(durable, self.of_queues)
            ):
                return "a record that was not committed is delivered by a queue"
        epochs: dict[int, int] = {}
        for event in state.events:
            producer, epoch, _ = event.transaction
            if event.kind == "named":
                epochs[producer] = epoch
            elif event.kind == "prepare" and event.commits and epoch < epochs.get(producer, 0):
                return "a fenced producer commits"
        return None

    def unkept(self, state: State) -> str | None:
        for partition, log in enumerate(state.logs):
            if open_parts(log):
                return "a transaction stays open in a partition"
            read = {(entry.author, entry.written_in) for entry in readable(log, self.of_reading)}
            for transaction, branches, author in state.promised if partition in self.case.partitions else ():
                if not all((author, (*transaction, branch)) in read for branch in branches):
                    return f"a record of a committed transaction is not readable in partition {partition}"
        if any(process.phase in ("naming", "writing", "asked") for process in state.processes):
            return "a producer waits for ever"
        return None

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for index, process in enumerate(state.processes):
            yield from self._producer(state, index, process)
        for write in sorted(state.writes):
            yield from self._write(state, write)
        for commit in sorted(state.commits):
            after = self._commit(state, commit)
            if after != state:
                yield f"the coordinator gets commit {commit.transaction}", after
        if state.synced < len(state.events):
            yield "the coordinator's log is synced", self._sync(state)
        for producer, current in known(state.events).current.items():
            yield from self._coordinate(state, producer, current)
        for partition in PARTITIONS:
            yield from self._partition(state, partition)
        yield from self._late_markers(state)
        if state.faults.coordinator:
            yield from self._crash_coordinator(state)

    def _key(self, part: Part) -> Part:
        """Name of a part in a partition's log."""
        return (part[0], 0, part[2], part[3]) if "parts are named without epoch" in self.mutants else part

    # --- producers ---------------------------------------------------------------------------------------------------

    def _producer(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        producer = self.case.ids[index]
        if process.phase == "off" and state.faults.takeovers:
            after = state._replace(faults=state.faults._replace(takeovers=state.faults.takeovers - 1))
            yield f"{FAULT}process {index} takes its name over", self._name(after, index)
        elif process.phase == "naming":
            named = Event("named", (producer, process.epoch, 0), author=index)
            if named not in state.events:
                yield f"process {index} asks for its name again", self._name(state, index)
            elif named in state.events[: state.synced]:
                yield f"process {index} has its name", _with_process(state, index, process._replace(phase="idle"))
        elif process.phase in ("idle", "over"):
            if process.left:
                yield f"process {index} begins", self._begin(state, index, process)
            else:
                yield f"process {index} ends", _with_process(state, index, process._replace(phase="ended"))
        elif process.phase == "writing":
            yield from self._ask_commit(state, index, process)
        elif process.phase == "asked" and _is_decided(state, (producer, process.epoch, process.number)):
            yield f"process {index} has its answer", _with_process(state, index, process._replace(phase="over"))

    def _name(self, state: State, index: int) -> State:
        """Fence older instances of a producer, and abort what they have open."""
        producer = self.case.ids[index]
        now = known(state.events)
        epoch = now.epochs.get(producer, 0) + 1
        number = 0
        current = now.current.get(producer)
        if self.mutants & {"parts are named without epoch", "markers are named without epoch"} and current is not None:
            number = current.transaction[2]
        phase = "idle" if "an epoch is handed out before it is durable" in self.mutants else "naming"
        process = state.processes[index]._replace(phase=phase, epoch=epoch, number=number)
        return _with_process(self._fence(state, producer, index), index, process)

    def _fence(self, state: State, producer: int, author: int = NOBODY) -> State:
        """Raise a producer's epoch, and abort its transaction if that is undecided."""
        now = known(state.events)
        events = [Event("named", (producer, now.epochs.get(producer, 0) + 1, 0), author=author)]
        current = now.current.get(producer)
        if current is not None and (current.commits is None or "a timeout aborts what is decided" in self.mutants):
            events.append(Event("prepare", current.transaction))
        return state._replace(events=(*state.events, *events))

    def _begin(self, state: State, index: int, process: Process) -> State:
        process = process._replace(phase="writing", number=process.number + 1, left=process.left - 1)
        transaction = (self.case.ids[index], process.epoch, process.number)
        writes = {
            Write((*transaction, branch), partition, index)
            for branch in self.case.branches
            for partition in self.case.partitions
        }
        return _with_process(state._replace(writes=state.writes | writes), index, process)

    def _ask_commit(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        """Send the request to commit, naming branches of which every batch is confirmed."""
        transaction = (self.case.ids[index], process.epoch, process.number)
        confirmed = [
            branch for branch in self.case.branches if self._is_confirmed(state, index, (*transaction, branch))
        ]
        choices = {tuple(confirmed[:1]), tuple(confirmed[-1:]), tuple(confirmed)} - {()}
        for branches in sorted(choices):
            after = _with_process(state, index, process._replace(phase="asked"))
            commit = Commit(transaction, branches, index)
            label = f"process {index} asks to commit {transaction}, branches {branches}"
            yield label, after._replace(commits=state.commits | {commit})

    def _is_confirmed(self, state: State, author: int, part: Part) -> bool:
        for partition in self.case.partitions:
            log, synced = state.logs[partition], state.logs_synced[partition]
            seen = log if "a batch is confirmed before it is durable" in self.mutants else log[:synced]
            if not any(entry.kind == "data" and entry.written_in == part and entry.author == author for entry in seen):
                return False
        return True

    # --- partitions --------------------------------------------------------------------------------------------------

    def _write(self, state: State, write: Write) -> Iterator[tuple[str, State]]:
        """Take a batch: a duplicate, late, of a transaction that is known here, or to be checked first."""
        log = state.logs[write.partition]
        key = self._key(write.part)
        label = f"partition {write.partition} takes {write.part} of process {write.author}"
        gone = state._replace(writes=state.writes - {write})
        older = [part for part in open_parts(log) if part[0] == key[0] and part[:3] > key[:3]]
        if Entry("data", key, write.author, write.part) in log:
            yield f"{label}: a duplicate", gone
        elif "numbers are not checked" in self.mutants and older:
            yield f"{label} as {older[0]}", self._appended(gone, write.partition, self._data(write, older[0]))
        elif self._is_late(log, key):
            yield f"{label}: too late", self._refused(gone, write)
        elif write.is_checked or key in open_parts(log) or "data is appended before it joins" in self.mutants:
            yield label, self._appended(gone, write.partition, self._data(write, key))
        else:
            yield from self._check(state, gone, write, label)

    def _is_late(self, log: tuple[Entry, ...], key: Part) -> bool:
        if "a part that has ended is opened again" in self.mutants:
            return False
        return key in ended(log) or any(part[0] == key[0] and part[:3] > key[:3] for part in ended(log))

    def _data(self, write: Write, part: Part) -> Entry:
        return Entry("data", part, write.author, write.part)

    def _check(self, state: State, gone: State, write: Write, label: str) -> Iterator[tuple[str, State]]:
        """Ask the coordinator whether a transaction may join; it answers after it has appended Joined."""
        transaction = write.part[:3]
        epochs, currents = known(state.events)
        current = currents.get(write.part[0])
        if write.part[1] != epochs.get(write.part[0], 0) and "an old epoch is accepted" not in self.mutants:
            yield f"{label}: fenced", self._refused(gone, write)
            return
        if current is not None and transaction != current.transaction:
            if transaction < current.transaction:
                yield f"{label}: older", self._refused(gone, write)
                return
            if not current.is_complete and "the next joins before this is complete" not in self.mutants:
                return
        if current is not None and transaction == current.transaction and current.commits is not None:
            yield f"{label}: decided", self._refused(gone, write)
            return
        checked = gone._replace(writes=gone.writes | {write._replace(is_checked=True)})
        joined = Event("joined", transaction, write.part[3], write.partition)
        is_there = (
            current is not None
            and transaction == current.transaction
            and (*write.part[3:], write.partition) in current.joined
        )
        yield f"{label}: it joins", checked if is_there else checked._replace(events=(*state.events, joined))

    def _refused(self, state: State, write: Write) -> State:
        """Drop a batch; its producer gives the transaction up, if it is still at it."""
        process = state.processes[write.author]
        if process.phase == "writing" and write.part[1:3] == (process.epoch, process.number):
            return _with_process(state, write.author, process._replace(phase="over"))
        return state

    def _appended(self, state: State, partition: int, entry: Entry) -> State:
        return _with_log(state, partition, (*state.logs[partition], entry), state.logs_synced[partition])

    def _partition(self, state: State, partition: int) -> Iterator[tuple[str, State]]:
        log, synced = state.logs[partition], state.logs_synced[partition]
        if synced < len(log):
            yield f"partition {partition} is synced", _with_log(state, partition, log, len(log))
        if "data is appended before it joins" in self.mutants:
            yield from self._join_late(state, partition)
        if not self.mutants & {"partitions ask after a restart only", "partitions do not ask"}:
            for part in open_parts(log):
                if self._answer(state, partition, part) == "abort":
                    if self.mutants & {"answers take time", "answers outlive a restart"}:
                        asked = state._replace(answers=state.answers | {(part, partition)})
                        yield f"partition {partition} asks for {part}", asked
                    after = self._appended(state, partition, Entry("abort", part))
                    yield f"partition {partition} asks for {part}: abort", after
        for answer in sorted(state.answers):
            if answer[1] == partition:
                after = state._replace(answers=state.answers - {answer})
                if answer[0] in open_parts(log):
                    after = self._appended(after, partition, Entry("abort", answer[0]))
                yield f"partition {partition} has the answer about {answer[0]}: abort", after
        if state.faults.partitions:
            after = state._replace(faults=state.faults._replace(partitions=state.faults.partitions - 1))
            for kept in range(synced, len(log) + 1):
                label = f"{FAULT}power loss of partition {partition} takes {len(log) - kept} batches"
                yield label, self._restarted(after, partition, kept)

    def _join_late(self, state: State, partition: int) -> Iterator[tuple[str, State]]:
        """Let what is open join after its data was appended, as a planted bug."""
        for part in open_parts(state.logs[partition]):
            write = Write(part, partition, NOBODY)
            for label, after in self._check(state, state, write, f"partition {partition} has {part}"):
                if after.events != state.events:
                    yield label, after._replace(writes=state.writes)

    def _answer(self, state: State, partition: int, part: Part) -> str:
        """The coordinator's answer to a partition that asks what became of a transaction."""
        current = known(state.events).current.get(part[0])
        if current is None or self._key((*current.transaction, 0))[:3] != part[:3]:
            return "abort"
        return "abort" if (part[3], partition) not in current.joined or current.is_complete else "wait"

    def _restarted(self, state: State, partition: int, kept: int) -> State:
        """Cut a log after a power loss. What was not confirmed is sent again, and answers on their way are lost."""
        log = state.logs[partition]
        again = {Write(entry.written_in, partition, entry.author) for entry in log[kept:] if entry.kind == "data"}
        writes = frozenset(
            write._replace(is_checked=False) if write.partition == partition else write for write in state.writes
        )
        state = _with_log(state._replace(writes=writes | again), partition, log[:kept], kept)
        if "answers outlive a restart" not in self.mutants:
            state = state._replace(answers=frozenset(each for each in state.answers if each[1] != partition))
        for part in open_parts(log[:kept]):
            answer = self._answer(state, partition, part)
            if "a restarted partition commits what is unknown" in self.mutants and answer == "abort":
                state = self._appended(state, partition, Entry("commit", part))
            elif "partitions ask after a restart only" in self.mutants and answer == "abort":
                state = self._appended(state, partition, Entry("abort", part))
        return state

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def _commit(self, state: State, commit: Commit) -> State:
        """Decide, if the producer is not fenced, and if all that it names has joined."""
        producer, epoch, _ = commit.transaction
        epochs, currents = known(state.events)
        current = currents.get(producer)
        is_fenced = epoch != epochs.get(producer, 0) and "an old epoch is accepted" not in self.mutants
        if is_fenced or current is None or current.transaction != commit.transaction:
            return self._over(state, commit)
        if current.commits is not None:
            return self._over(state, commit) if _is_decided(state, commit.transaction) else state
        named = {(branch, partition) for branch in commit.branches for partition in self.case.partitions}
        branches = commit.branches
        if not named <= {*current.joined} and "a commit does not name its partitions" not in self.mutants:
            branches = ()
        if "a branch that is not named is committed" in self.mutants and branches:
            branches = self.case.branches
        event = Event("prepare", commit.transaction, commits=branches, author=commit.author)
        state = state._replace(events=(*state.events, event))
        if "a commit is acknowledged before it is durable" in self.mutants and branches:
            state = state._replace(promised=state.promised | {commit})
        return state

    def _over(self, state: State, commit: Commit) -> State:
        """Answer a request to commit, which its producer repeats until then."""
        state = state._replace(commits=state.commits - {commit})
        process = state.processes[commit.author]
        if process.phase == "asked" and commit.transaction[1:] == (process.epoch, process.number):
            return _with_process(state, commit.author, process._replace(phase="over"))
        return state

    def _sync(self, state: State) -> State:
        """Make the log durable, which acknowledges the commits in it."""
        promised = {
            Commit(event.transaction, event.commits, event.author)
            for event in state.events[state.synced :]
            if event.kind == "prepare" and event.commits
        }
        if "a branch that is not named is committed" in self.mutants:
            promised = {commit._replace(branches=commit.branches[:1]) for commit in promised}
        return state._replace(synced=len(state.events), promised=state.promised | promised)

    def _coordinate(self, state: State, producer: int, current: Current) -> Iterator[tuple[str, State]]:
        transaction = current.transaction
        if current.is_complete:
            return
        if current.commits is None:
            yield from self._abort(state, producer, transaction)
        if current.commits is None or not (
            _is_decided(state, transaction) or "markers before the decision is durable" in self.mutants
        ):
            return
        missing = False
        for branch, partition in current.joined:
            part = self._key((*transaction, branch))
            log = state.logs[partition]
            durable = (
                log
                if "complete before the markers are durable" in self.mutants
                else log[: state.logs_synced[partition]]
            )
            missing = missing or part not in ended(durable)
            if part not in ended(log):
                kind = "commit" if branch in current.commits else "abort"
                yield f"{kind} marker of {part} in {partition}", self._marked(state, partition, kind, part)
        if not missing:
            yield f"{transaction} is complete", state._replace(events=(*state.events, Event("complete", transaction)))

    def _marked(self, state: State, partition: int, kind: str, part: Part) -> State:
        state = self._appended(state, partition, Entry(kind, part))
        if "markers are named without epoch" in self.mutants:
            for other in open_parts(state.logs[partition]):
                if (other[0], *other[2:]) == (part[0], *part[2:]):
                    state = self._appended(state, partition, Entry(kind, other))
        return state

    def _abort(self, state: State, producer: int, transaction: Transaction) -> Iterator[tuple[str, State]]:
        """Abort what is undecided: its producer gives it up, is fenced, or takes too long."""
        aborted = state._replace(events=(*state.events, Event("prepare", transaction)))
        fenced = transaction[1] < known(state.events).epochs.get(producer, 0)
        given_up = not any(
            self.case.ids[index] == producer
            and process.phase in ("writing", "asked")
            and transaction[1:] == (process.epoch, process.number)
            for index, process in enumerate(state.processes)
        )
        if fenced and "what is fenced is not aborted later" not in self.mutants:
            yield f"{transaction} is aborted, for its producer is fenced", aborted
        elif given_up and not fenced:
            yield f"the producer aborts {transaction}", aborted
        if state.faults.timeouts:
            after = aborted if "a timeout does not fence" in self.mutants else self._fence(state, producer)
            faults = state.faults._replace(timeouts=state.faults.timeouts - 1)
            yield f"{FAULT}{transaction} takes too long", after._replace(faults=faults)

    def _late_markers(self, state: State) -> Iterator[tuple[str, State]]:
        """Let markers that were sent twice end whatever is open, as a planted bug."""
        if "a marker ends a later transaction" not in self.mutants:
            return
        for event in state.events[: state.synced]:
            for partition in PARTITIONS:
                for part in open_parts(state.logs[partition]):
                    if event.kind == "prepare" and part[0] == event.transaction[0] and part[:3] > event.transaction:
                        entry = Entry("commit" if event.commits else "abort", part)
                        label = f"late marker of {event.transaction} in {partition} ends {part}"
                        yield label, self._appended(state, partition, entry)

    def _crash_coordinator(self, state: State) -> Iterator[tuple[str, State]]:
        after = state._replace(faults=state.faults._replace(coordinator=state.faults.coordinator - 1))
        for kept in range(state.synced, len(state.events) + 1):
            events = state.events[:kept]
            if "recovery forgets decisions" in self.mutants:
                complete = {event.transaction for event in events if event.kind == "complete"}
                events = tuple(event for event in events if event.kind != "prepare" or event.transaction in complete)
            label = f"{FAULT}power loss of the coordinator takes {len(state.events) - kept} events"
            survives = self._sync(after._replace(events=state.events[:kept]))
            yield label, survives._replace(events=events, synced=len(events))


# --- parts of a state ------------------------------------------------------------------------------------------------


def _is_decided(state: State, transaction: Transaction) -> bool:
    """Tell whether a transaction has a durable decision."""
    return any(event.kind == "prepare" and event.transaction == transaction for event in state.events[: state.synced])


def _is_promised(state: State, entry: Entry) -> bool:
    *transaction, branch = entry.written_in
    return any(
        commit.author == entry.author and commit.transaction == tuple(transaction) and branch in commit.branches
        for commit in state.promised
    )


def _with_process(state: State, index: int, process: Process) -> State:
    return state._replace(processes=(*state.processes[:index], process, *state.processes[index + 1 :]))


def _with_log(state: State, partition: int, log: tuple[Entry, ...], synced: int) -> State:
    return state._replace(
        logs=(*state.logs[:partition], log, *state.logs[partition + 1 :]),
        logs_synced=(*state.logs_synced[:partition], synced, *state.logs_synced[partition + 1 :]),
    )


CASES = {
    "coordinator": Case(Faults(coordinator=1, timeouts=1), transactions=(2,)),
    "partition": Case(Faults(partitions=1, coordinator=1, timeouts=1)),
    "takeover": Case(Faults(takeovers=1, partitions=1), (0, 0), ("idle", "off"), (1, 1)),
    "numbers": Case(Faults(coordinator=1, takeovers=1), (0, 0), ("idle", "off"), (2, 1), partitions=(QUEUE,)),
    "names": Case(Faults(coordinator=1, takeovers=2), (0, 0), ("off", "off"), (1, 1), partitions=(QUEUE,)),
    "branches": Case(Faults(coordinator=1, partitions=1), branches=(0, 1), partitions=(QUEUE,)),
    "two": Case(Faults(partitions=1), (0, 1), ("idle", "idle"), (1, 1), partitions=(QUEUE,)),
}
"""Bounds under which the model is explored as a whole."""
