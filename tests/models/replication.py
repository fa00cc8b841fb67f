"""Model of a replicated log: up to three nodes, the metadata store, and a controller that elects leaders.

The store is one place where writes are compared with what they were computed from, so that each step there is atomic;
what a node knows of it is old until it looks. A node that is killed keeps its log; a power loss takes what it had not
synced; a lost disk takes everything. A lease may end although its node lives, which goes on as if nothing had happened.
Acknowledgements arrive late, also after their sender died. Any member may be elected, so preferences do not matter.

Rules that are needed, and what goes wrong without them:

1. The watermark is the least acknowledged end of all in-sync members: of those in the store, of those that were there
   until the leader has seen that a removal was done, and of those whose addition was asked for and may be done.
2. A leader and each acknowledgement count what is durable by the topic's policy.
3. A follower begins each epoch anew, of the same leader too: the leader finds where the logs part by their epochs, the
   follower cuts there, and only then acknowledgements count. A cut to the follower's watermark takes what is committed
   (KIP-101); no cut leaves what never was; an old acknowledgement is one of another log.
4. A member is added when it follows in this epoch and holds the watermark, which has reached the end that the log had
   when its leader was elected; and only in the session in which it followed when that was found, which has lost nothing
   (KIP-903). Afterwards it may have come back with less. That it was not added is known when the store says so in the
   leader's own epoch: a later leader may have removed it again.
5. Each election has a new epoch, of the same leader too.
6. The controller removes a member that has lost something before it elects it, also below the least number. A node
   tells a loss in each of its sessions until the controller has heard of it: it may be killed between the two.
7. Otherwise the in-sync set has at least `minimum` members, dead or not: they have everything.
8. A restarted node leads nothing until it is elected anew, since its followers may have been promised more.
9. A node that is about to stop leaves the set by itself, as far as rule 7 allows; a leader names a live member, in a
   new epoch, in the same write.

A leader that begins its epoch with a record of its own holds the same promises (case "record"), and needs no less.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations, pairwise
from typing import NamedTuple

from explore import FAULT

Entry = tuple[int, int]
"""(epoch, value) of a batch; the value of a leader's first record is 0."""
NOTHING, TAIL, ALL = 0, 1, 2
"""Part of its node's log that a session has lost."""
IDLE, LEADS, FOLLOWS = "idle", "leads", "follows"
UNKNOWN = -1


class Node(NamedTuple):
    """A broker, and its log."""

    log: tuple[Entry, ...] = ()
    synced: int = 0
    is_up: bool = True
    session: int = 1
    lost: int = NOTHING
    """Loss that its next session has to tell."""
    epoch: int = 0
    """The epoch that it knows of; 0 after a start."""
    role: str = IDLE
    mark: int = 0
    """The watermark that it knows."""
    isr: frozenset[int] = frozenset()
    """The in-sync set that it knows, as a leader."""
    pending: frozenset[tuple[int, int]] = frozenset()
    """Members whose addition it has asked for as a leader, and the session in which they followed then."""
    promised: int = 0
    """The end of its log when it was elected."""
    ends: tuple[int, ...] = ()
    """The end that each node has acknowledged to it in this epoch."""
    sessions: tuple[int, ...] = ()
    """The session in which each node follows it; 0: it does not."""
    outside: int = 0
    """1: it knows that it holds no replica any more; 2: and has deleted its log."""


class Session(NamedTuple):
    """A node's entry in the store."""

    number: int
    """0: its lease has ended."""
    lost: int = NOTHING


class Store(NamedTuple):
    """The metadata of the log."""

    epoch: int
    leader: int
    session: int
    """The leader's session."""
    isr: frozenset[int]
    sessions: tuple[Session, ...]
    unfit: frozenset[int] = frozenset()
    replicas: frozenset[int] = frozenset()
    """The nodes that hold the log or are to hold it; none: all."""
    target: frozenset[int] = frozenset()
    """The replicas after a reassignment."""
    former: frozenset[int] = frozenset()
    """The replicas before it."""
    unclean: int = 0
    """The epoch of the last unclean election."""


class Faults(NamedTuple):
    """Number of times that each fault may still happen."""

    kills: int = 0
    powers: int = 0
    disks: int = 0
    leases: int = 0
    """Leases that end although their node lives."""
    links: int = 0
    """Members that a leader removes although they follow."""
    moves: int = 0
    """Leaderships that an operator moves."""
    stops: int = 0
    damages: int = 0
    reassignments: int = 0
    unclean: int = 0
    """Elections of leaders that may lack what was committed."""


class State(NamedTuple):
    """The store, the nodes, and the acknowledgements on their way to a leader."""

    nodes: tuple[Node, ...]
    store: Store
    left: int
    """Records that have yet to be published."""
    faults: Faults
    acks: tuple[tuple[int, int] | None, ...]
    """(epoch, end) that each node has sent."""
    committed: tuple[Entry, ...] = ()
    """Batches that were confirmed or read: the truth."""
    changed: bool = False
    """Whether something was committed that is not what was committed before."""


class Case(NamedTuple):
    """Bounds of one exploration."""

    faults: Faults
    nodes: int = 3
    minimum: int = 2
    records: int = 2
    is_synced: bool = True
    """Whether a batch counts when it is synced, and not when it is written."""
    has_first_record: bool = False
    """Whether a leader begins its epoch with a record."""


CASES = {
    "kill": Case(Faults(kills=2), is_synced=False, records=1),
    "power": Case(Faults(powers=1), records=1),
    "unsynced": Case(Faults(powers=1), is_synced=False, records=1),
    "disk": Case(Faults(disks=1), is_synced=False, records=1),
    "lease": Case(Faults(leases=1), is_synced=False),
    "link": Case(Faults(links=1, kills=1), is_synced=False, records=1),
    "move": Case(Faults(moves=2), is_synced=False, records=1),
    "stop": Case(Faults(stops=2), is_synced=False, records=1),
    "stops": Case(Faults(stops=1, disks=1), nodes=2, is_synced=False, records=1),
    "last": Case(Faults(stops=2, disks=1), nodes=2, minimum=1, is_synced=False, records=1),
    "pair": Case(Faults(kills=2, links=1), nodes=2, minimum=1, is_synced=False),
    "both": Case(Faults(kills=1, disks=1), nodes=2, is_synced=False, records=1),
    "pair power": Case(Faults(kills=1, powers=1), nodes=2, minimum=1, records=1),
    "record": Case(Faults(kills=1), is_synced=False, has_first_record=True, records=1),
}


class Replication:
    """Replication as designed, or what becomes of it with planted bugs."""

    def __init__(self, case: Case, mutants: frozenset[str] = frozenset()) -> None:
        self.case = case
        self.mutants = mutants
        self.has_sync = case.is_synced or case.faults.powers > 0
        """Whether it matters what is synced."""

    def initial(self) -> State:
        count = self.case.nodes
        everyone = frozenset(range(count))
        nodes = [Node(epoch=1) for _ in everyone]
        first = Node(epoch=1, role=LEADS, isr=everyone, ends=(UNKNOWN,) * count, sessions=(0,) * count)
        return State(
            nodes=(first, *nodes[1:]),
            store=Store(1, 0, 1, everyone, (Session(1),) * count),
            left=self.case.records,
            faults=self.case.faults,
            acks=(None,) * count,
        )

    # --- what must hold ----------------------------------------------------------------------------------------------

    def broken(self, state: State) -> str | None:
        if state.changed:
            return "what was committed changes"
        leaders = [node.epoch for node in state.nodes if node.role == LEADS]
        if len(leaders) > len(set(leaders)):
            return "an epoch has two leaders"
        batches: dict[tuple[int, int], int] = {}
        for log in (state.committed, *(node.log for node in state.nodes)):
            for offset, (epoch, value) in enumerate(log):
                if batches.setdefault((epoch, offset), value) != value:
                    return "an epoch and an offset name two batches"
        losses = self.case.faults.disks + self.case.faults.powers
        if losses < self.case.minimum and all(state.store.sessions[number].lost == ALL for number in state.store.isr):
            return "fewer losses than the least number of members lose everything"
        for number in state.store.isr:
            node = state.nodes[number]
            told = node.lost or state.store.sessions[number].lost
            if not told and node.log[: len(state.committed)] != state.committed:
                return "a member of the in-sync set misses what was committed"
        return None

    def unkept(self, state: State) -> str | None:
        store = state.store
        if all(store.sessions[number].lost == ALL for number in store.isr):
            return None  # Nobody has the log any more; an operator has to decide.
        leader = state.nodes[store.leader]
        if leader.role != LEADS or leader.epoch != store.epoch:
            return "there is no leader"
        if store.isr != frozenset(range(self.case.nodes)):
            return "a node stays out of the in-sync set"
        if any(node.log != leader.log or node.mark != len(leader.log) for node in state.nodes):
            return "a node stays behind"
        return None

    # --- steps -------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Return the steps from a state; the numbers in a label are those of the state before it."""
        for label, after in self._steps(state):
            yield label, _renumbered(after)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._control(state)
        for number, ack in enumerate(state.acks):
            if ack is not None:
                yield from self._acknowledge(state, number, ack)
        for number, node in enumerate(state.nodes):
            if not node.is_up:
                yield f"{number} starts", self._start(state, number)
                if state.store.sessions[number].number:
                    yield f"the lease of {number} ends", _with_session(state, number, Session(0))
                continue
            yield from self._fail(state, number)
            if state.faults.stops and number in state.store.isr:
                stopping = state._replace(faults=state.faults._replace(stops=state.faults.stops - 1))
                for label, after in self._depart(stopping, number):
                    yield FAULT + label, after
            if state.store.sessions[number].number != node.session:
                after = _with_node(state, number, node._replace(session=node.session + 1))
                session = Session(node.session + 1, node.lost)
                yield f"{number} gets a new lease", _with_session(after, number, session)
            if node.epoch != state.store.epoch or (node.role == LEADS and node.isr != state.store.isr):
                yield f"{number} looks at the store", self._look(state, number)
            if node.synced < len(node.log) and self.has_sync:
                yield (
                    f"{number} syncs",
                    self._counted(_with_node(state, number, node._replace(synced=len(node.log))), number),
                )
            if node.role == LEADS:
                yield from self._lead(state, number)
            else:
                yield from self._follow(state, number)

    # --- the controller ----------------------------------------------------------------------------------------------

    def _control(self, state: State) -> Iterator[tuple[str, State]]:
        """Take the steps of the controller: each is one write, compared with what it was computed from."""
        store = state.store
        for number, session in enumerate(store.sessions):
            if session.lost and (number not in store.isr or len(store.isr) > 1 or session.lost == TAIL):
                yield f"the controller hears what {number} has lost", self._forgive(state, number)
        if store.sessions[store.leader] != Session(store.session) or store.leader not in store.isr:
            yield from self._elect(state, "elects")
        elif state.faults.moves:
            moved = state._replace(faults=state.faults._replace(moves=state.faults.moves - 1))
            for label, after in self._elect(moved, "moves the leadership to"):
                yield FAULT + label, after

    def _forgive(self, state: State, number: int) -> State:
        """Remove a member that has lost something, unless it is the last one, which has lost a tail."""
        store = state.store
        node, session = state.nodes[number], store.sessions[number]
        after = _with_session(state, number, session._replace(lost=NOTHING))
        if node.is_up and node.session == session.number:
            after = _with_node(after, number, node._replace(lost=NOTHING))
        if store.isr != {number}:
            return after._replace(store=after.store._replace(isr=store.isr - {number}))
        # The topic's policy takes the loss of all members into account: what is committed is what is left.
        return after._replace(committed=_common(state.committed, state.nodes[number].log))

    def _elect(self, state: State, verb: str) -> Iterator[tuple[str, State]]:
        store = state.store
        alive = [number for number, session in enumerate(store.sessions) if session.number]
        candidates = sorted(store.isr)
        if "a leader from outside the in-sync set" in self.mutants:
            candidates = alive
        for leader in candidates:
            session = store.sessions[leader]
            if not session.number or (session.lost and "elections before losses" not in self.mutants):
                continue
            if session == Session(store.session) and leader == store.leader:
                continue
            least = 1 if "the dead leave below the least number" in self.mutants else self.case.minimum
            dead = sorted(store.isr - {*alive, leader})
            leave = min(len(dead), max(0, len(store.isr | {leader}) - least))
            same = leader == store.leader and "the same leader keeps its epoch" in self.mutants
            epoch = store.epoch + (not same)
            for left in combinations(dead, leave):
                isr = (store.isr | {leader}) - {*left}
                elected = store._replace(epoch=epoch, leader=leader, session=session.number, isr=isr)
                yield f"the controller {verb} {leader} in epoch {epoch}", state._replace(store=elected)

    def _depart(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        """Leave the in-sync set, before a stop, after naming another member as the leader."""
        store = state.store
        least = 1 if "a node that stops leaves the set below the least number" in self.mutants else self.case.minimum
        if store.leader != number:
            if len(store.isr) > least:
                yield f"{number} leaves", state._replace(store=store._replace(isr=store.isr - {number}))
            return
        for other, session in enumerate(store.sessions):
            outside = "a leader names one outside of the set" in self.mutants
            if other == number or not session.number or session.lost or (other not in store.isr and not outside):
                continue
            isr = store.isr | {other}
            isr -= {number} if len(isr) > least else set()
            epoch = store.epoch + ("a leader names another in its own epoch" not in self.mutants)
            named = store._replace(epoch=epoch, leader=other, session=session.number, isr=isr)
            yield f"{number} names {other} and leaves", state._replace(store=named)

    # --- what happens to nodes ---------------------------------------------------------------------------------------

    def _fail(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        node, faults = state.nodes[number], state.faults
        down = Node(node.log, node.synced, False, node.session, node.lost)
        if faults.kills:
            after = state._replace(faults=faults._replace(kills=faults.kills - 1))
            yield f"{FAULT}{number} is killed", _with_node(after, number, down)
        if faults.powers:
            after = state._replace(faults=faults._replace(powers=faults.powers - 1))
            # What is synced is not lost, so where only that counts nothing is.
            lost = max(node.lost, NOTHING if self.case.is_synced or "no loss is told" in self.mutants else TAIL)
            cut = down._replace(log=node.log[: node.synced], lost=lost)
            yield f"{FAULT}{number} loses its power", _with_node(after, number, cut)
        if faults.disks:
            after = state._replace(faults=faults._replace(disks=faults.disks - 1))
            lost = NOTHING if "no loss is told" in self.mutants else ALL
            yield (
                f"{FAULT}{number} loses its disk",
                _with_node(after, number, down._replace(log=(), synced=0, lost=lost)),
            )
        if faults.leases and state.store.sessions[number].number:
            after = state._replace(faults=faults._replace(leases=faults.leases - 1))
            yield f"{FAULT}the lease of {number} ends", _with_session(after, number, Session(0))

    def _start(self, state: State, number: int) -> State:
        node = state.nodes[number]
        session = Session(node.session + 1, node.lost)
        lost = NOTHING if "a loss is told once" in self.mutants else node.lost
        up = Node(node.log, node.synced, session=session.number, lost=lost)
        if "a restarted leader leads on" in self.mutants and state.store.leader == number:
            state = state._replace(store=state.store._replace(session=session.number))
        return _with_session(_with_node(state, number, up), number, session)

    def _look(self, state: State, number: int) -> State:
        """Learn the epoch and the in-sync set. A leader of a new epoch stops following and begins."""
        node, store = state.nodes[number], state.store
        if node.epoch == store.epoch and node.role == LEADS:
            return self._marked(
                _with_node(state, number, node._replace(isr=store.isr, pending=_without(node.pending, store.isr))),
                number,
            )
        if (store.leader, store.session) != (number, node.session):
            return _with_node(state, number, _idle(node)._replace(epoch=store.epoch))
        log, count = node.log, len(state.nodes)
        if self.case.has_first_record:
            log = (*log, (store.epoch, 0))
        began = _idle(node)._replace(
            log=log,
            epoch=store.epoch,
            role=LEADS,
            isr=store.isr,
            promised=len(log),
            ends=(UNKNOWN,) * count,
            sessions=(0,) * count,
        )
        if "acknowledgements of an earlier epoch count" in self.mutants and node.role == LEADS:
            began = began._replace(ends=node.ends, sessions=node.sessions)
        return self._marked(_with_node(state, number, began), number)

    # --- a leader ----------------------------------------------------------------------------------------------------

    def _lead(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        node, store = state.nodes[number], state.store
        is_current = (store.epoch, store.leader) == (node.epoch, number)
        if state.left and len(_counted_members(node)) >= self.case.minimum:
            written = node._replace(log=(*node.log, (node.epoch, state.left)))
            after = _with_node(state._replace(left=state.left - 1), number, written)
            yield f"{number} appends {state.left}", self._marked(after, number)
        for other in range(len(state.nodes)):
            if other == number:
                continue
            if other in node.isr and other in store.isr and is_current:
                yield from self._shrink(state, number, other)
            yield from self._expand(state, number, other, is_current)

    def _shrink(self, state: State, number: int, other: int) -> Iterator[tuple[str, State]]:
        """Remove a member that does not follow, or is too slow."""
        least = 1 if "the in-sync set shrinks below the least number" in self.mutants else self.case.minimum
        if len(state.store.isr) <= least:
            return
        peer, node = state.nodes[other], state.nodes[number]
        after = state._replace(store=state.store._replace(isr=state.store.isr - {other}))
        if "a removal counts before it is done" in self.mutants:
            after = self._marked(_with_node(state, number, node._replace(isr=node.isr - {other})), number)
        follows = peer.is_up and peer.role == FOLLOWS and peer.epoch == node.epoch
        if not follows:
            yield f"{number} removes {other}", after
        elif state.faults.links:
            yield (
                f"{FAULT}{number} removes {other}, which follows",
                after._replace(faults=state.faults._replace(links=state.faults.links - 1)),
            )

    def _expand(self, state: State, number: int, other: int, is_current: bool) -> Iterator[tuple[str, State]]:
        """Ask for the addition of a member; the store does it if nothing has changed there."""
        node, store = state.nodes[number], state.store
        reached = node.mark >= node.promised or "added before the end of the promotion" in self.mutants
        holds = node.ends[other] >= node.mark or "added before it holds the watermark" in self.mutants
        asked = next((session for member, session in node.pending if member == other), None)
        if other not in node.isr and asked is None and node.sessions[other] and holds and reached and is_current:
            pending = node.pending | {(other, node.sessions[other])}
            yield f"{number} asks to add {other}", _with_node(state, number, node._replace(pending=pending))
        if asked is not None and other not in store.isr:
            session = store.sessions[other]
            if "an addition is compared with the last session" in self.mutants:
                asked = node.sessions[other]
            same = session == Session(asked)
            if "added in any session" in self.mutants:
                same = session.number != 0 and not session.lost
            later = "an answer of a later epoch counts" in self.mutants
            if is_current and same:
                after = state._replace(store=store._replace(isr=store.isr | {other}))
                if "an addition does not count before it is known" in self.mutants:
                    after = self._marked(_with_node(after, number, node._replace(pending=frozenset())), number)
                yield f"the store adds {other}", after
            elif is_current or later:
                after = _with_node(state, number, node._replace(pending=_without(node.pending, {other})))
                yield f"{number} hears that {other} was not added", self._marked(after, number)

    def _marked(self, state: State, number: int) -> State:
        """Move a leader's watermark, and note what is committed."""
        node = state.nodes[number]
        if node.role != LEADS:
            return state
        own = (
            node.synced
            if self.case.is_synced and "a leader counts what is not synced" not in self.mutants
            else len(node.log)
        )
        counted = (
            node.isr if "an addition does not count before it is known" in self.mutants else _counted_members(node)
        )
        ends = [own if member == number else node.ends[member] for member in counted]
        if "a majority is enough" in self.mutants:
            ends = sorted(ends)[(len(ends) - 1) // 2 :]
        mark = max(node.mark, min(ends, default=0))
        told = node.log[:mark]
        both = min(len(told), len(state.committed))
        after = _with_node(state, number, node._replace(mark=mark))
        if told[:both] != state.committed[:both]:
            return after._replace(changed=True)
        return after._replace(committed=max(told, state.committed, key=len))

    # --- a follower --------------------------------------------------------------------------------------------------

    def _follow(self, state: State, number: int) -> Iterator[tuple[str, State]]:
        node = state.nodes[number]
        leader = next(
            (at for at, other in enumerate(state.nodes) if other.role == LEADS and other.epoch == node.epoch), None
        )
        if leader is None:
            return
        leading = state.nodes[leader]
        if node.role == IDLE or leading.sessions[number] != node.session:
            yield f"{number} follows {leader}", self._match(state, number, leader)
            return
        if len(node.log) < len(leading.log):
            fetched = node._replace(log=(*node.log, leading.log[len(node.log)]))
            fetched = fetched._replace(mark=max(node.mark, min(leading.mark, len(fetched.log))))
            yield f"{number} takes a batch", self._counted(_with_node(state, number, fetched), number)
        mark = min(leading.mark, len(node.log))
        if mark > node.mark:
            yield f"{number} hears the watermark", _with_node(state, number, node._replace(mark=mark))

    def _match(self, state: State, number: int, leader: int) -> State:
        """Cut a follower's log where it parts from the leader's, and begin to follow."""
        node, leading = state.nodes[number], state.nodes[leader]
        cut = len(_common_epochs(node.log, leading.log))
        if "cut to the watermark" in self.mutants:
            cut = node.mark
        if "no cut" in self.mutants:
            cut = len(node.log)
        matched = node._replace(
            log=node.log[:cut], synced=min(cut, node.synced), role=FOLLOWS, mark=min(cut, node.mark)
        )
        follows = leading._replace(
            ends=_with(leading.ends, number, UNKNOWN), sessions=_with(leading.sessions, number, node.session)
        )
        after = _with_node(_with_node(state, number, matched), leader, follows)
        return self._counted(after._replace(acks=_with(state.acks, number, None)), number)

    def _counted(self, state: State, number: int) -> State:
        """Send what a follower holds, or count what a leader holds."""
        node = state.nodes[number]
        if node.role == LEADS:
            return self._marked(state, number)
        if node.role != FOLLOWS:
            return state
        written = "what is not synced is acknowledged" in self.mutants
        end = node.synced if self.case.is_synced and not written else len(node.log)
        return state._replace(acks=_with(state.acks, number, (node.epoch, end)))

    def _acknowledge(self, state: State, number: int, ack: tuple[int, int]) -> Iterator[tuple[str, State]]:
        epoch, end = ack
        after = state._replace(acks=_with(state.acks, number, None))
        for leader, node in enumerate(state.nodes):
            if node.role == LEADS and node.epoch == epoch and node.sessions[number]:
                ends = _with(node.ends, number, end)
                marked = self._marked(_with_node(after, leader, node._replace(ends=ends)), leader)
                yield f"{leader} hears that {number} holds {end}", marked
                return
        yield f"an acknowledgement of {number} is lost", after


def _renumbered(state: State) -> State:
    """Give the nodes numbers by what they are, so that states that differ in nothing else are one."""
    store = state.store
    groups = store.unfit, store.replicas, store.target, store.former
    moves = any(groups)

    def facts(number: int) -> tuple[object, ...]:
        node, ack = state.nodes[number], state.acks[number] or (0, 0)
        own = number == store.leader, number in store.isr, node.outside, node[:8], node.promised
        places = tuple(number in nodes for nodes in groups) if moves else ()
        return *places, *own, store.sessions[number], ack

    found = [facts(number) for number in range(len(state.nodes))]
    if all(one <= next_one for one, next_one in pairwise(found)):  # type: ignore[operator]
        return state
    order = sorted(range(len(found)), key=found.__getitem__)
    places = {number: place for place, number in enumerate(order)}

    def members(numbers: frozenset[int]) -> frozenset[int]:
        return frozenset(places[number] for number in numbers)

    def values(of_nodes: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(of_nodes[number] for number in order) if of_nodes else ()

    nodes = [
        node._replace(
            isr=members(node.isr),
            pending=frozenset((places[number], session) for number, session in node.pending),
            ends=values(node.ends),
            sessions=values(node.sessions),
        )
        for node in values(state.nodes)
    ]
    told = store._replace(leader=places[store.leader], isr=members(store.isr), sessions=values(store.sessions))
    told = told._replace(unfit=members(store.unfit), replicas=members(store.replicas))
    told = told._replace(target=members(store.target), former=members(store.former))
    return state._replace(nodes=tuple(nodes), store=told, acks=values(state.acks))


def _counted_members(node: Node) -> frozenset[int]:
    """The members that a leader's watermark waits for."""
    return node.isr | {member for member, _ in node.pending}


def _without(pending: frozenset[tuple[int, int]], members: Collection[int]) -> frozenset[tuple[int, int]]:
    return frozenset(pair for pair in pending if pair[0] not in members)


def _idle(node: Node) -> Node:
    """A node without a role."""
    return Node(node.log, node.synced, session=node.session, lost=node.lost, mark=node.mark)


def _with(values: tuple, number: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*values[:number], value, *values[number + 1 :])


def _with_node(state: State, number: int, node: Node) -> State:
    # `_replace` takes three times as long, and half of all steps come here.
    return State(_with(state.nodes, number, node), *state[1:])


def _with_session(state: State, number: int, session: Session) -> State:
    return state._replace(store=state.store._replace(sessions=_with(state.store.sessions, number, session)))


def _common(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The batches at the beginning of both."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


def _common_epochs(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The part at the beginning of one log that has the epochs of the other one."""
    count = 0
    while count < min(len(one), len(other)) and one[count][0] == other[count][0]:
        count += 1
    return one[:count]
