"""Model of exactly-once delivery to a consumer: PREPARE, READY, COMMIT, DONE.

A broker has a data log and a subscription log. A crash loses the leases and every connection; a power loss takes any
part of the tail that was not synced, of either log. Three processes consume: 0 and 1 under the name A, where 1 takes
the name over from 0, and 2 under the name B. Names have stores of their own, unless a case says otherwise. Messages
are in order within a connection; what is on its way to a process whose connection is lost may still reach it, so that
it acts as a zombie, and what is on its way from it is ignored.

Steps that nobody can tell apart are one: delivery with the tentative local transaction and the sending of READY; sync
of the subscription log with the push of the decisions that it made durable; a broker's crash with its restart.

Rules that are needed beyond the table of messages, and what goes wrong without them:

1. Events of the subscription log name records by epoch and offset, and those of records that are not in the data log
   do not count. Otherwise a new record at an old offset is taken for settled, or its decision for another's.
2. COMMIT is repeated to a new connection only when Decided is durable, just as the first COMMIT is: what recovery reads
   has to be synced before it is acted on. `resolve` answers "commit" on the same condition, and waits until then.
3. The answer to READY has no records, so a delivery that `resolve` has answered with "abort" must lose its lease at
   once: a READY that is on its way would be decided, and the answer would find nothing to commit.
4. An operator who resolves a delivery whose READY is unanswered has it answered with "abort". Otherwise the consumer's
   local transaction stays open.
5. A name stands for one store. If a second process takes the name over with another store, a COMMIT that is on its way
   to the first one, and the repeated one, both have their effect; no fence prevents that.
6. The fence protects no effect, the marks in the shared store do. It sees to it that READY is answered on the
   connection that it came by, and that leases of the older process end.
7. The floor that is sent covers only what is settled durably, because a record that was rejected, or dropped by an
   operator, is delivered again if the event is lost, and would be passed over as applied.
8. A floor is raised as a whole or not at all; it never goes down, not even to a later epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from explore import FAULT

Record = tuple[int, int]
"""(epoch, offset): no two records share it."""


class Event(NamedTuple):
    """Entry of the subscription log."""

    kind: str
    """decided | settled (DONE) | rejected | dropped (by an operator) | returned (by an operator)"""
    delivery: int
    record: Record
    name: str


class Message(NamedTuple):
    """Content of a frame in either direction: ready, done; commit, abort."""

    kind: str
    delivery: int
    record: Record
    floor: Record = (0, 0)
    carries_records: bool = False


class Process(NamedTuple):
    """Consumer process, with its connection."""

    status: str
    """off | on | stale (connection lost, which it has not noticed) | fenced (stale, and replaced) | ended"""
    holds: tuple[tuple[int, Record], ...] = ()
    """Its open local transactions."""
    asked: tuple[int, ...] = ()
    """Deliveries whose READY the broker accepted on this connection, and has not answered."""
    inbox: tuple[Message, ...] = ()
    outbox: tuple[Message, ...] = ()
    later: tuple[tuple[int, Record], ...] = ()
    """Second halves of local commits, where a planted bug makes two of one."""


class Store(NamedTuple):
    """Database of a consumer: effects and marks."""

    effects: tuple[Record, ...] = ()
    marks: frozenset[Record] = frozenset()
    floor: Record = (0, 0)


class Faults(NamedTuple):
    """Number of times that each fault may still happen."""

    kills: int = 0
    powers: int = 0
    cuts: int = 0
    """Lost connections; a process that notices at once has crashed, for all that others can see."""
    expiries: int = 0
    takeovers: int = 0
    doubts: int = 0
    """Questions `resolve(delivery id)`, which come by a connection of their own."""
    operators: int = 0
    rejects: int = 0


class State(NamedTuple):
    """State of the broker, the processes and the stores."""

    epoch: int
    log: tuple[int, ...]
    """Epoch of the record at each offset."""
    log_synced: int
    unsent: int
    """Records that the producer has yet to send."""
    events: tuple[Event, ...]
    synced: int
    leases: tuple[tuple[int, int, Record], ...]
    """(delivery id, process, record)"""
    next_delivery: int
    processes: tuple[Process, ...]
    stores: tuple[Store, ...]
    faults: Faults
    forced: frozenset[Record] = frozenset()
    """Records that an operator returned, although their effect may have happened."""


class Known(NamedTuple):
    """Content of the subscription log, as far as it speaks of records that are in the data log."""

    decided: dict[int, tuple[str, Record]]
    settled: dict[int, str]
    """Way in which the record at an offset was settled."""


class Case(NamedTuple):
    """Bounds of one exploration."""

    faults: Faults
    records: int = 2
    stores: tuple[int, int, int] = (0, 0, 1)
    """Store of each process."""
    initial: tuple[str, str, str] = ("on", "off", "on")
    start: str = "empty"
    """empty | settled: record (1, 0), which is not durable, has been settled, its mark is below the floor, and process
    0 is a zombie that has yet to read its COMMIT | decided: two records are decided, and nobody is connected
    """


NAMES = ("A", "A", "B")


@lru_cache(maxsize=200_000)
def known(events: tuple[Event, ...], log: tuple[int, ...], by_epoch: bool) -> Known:
    """Read a subscription log against its data log, which may have lost records that the events name."""
    decided: dict[int, tuple[str, Record]] = {}
    settled: dict[int, str] = {}
    for kind, delivery, (epoch, offset), name in events:
        if offset >= len(log) or (by_epoch and log[offset] != epoch):
            continue
        if kind == "decided":
            decided[delivery] = (name, (epoch, offset))
            continue
        decided.pop(delivery, None)
        if kind != "returned":
            settled[offset] = kind
    return Known(decided, settled)


class TwoPhase:
    """Two-phase delivery, or what becomes of it with planted bugs."""

    def __init__(self, case: Case, mutants: frozenset[str] = frozenset()) -> None:
        self.case = case
        self.mutants = mutants
        self.by_epoch = "events name records without epoch" not in mutants

    def initial(self) -> State:
        state = State(
            epoch=1,
            log=(),
            log_synced=0,
            unsent=self.case.records,
            events=(),
            synced=0,
            leases=(),
            next_delivery=1,
            processes=tuple(Process(status) for status in self.case.initial),
            stores=(Store(),) * (max(self.case.stores) + 1),
            faults=self.case.faults,
        )
        if self.case.start == "settled":
            return _settled_start(state)
        return _decided_start(state) if self.case.start == "decided" else state

    # --- what must hold ----------------------------------------------------------------------------------------------

    def broken(self, state: State) -> str | None:
        everywhere: dict[Record, int] = {}
        for store in state.stores:
            for record in store.effects:
                everywhere[record] = everywhere.get(record, 0) + 1
                if store.effects.count(record) > 1:
                    return "an effect is twice in one store"
        if any(count > 1 and record not in state.forced for record, count in everywhere.items()):
            return "an effect is in two stores"
        return None

    def unkept(self, state: State) -> str | None:
        effects = [record for store in state.stores for record in store.effects]
        settled = self._known(state).settled
        for offset, epoch in enumerate(state.log):
            if offset not in settled:
                return "a record is never settled"
            if settled[offset] == "settled" and (epoch, offset) not in effects:
                return "a record has no effect"
        if state.leases:
            return "a lease never ends"
        if any(process.holds for process in state.processes):
            return "a local transaction stays open"
        return None

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._storage(state)
        for index, process in enumerate(state.processes):
            yield from self._process(state, index, process)
        yield from self._operator(state)
        yield from self._crash(state)

    def _storage(self, state: State) -> Iterator[tuple[str, State]]:
        if state.unsent:
            yield "a record is appended", state._replace(log=(*state.log, state.epoch), unsent=state.unsent - 1)
        if state.log_synced < len(state.log):
            yield "the data log is synced", state._replace(log_synced=len(state.log))
        if state.synced < len(state.events):
            yield "the subscription log is synced", self._sync(state)

    def _process(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        who = f"process {index} ({NAMES[index]})"
        faults = state.faults
        if process.status == "off" and faults.takeovers:
            after = state._replace(faults=faults._replace(takeovers=faults.takeovers - 1))
            yield f"{FAULT}{who} connects", self._connect(after, index)
        if process.status in ("off", "ended"):
            return
        if process.status == "on":
            yield from self._deliver(state, index, process)
            if faults.cuts:
                after = state._replace(faults=faults._replace(cuts=faults.cuts - 1))
                yield f"{FAULT}{who} loses its connection", self._lose(after, index, "stale")
        else:
            yield f"{who} notices that its connection is lost", self._notice(state, index)
        if process.inbox:
            yield f"{who} receives {_text(process.inbox[0])}", self._receive(state, index, process)
        if process.outbox:
            message = process.outbox[0]
            after = _with_process(state, index, process._replace(outbox=process.outbox[1:]))
            yield f"the broker receives {_text(message)} of {who}", self._hear(after, index, message)
        for delivery, record in process.later:
            yield f"{who} does the rest for delivery {delivery}", self._finish(state, index, delivery, record)
        if faults.doubts:
            yield from self._resolve(state, index, process)

    def _deliver(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        """Deliver the first record that is free to a process that has nothing; it applies it tentatively."""
        if process.holds or process.inbox or process.outbox or any(lease[1] == index for lease in state.leases):
            return
        decided, settled = self._known(state)
        taken = {offset for _, _, (_, offset) in state.leases} | {offset for _, (_, offset) in decided.values()}
        free = [offset for offset in range(len(state.log)) if offset not in taken and offset not in settled]
        if not free:
            return
        record, delivery = (state.log[free[0]], free[0]), state.next_delivery
        what = f"{record} to process {index} as delivery {delivery}"
        prepared = process._replace(
            holds=((delivery, record),), outbox=(*process.outbox, Message("ready", delivery, record))
        )
        after = state._replace(leases=(*state.leases, (delivery, index, record)), next_delivery=delivery + 1)
        yield f"PREPARE {what}", _with_process(after, index, prepared)
        if state.faults.rejects:
            after = state._replace(
                faults=state.faults._replace(rejects=state.faults.rejects - 1), next_delivery=delivery + 1
            )
            yield f"{FAULT}PREPARE {what}, which rejects it", _with_event(after, "rejected", delivery, record, index)

    # --- the broker --------------------------------------------------------------------------------------------------

    def _known(self, state: State) -> Known:
        return known(state.events, state.log, self.by_epoch)

    def _floor(self, state: State) -> Record:
        """The first offset that is not settled durably, with the broker's epoch."""
        events = state.events if "floor from what is not durable" in self.mutants else state.events[: state.synced]
        settled = known(events, state.log, self.by_epoch).settled
        offset = 0
        while offset in settled:
            offset += 1
        if "floor past the unsettled" in self.mutants:
            offset = max(settled, default=-1) + 1
        return state.epoch, offset

    def _holder(self, state: State, name: str) -> int | None:
        """The process that holds a name; the last one, should there be several."""
        on = [index for index, process in enumerate(state.processes) if process.status == "on"]
        if "COMMIT to any name" in self.mutants:
            return on[0] if on else None
        return max((index for index in on if NAMES[index] == name), default=None)

    def _sync(self, state: State) -> State:
        """Sync the subscription log, and push what it has decided since."""
        fresh = {event.delivery for event in state.events[state.synced :] if event.kind == "decided"}
        return self._push(state._replace(synced=len(state.events)), fresh)

    def _push(self, state: State, deliveries: set[int], only: int | None = None) -> State:
        """Send COMMIT to the holders of the names, or to one process if it is theirs."""
        for delivery, (name, record) in self._known(state).decided.items():
            holder = self._holder(state, name)
            if delivery not in deliveries or holder is None or (only is not None and holder != only):
                continue
            process = state.processes[holder]
            message = Message("commit", delivery, record, self._floor(state), delivery not in process.asked)
            asked = tuple(each for each in process.asked if each != delivery)
            state = _with_process(state, holder, process._replace(asked=asked, inbox=(*process.inbox, message)))
        return state

    def _hear(self, state: State, index: int, message: Message) -> State:
        """Take READY or DONE of a process."""
        known_now = self._known(state)
        _, delivery, record, *_ = message
        process = state.processes[index]
        if message.kind == "done":
            mine = delivery in known_now.decided
            if "DONE of another delivery" in self.mutants:
                theirs = [each for each, (name, _) in known_now.decided.items() if name == NAMES[index]]
                mine, delivery = bool(theirs), max(theirs, default=0)
                record = known_now.decided[delivery][1] if mine else record
            return _with_event(state, "settled", delivery, record, index) if mine else state
        lease = (delivery, index, record)
        if lease not in state.leases and "stale READY is decided" not in self.mutants:
            return _with_process(state, index, _told_to_abort(process, delivery, record))
        process = process._replace(asked=(*process.asked, delivery))
        state = _with_process(_without_lease(state, delivery), index, process)
        state = _with_event(state, "decided", delivery, record, index)
        if "COMMIT before the decision is durable" in self.mutants:
            return self._push(state, {delivery})
        return state

    def _connect(self, state: State, index: int) -> State:
        """Give a process its name, fence who had it, and repeat COMMIT of what is decided for it."""
        for other, process in enumerate(state.processes):
            if other == index or NAMES[other] != NAMES[index] or "the same name does not fence" in self.mutants:
                continue
            if process.status == "on":
                state = self._lose(state, other, "fenced")
            elif process.status == "stale":
                state = _with_process(state, other, process._replace(status="fenced"))
        state = _with_process(state, index, Process("on"))
        if "COMMIT is not repeated" in self.mutants:
            return state
        events = state.events[: state.synced]
        if "COMMIT is repeated before the decision is durable" in self.mutants:
            events = state.events
        return self._push(state, {event.delivery for event in events}, only=index)

    def _lose(self, state: State, index: int, status: str) -> State:
        """End a connection, with its leases; what the process has sent is lost, and what it was sent is not yet."""
        leases = tuple(lease for lease in state.leases if lease[1] != index)
        process = state.processes[index]._replace(status=status, asked=(), outbox=())
        return _with_process(state._replace(leases=leases), index, process)

    # --- a consumer --------------------------------------------------------------------------------------------------

    def _notice(self, state: State, index: int) -> State:
        """Roll back, and connect again if no other process has the name now."""
        if state.processes[index].status == "fenced":
            return _with_process(state, index, Process("ended"))
        return self._connect(state, index)

    def _receive(self, state: State, index: int, process: Process) -> State:
        message, *rest = process.inbox
        process = process._replace(inbox=tuple(rest))
        held = (message.delivery, message.record) in process.holds
        if message.kind == "abort":
            return _with_process(state, index, _without_transaction(process, message.delivery))
        state = _with_process(state, index, process)
        if not held and not message.carries_records:
            return state
        return self._apply(state, index, message.delivery, message.record, message.floor)

    def _apply(self, state: State, index: int, delivery: int, record: Record, floor: Record) -> State:
        """Commit effect, mark and floor, unless the record is marked; send DONE."""
        process = _without_transaction(state.processes[index], delivery)
        store = state.stores[self._store_of(index)]
        if "DONE before the local commit" in self.mutants:
            process = process._replace(later=((delivery, record),))
        elif "effect and mark in two transactions" in self.mutants:
            process = process._replace(later=((delivery, record),))
            return self._stored(state, index, process, self._with_effect(store, record))
        else:
            store = self._raised(self._with_mark(self._with_effect(store, record), record), floor)
        return self._stored(state, index, _sends_done(process, delivery, record), store)

    def _finish(self, state: State, index: int, delivery: int, record: Record) -> State:
        """Do the second half of a local commit that a planted bug has split."""
        process = state.processes[index]._replace(later=())
        store = state.stores[self._store_of(index)]
        if "DONE before the local commit" in self.mutants:
            return self._stored(state, index, process, self._with_mark(self._with_effect(store, record), record))
        return self._stored(state, index, _sends_done(process, delivery, record), self._with_mark(store, record))

    def _store_of(self, index: int) -> int:
        moves = "a name moves to another store" in self.mutants and index == 1
        return self.case.stores[2 if moves else index]

    def _stored(self, state: State, index: int, process: Process, store: Store) -> State:
        which = self._store_of(index)
        stores = (*state.stores[:which], store, *state.stores[which + 1 :])
        return _with_process(state._replace(stores=stores), index, process)

    def _with_effect(self, store: Store, record: Record) -> Store:
        if self._is_applied(store, record):
            return store
        return store._replace(effects=tuple(sorted((*store.effects, record))))

    def _with_mark(self, store: Store, record: Record) -> Store:
        return store._replace(marks=store.marks | {self._mark(record)})

    def _mark(self, record: Record) -> Record:
        return (0, record[1]) if "mark without epoch" in self.mutants else record

    def _is_applied(self, store: Store, record: Record) -> bool:
        if "commit does not look at the marks" in self.mutants:
            return False
        in_epoch = record[0] <= store.floor[0] or "floor without epoch" in self.mutants
        return self._mark(record) in store.marks or (record[1] < store.floor[1] and in_epoch)

    def _raised(self, store: Store, floor: Record) -> Store:
        """Raise the floor, and forget the marks below it."""
        old = store.floor
        if "floor raised part by part" in self.mutants:
            floor = max(old[0], floor[0]), max(old[1], floor[1])
        elif "floor may go down" not in self.mutants and not (floor[0] >= old[0] and floor[1] >= old[1]):
            floor = old
        kept = frozenset(mark for mark in store.marks if mark[1] >= floor[1] or mark[0] > floor[0])
        return store._replace(floor=floor, marks=kept)

    def _resolve(self, state: State, index: int, process: Process) -> Iterator[tuple[str, State]]:
        """Ask what became of a delivery; no answer while the decision is not durable."""
        state = state._replace(faults=state.faults._replace(doubts=state.faults.doubts - 1))
        durable = {event.delivery for event in state.events[: state.synced]}
        for delivery, record in process.holds:
            label = f"{FAULT}process {index} asks for delivery {delivery}: "
            if delivery not in self._known(state).decided:
                after = _with_process(state, index, _without_transaction(process, delivery))
                if "resolve answers abort and leaves the lease" not in self.mutants:
                    after = _without_lease(after, delivery)
                yield f"{label}abort", after
            elif delivery in durable or "resolve answers what is not durable" in self.mutants:
                yield f"{label}commit", self._apply(state, index, delivery, record, (0, 0))

    # --- faults ------------------------------------------------------------------------------------------------------

    def _operator(self, state: State) -> Iterator[tuple[str, State]]:
        faults = state.faults
        if faults.expiries:
            after = state._replace(faults=faults._replace(expiries=faults.expiries - 1))
            for delivery, _, _ in state.leases:
                yield f"{FAULT}delivery {delivery} expires", _without_lease(after, delivery)
            if "a decided record expires" in self.mutants:
                for delivery, (_, record) in self._known(state).decided.items():
                    yield f"{FAULT}delivery {delivery} expires", _with_event(after, "returned", delivery, record, 0)
        if faults.operators:
            after = state._replace(faults=faults._replace(operators=faults.operators - 1))
            for delivery, (_, record) in self._known(state).decided.items():
                label = f"{FAULT}an operator resolves delivery {delivery}: "
                yield f"{label}settle", self._overrule(after, delivery, record, "dropped")
                returned = self._overrule(after, delivery, record, "returned")
                yield f"{label}return", returned._replace(forced=state.forced | {record})

    def _overrule(self, state: State, delivery: int, record: Record, kind: str) -> State:
        """End a decided delivery for an operator; whoever still waits for the answer to READY is told to abort."""
        state = _with_event(state, kind, delivery, record, 0)
        if "an operator's decision answers nobody" in self.mutants:
            return state
        for index, process in enumerate(state.processes):
            if delivery in process.asked:
                state = _with_process(state, index, _told_to_abort(process, delivery, record))
        return state

    def _crash(self, state: State) -> Iterator[tuple[str, State]]:
        faults = state.faults
        if faults.kills:
            after = state._replace(faults=faults._replace(kills=faults.kills - 1))
            yield f"{FAULT}the broker is killed", self._restart(after)
        if not faults.powers:
            return
        state = state._replace(faults=faults._replace(powers=faults.powers - 1))
        for kept in range(state.log_synced, len(state.log) + 1):
            for kept_events in range(state.synced, len(state.events) + 1):
                after = state._replace(log=state.log[:kept], log_synced=kept, synced=kept_events)
                label = f"{FAULT}power loss takes {len(state.log) - kept} records"
                label += f" and {len(state.events) - kept_events} events"
                yield label, self._restart(after._replace(events=state.events[:kept_events]))

    def _restart(self, state: State) -> State:
        """Start the broker again in the next epoch, with what its logs have."""
        for index, process in enumerate(state.processes):
            if process.status == "on":
                state = self._lose(state, index, "stale")
        events = state.events
        if "recovery forgets what is decided" in self.mutants:
            decided = self._known(state).decided
            events = tuple(event for event in events if event.delivery not in decided)
        return state._replace(
            epoch=state.epoch + 1,
            events=events,
            synced=min(state.synced, len(events)),
            next_delivery=1 if "delivery ids repeat" in self.mutants else state.next_delivery,
        )


# --- parts of a state ------------------------------------------------------------------------------------------------


def _settled_start(state: State) -> State:
    record = (1, 0)
    zombie = Process("fenced", inbox=(Message("commit", 1, record, (1, 0), carries_records=True),))
    events = (Event("decided", 1, record, "A"), Event("settled", 1, record, "A"))
    return state._replace(
        log=(1,),
        events=events,
        synced=len(events),
        next_delivery=2,
        processes=(zombie, *state.processes[1:]),
        stores=(Store(effects=(record,), floor=(1, 1)), *state.stores[1:]),
    )


def _decided_start(state: State) -> State:
    events = (Event("decided", 1, (1, 0), "A"), Event("decided", 2, (1, 1), "B"))
    return state._replace(log=(1, 1), log_synced=2, events=events, synced=len(events), next_delivery=3)


def _sends_done(process: Process, delivery: int, record: Record) -> Process:
    """Send DONE, if there is a connection to send it by."""
    if process.status != "on":
        return process
    return process._replace(outbox=(*process.outbox, Message("done", delivery, record)))


def _text(message: Message) -> str:
    records = " with its records" if message.carries_records else ""
    return f"{message.kind.upper()} {message.delivery}{records}"


def _told_to_abort(process: Process, delivery: int, record: Record) -> Process:
    asked = tuple(each for each in process.asked if each != delivery)
    return process._replace(asked=asked, inbox=(*process.inbox, Message("abort", delivery, record)))


def _with_process(state: State, index: int, process: Process) -> State:
    return state._replace(processes=(*state.processes[:index], process, *state.processes[index + 1 :]))


def _without_transaction(process: Process, delivery: int) -> Process:
    return process._replace(holds=tuple(each for each in process.holds if each[0] != delivery))


def _without_lease(state: State, delivery: int) -> State:
    return state._replace(leases=tuple(lease for lease in state.leases if lease[0] != delivery))


def _with_event(state: State, kind: str, delivery: int, record: Record, index: int) -> State:
    return state._replace(events=(*state.events, Event(kind, delivery, record, NAMES[index])))


CASES = {
    "crash": Case(Faults(powers=1, cuts=1)),
    "kill": Case(Faults(kills=1, cuts=1), records=1, stores=(0, 0, 0)),
    "zombie": Case(Faults(powers=1, takeovers=1, cuts=1), initial=("on", "off", "off")),
    "doubt": Case(Faults(powers=1, expiries=1, doubts=1, cuts=1), records=1),
    "operator": Case(Faults(powers=1, operators=1), records=1, stores=(0, 0, 0)),
    "reject": Case(Faults(powers=1, rejects=1, expiries=1, takeovers=1), records=1),
    "floor": Case(Faults(), records=3, stores=(0, 0, 0)),
    "settled": Case(Faults(powers=1), stores=(0, 0, 0), initial=("fenced", "on", "on"), start="settled"),
    "overruled": Case(
        Faults(powers=1, operators=1), records=0, stores=(0, 0, 0), initial=("stale", "off", "stale"), start="decided"
    ),
    "twice": Case(Faults(powers=1, kills=1, takeovers=1), records=1),
}
"""Bounds under which the model is explored as a whole."""
