"""Nodes that replicate a group of two logs over real partitions, the store, and a controller; one seed, any faults.

What is true of the store and the controller is in `tests/models/replication.py`: rules C1 and C2. A node that is killed
keeps its logs; a power loss takes what it had not synced; a lost disk takes everything. Messages wait in order, as long
as the schedule wants, also after their sender died. What a node knows of the store is old until it looks. A write of
the store may be carried out late, and its answer may be lost.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple

from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_single
from linn.core.errors.replication import CopyMisplaced, NotLeader
from linn.core.errors.tree import LinnError
from linn.core.log.partition import Partition, Role
from linn.core.log.replication.events import (
    ChangeIsr,
    Commit,
    Cut,
    Follow,
    GoOffline,
    Lead,
    LogTable,
    Match,
    PartView,
    ReadPart,
)
from linn.core.log.replication.replica import Replica
from linn.core.log.storage import Capabilities, PartitionId
from linn.core.log.storage_stats import StorageStats
from linn.core.loop.memory_budget import MemoryShare
from linn.storage_engines.dram.log import DramLog
from linn.storage_engines.dram.scratch import ScratchFolder
from linn.storage_engines.dram.settings import DramSettings
from linn.testing.sim_env import SimEnv

LOGS = (0, 1)
NOTHING, TAIL, ALL = 0, 1, 2
READ_ALL = 1 << 40
Act = Callable[[], Awaitable[None] | None]
Identity = tuple[int, bytes]
"""(epoch, value) of a batch."""


class SyncedLog(DramLog):
    """A log in memory that promises what one on a disk does: a power loss takes what was not synced."""

    synced = 0

    def durable(self) -> int:
        return self.synced

    async def sync(self) -> None:
        await super().sync()
        self.synced = self.bounds()[1]

    async def trim(self, *, before: int | None = None, after: int | None = None) -> None:
        await super().trim(before=before, after=after)
        self.synced = min(self.synced, self.bounds()[1])

    async def restart_at(self, start: int) -> None:
        await super().restart_at(start)
        self.synced = start

    async def close(self) -> None:
        """Stay: the process is gone, and the disk is not."""


class Case(NamedTuple):
    """The choices of a seed before it begins."""

    nodes: int
    minimum: int
    is_synced: bool
    """Whether a batch counts when it is synced, and not when it is written."""
    faults: tuple[str, ...]


@dataclass
class Link:
    """A follower's connection to a leader."""

    follower: Node
    leader: Node
    follow: Follow
    life: int
    """The leader's process."""
    to_leader: deque[tuple[str, Any]] = field(default_factory=deque)
    to_follower: deque[tuple[str, Any]] = field(default_factory=deque)
    sent: dict[int, int] = field(default_factory=dict)
    """End of what was sent of each log."""
    told: dict[int, int] = field(default_factory=dict)
    is_closed: bool = False


class Node:
    """A broker with its logs."""

    def __init__(self, number: int, run: ReplicationRun) -> None:
        self.number = number
        self.run = run
        self.is_up = True
        self.life = 0
        self.lost = NOTHING
        self.session = 1
        self.link: Link | None = None
        self.tasks: list[Callable[[], Awaitable[None]]] = []
        self.logs = {log: run.new_log(f"{number}/{log}") for log in LOGS}
        self.start()

    def start(self) -> None:
        """Begin a process over the logs as they are."""
        self.life += 1
        self.tasks.clear()
        self.link = None
        storage, clock = StorageStats("t"), self.run.env.clock
        self.partitions = {
            number: Partition(PartitionId("t", number), log, storage, clock, self.tasks.append, is_replicated=True)
            for number, log in self.logs.items()
        }
        self.replica = Replica(self.number, self.name, self.logs, self.run.case.minimum)

    @property
    def name(self) -> str:
        """The session."""
        return f"{self.number}.{self.session}"

    async def batches(self, log: int) -> list[RecordBatch]:
        found, (offset, end) = list[RecordBatch](), self.logs[log].bounds()
        while offset < end:
            found += await self.logs[log].read(offset, READ_ALL)
            offset = found[-1].end_offset
        return found

    # --- commands ----------------------------------------------------------------------------------------------------

    async def obey(self) -> None:
        """Carry out the commands of the rules."""
        while commands := self.replica.take_commands():
            for command in commands:
                await self._obey(command)

    async def _obey(self, command: object) -> None:
        run = self.run
        match command:
            case Lead(epoch):
                run.leaders.setdefault(epoch, []).append((self.number, self.life))
                run.expect(len(run.leaders[epoch]) == 1, "an epoch has one leader")
                self._drop_link()
                for number, partition in self.partitions.items():
                    partition.lead(epoch, partial(self._durable, number))
                    self._durable(number)
            case Follow(leader, epoch, _, request):
                self._drop_link()
                for partition in self.partitions.values():
                    partition.follow(leader, epoch, self.send_acknowledgements)
                there = run.nodes[leader]
                self.link = Link(self, there, command, there.life)
                self.link.to_leader.append(("follow", dict(request)))
                run.links.append(self.link)
            case GoOffline(epoch):
                self._drop_link()
                for partition in self.partitions.values():
                    partition.go_offline(epoch)
            case Commit(number, offset):
                await run.note_committed(self, number, offset)
                self.partitions[number].commit(offset)
            case ChangeIsr():
                run.store.writes.append((self, self.life, self.replica.leader, command))
            case ReadPart():
                run.store.reads.append((self, self.life))

    def _drop_link(self) -> None:
        if self.link is not None:
            self.link.is_closed = True
            self.link = None

    def _durable(self, number: int) -> None:
        if self.replica.leader is not None:
            self.replica.leader.durable(number, self.partitions[number].durable.offset)

    def send_acknowledgements(self) -> None:
        follower = self.replica.follower
        if follower is not None and self.link is not None:
            ends = follower.acknowledge({n: partition.durable.offset for n, partition in self.partitions.items()})
            if ends:
                self.link.to_leader.append(("acknowledge", ends))

    # --- messages ----------------------------------------------------------------------------------------------------

    async def hear(self, link: Link) -> None:
        """Take a message of a follower."""
        what, content = link.to_leader.popleft()
        leader, peer = self.replica.leader, link.follower.number
        if leader is None or self.life != link.life:
            link.is_closed = True
            return
        if what == "acknowledge":
            leader.acknowledged(peer, link.follow.session, content)
        else:
            tables: dict[int, LogTable] = content
            try:
                matches = leader.followed(peer, link.follow.epoch, link.follow.session, tables, float, self.run.now_s)
            except NotLeader:
                link.is_closed = True
                return
            for other in self.run.links:
                other.is_closed |= other is not link and other.follower is link.follower
            link.sent = {number: match.at for number, match in matches.items()}
            link.to_follower.append(("matches", matches))
        await self.obey()

    async def send(self, link: Link, number: int) -> None:
        """Send a batch, or the watermark alone."""
        log, (start, end) = self.logs[number], self.logs[number].bounds()
        offset, batches = max(link.sent[number], start), list[bytes]()
        if offset < end:
            found = (await log.read(offset, READ_ALL))[: self.run.rng.randint(1, 3)]
            batches = [bytes(batch.message) for batch in found]
            link.sent[number] = found[-1].end_offset
        assert self.replica.leader is not None
        watermark = link.told[number] = self.replica.leader.watermarks()[number]
        link.to_follower.append(("batches", (number, watermark, start, batches)))

    async def take(self, link: Link) -> None:
        """Take a message of the leader."""
        what, content = link.to_follower.popleft()
        follower = self.replica.follower
        if link is not self.link or follower is None:
            link.is_closed = True
            return
        if what == "matches":
            matches: dict[int, Match] = content
            follower.answered(matches)
            for number, match in matches.items():
                await self._match(number, match)
                self.replica.cut(number)
        else:
            number, watermark, start, messages = content
            await self._store(number, start, [RecordBatch(bytearray(message)) for message in messages])
            self.partitions[number].commit(self.replica.told(number, watermark))
        self.send_acknowledgements()

    async def _match(self, number: int, match: Match) -> None:
        partition = self.partitions[number]
        if isinstance(match, Cut):
            await partition.cut(match.at)
        else:
            await partition.restart_at(match.at)

    async def _store(self, number: int, start: int, batches: Sequence[RecordBatch]) -> None:
        partition = self.partitions[number]
        if start > partition.log.bounds()[1]:
            await partition.restart_at(start)
        try:
            partition.append_copy(batches)
        except CopyMisplaced:
            self.replica.follow_again()
            await self.obey()
        await partition.follow_start(start)


class Store:
    """The metadata: writes that are compared with what they were computed from, sessions, and the controller."""

    def __init__(self, run: ReplicationRun) -> None:
        self.run = run
        everyone = frozenset(run.numbers)
        self.part = PartView(1, 1, 1, "1.1", everyone, everyone)
        self.sessions: dict[int, tuple[str, int]] = {number: (f"{number}.1", NOTHING) for number in everyone}
        self.writes: list[tuple[Node, int, object, ChangeIsr]] = []
        self.reads: list[tuple[Node, int]] = []
        self.versions = [self.part]

    def put(self, **changes: Any) -> None:
        self.part = self.part._replace(revision=self.part.revision + 1, **changes)
        self.versions.append(self.part)

    def change(self, change: ChangeIsr) -> bool:
        """Carry out a conditional write; whether its conditions held."""
        sessions = {node: (session, NOTHING) for node, session in change.added.items()}
        if change.revision != self.part.revision or any(self.sessions.get(n) != s for n, s in sessions.items()):
            return False
        self.put(isr=change.isr)
        return True

    # --- the controller ----------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Act]:
        part = self.part
        for number, (_, lost) in self.sessions.items():
            if lost and (number not in part.isr or len(part.isr) > 1 or lost == TAIL):
                yield partial(self.forgive, number)
        session = self.sessions.get(part.leader)
        if session != (part.session, NOTHING) or part.leader not in part.isr:
            yield from self.elections()

    async def forgive(self, number: int) -> None:
        """Rule C1."""
        node, (session, _) = self.run.nodes[number], self.sessions[number]
        self.sessions[number] = session, NOTHING
        if node.is_up and node.name == session:
            node.lost = NOTHING
        if self.part.isr != {number}:
            self.put(isr=self.part.isr - {number})
        else:
            await self.run.forget_lost(node)

    def elections(self) -> Iterator[Act]:
        """Rule C2."""
        part = self.part
        for leader in sorted(part.isr):
            if self.sessions.get(leader, ("", ALL))[1] == NOTHING:
                yield partial(self.elect, leader)

    def elect(self, leader: int) -> None:
        part, rng = self.part, self.run.rng
        dead = sorted(part.isr - self.sessions.keys())
        leaving = rng.sample(dead, min(len(dead), max(0, len(part.isr) - self.run.case.minimum)))
        self.put(epoch=part.epoch + 1, leader=leader, session=self.sessions[leader][0], isr=part.isr - set(leaving))


class ReplicationRun:
    """One seed's run."""

    def __init__(self, seed: int | str) -> None:
        self.rng = rng = random.Random(seed)
        self.env = SimEnv(0)
        nodes = rng.choice((2, 3, 3, 3))
        losses = rng.sample(("kill", "power", "disk", "lease", "link", "move", "trim"), rng.randint(1, 3))
        self.case = Case(nodes, rng.randint(1, 2), rng.random() < 0.5, tuple(losses))
        self.numbers = range(1, nodes + 1)
        self.faults = rng.randint(1, 12)
        """Faults that may still happen."""
        self.now_s = 0.0
        self.weights: dict[tuple[str, int], float] = {}
        self.values = count(1)
        self.leaders: dict[int, list[tuple[int, int]]] = {}
        self.links: list[Link] = []
        self.names: dict[tuple[int, int, int], bytes] = {}
        """By log, epoch and offset: the batch of that name."""
        self.committed: dict[int, dict[int, Identity]] = {log: {} for log in LOGS}
        """By log and offset: the truth."""
        self.confirmed: dict[tuple[int, int], bytes] = {}
        self.starts = dict.fromkeys(LOGS, 0)
        self.has_lost_tail = False
        self.store = Store(self)
        self.nodes = {number: Node(number, self) for number in self.numbers}

    def new_log(self, name: str) -> SyncedLog:
        share, folder = MemoryShare("t"), ScratchFolder("scratch", self.env.disk, count())
        share.bytes_max = 1 << 30
        capabilities = Capabilities(survives_restart=True, confirm_after_sync=self.case.is_synced)
        return SyncedLog(name, DramSettings(), self.env, folder, share, capabilities)

    def expect(self, holds: bool, law: str) -> None:
        assert holds, f"[{law}] {self.store.part}"

    # --- the truth ---------------------------------------------------------------------------------------------------

    async def note_committed(self, node: Node, number: int, offset: int) -> None:
        truth = self.committed[number]
        for batch in await node.batches(number):
            if batch.end_offset <= offset:
                known = truth.setdefault(batch.base_offset, identity(batch))
                self.expect(known == identity(batch), "what is committed never changes")

    async def forget_lost(self, node: Node) -> None:
        """The last member has lost a tail, as the topic's policy allows: what is committed is what is left."""
        self.has_lost_tail = True
        for number, truth in self.committed.items():
            have = {batch.base_offset: identity(batch) for batch in await node.batches(number)}
            for offset in [offset for offset in truth if offset >= self.starts[number]]:
                if have.get(offset) != truth[offset]:
                    del truth[offset]
                    self.confirmed.pop((number, offset), None)

    async def check(self) -> None:
        """Check the laws."""
        part = self.store.part
        for number in LOGS:
            logs = {node.number: await node.batches(number) for node in self.nodes.values()}
            for batches in logs.values():
                for batch in batches:
                    name = number, batch.leader_epoch, batch.base_offset
                    value = identity(batch)[1]
                    self.expect(self.names.setdefault(name, value) == value, "an epoch and an offset name one batch")
            for node in self.nodes.values():
                have = {batch.base_offset: identity(batch) for batch in logs[node.number]}
                truth = {at: name for at, name in self.committed[number].items() if at >= self.starts[number]}
                told = node.lost or self.store.sessions.get(node.number, ("", NOTHING))[1]
                if node.number in part.isr and not told:
                    misses = [offset for offset, name in truth.items() if have.get(offset) != name]
                    self.expect(not misses, "a member of the in-sync set has all that is committed")
                self._check_watermark(node, number, have, truth)

    def _check_watermark(self, node: Node, number: int, have: dict[int, Identity], truth: dict[int, Identity]) -> None:
        partition = node.partitions[number]
        if node.is_up and not self.has_lost_tail and not node.lost:
            below = {offset: name for offset, name in have.items() if offset < partition.high_watermark}
            agree = all(truth.get(offset, name) == name for offset, name in below.items())
            self.expect(agree, "all replicas agree below the watermark")
            self.expect(
                all(offset in truth for offset in below if offset >= self.starts[number]),
                "a watermark is that of a leader",
            )

    # --- steps -------------------------------------------------------------------------------------------------------

    async def live(self, steps: int) -> None:
        for node in self.nodes.values():
            node.replica.viewed(self.store.part, self.now_s)
            await node.obey()
        for _ in range(steps):
            await self.step()
            await self.check()
        await self.heal()

    async def step(self, *, is_healing: bool = False) -> bool:
        acts = list(self.acts(is_healing=is_healing))
        if not is_healing and self.faults and self.rng.random() < 0.1:
            faults = list(self.fault_acts())
            if faults:
                self.faults -= 1
                acts = faults
        if not acts:
            return False
        weights = [1.0 if is_healing else self._weight(act) for act in acts]
        done = self.rng.choices(acts, weights)[0]()
        if done is not None:
            await done
        return True

    def _weight(self, act: Act) -> float:
        """The share of an act: another one for each kind, node and seed, so that something else is slow in each."""
        assert isinstance(act, partial)
        who = act.func.__self__.number if isinstance(act.func.__self__, Node) else getattr(act.args[0], "number", 0)
        return self.weights.setdefault((act.func.__name__, who), self.rng.choice((0.1, 1, 1, 4)))

    def acts(self, *, is_healing: bool) -> Iterator[Act]:
        yield from self.store.steps()
        yield from self._store_acts(is_healing=is_healing)
        for link in [link for link in self.links if not link.is_closed]:
            yield from self._link_acts(link)
        for node in self.nodes.values():
            yield from self._node_acts(node, is_healing=is_healing)

    def _store_acts(self, *, is_healing: bool) -> Iterator[Act]:
        for write in self.store.writes:
            yield partial(self._carry_out, write)
            if not is_healing:
                yield partial(self._lose_answer, write)
        for read in self.store.reads:
            yield partial(self._answer_read, read)

    async def _carry_out(self, write: tuple[Node, int, object, ChangeIsr]) -> None:
        self.store.writes.remove(write)
        node, life, leader, change = write
        is_made = self.store.change(change)
        revision = self.store.part.revision
        if node.life == life and node.is_up and node.replica.leader is leader and node.replica.leader is not None:
            if is_made:
                node.replica.leader.changed(change, revision)
            else:
                node.replica.leader.refused(change)
            await node.obey()

    async def _lose_answer(self, write: tuple[Node, int, object, ChangeIsr]) -> None:
        """The store carries it out, now or later, and the leader does not hear of it."""
        node, life, leader, change = write
        if self.rng.random() < 0.5:
            self.store.writes.remove(write)
            self.store.change(change)
        if node.life == life and node.is_up and node.replica.leader is leader and node.replica.leader is not None:
            node.replica.leader.lost_answer(change)
            await node.obey()

    async def _answer_read(self, read: tuple[Node, int]) -> None:
        self.store.reads.remove(read)
        node, life = read
        if node.life == life and node.is_up:
            node.replica.viewed(self.store.part, self.now_s, is_read=True)
            await node.obey()

    def _link_acts(self, link: Link) -> Iterator[Act]:
        leader, follower = link.leader, link.follower
        if link.to_leader and leader.is_up:
            yield partial(leader.hear, link)
        if link.to_follower and follower.is_up:
            yield partial(follower.take, link)
        is_served = leader.is_up and leader.life == link.life and leader.replica.leader is not None
        if not is_served or not follower.is_up:
            yield partial(self._close, link)
        elif link.sent and leader.replica.leader is not None:
            for number in LOGS:
                end, watermark = leader.logs[number].bounds()[1], leader.replica.leader.watermarks()[number]
                if link.sent[number] < end or link.told.get(number, 0) < watermark:
                    yield partial(leader.send, link, number)

    async def _close(self, link: Link) -> None:
        link.is_closed = True
        if link.leader.life == link.life and link.leader.replica.leader is not None:
            link.leader.replica.leader.unfollowed(link.follower.number, link.follow.session, self.now_s)
            await link.leader.obey()

    def _node_acts(self, node: Node, *, is_healing: bool) -> Iterator[Act]:
        store, replica = self.store, node.replica
        session = store.sessions.get(node.number)
        if not node.is_up:
            yield partial(self._start, node)
            if session is not None:
                yield partial(self._end_lease, node)
            return
        if session is None or session[0] != node.name:
            yield partial(self._new_lease, node)
        if replica.epoch < store.part.epoch or (replica.leader and replica.leader.part.revision < store.part.revision):
            yield partial(self._look, node)
        if node.tasks:
            yield partial(self._run_task, node)
        if replica.leader is not None:
            yield partial(self._tick, node, (0.02,) if is_healing else (0.1, 0.5, 2.5))
            if not is_healing:
                yield partial(self._publish, node)
        elif replica.follower is not None and (node.link is None or node.link.is_closed):
            yield partial(self._follow_again, node)

    async def _follow_again(self, node: Node) -> None:
        node.replica.follow_again()
        await node.obey()

    async def _look(self, node: Node) -> None:
        """Learn what the store has, or had at some time since the last look."""
        node.replica.viewed(self.rng.choice(self.store.versions[-4:]), self.now_s)
        await node.obey()

    async def _run_task(self, node: Node) -> None:
        await node.tasks.pop(0)()
        await node.obey()

    async def _tick(self, node: Node, steps_s: Sequence[float]) -> None:
        self.now_s += self.rng.choice(steps_s)
        assert node.replica.leader is not None
        node.replica.leader.tick(self.now_s)
        await node.obey()

    async def _publish(self, node: Node) -> None:
        leader, number = node.replica.leader, self.rng.choice(LOGS)
        assert leader is not None
        if leader.has_enough:
            partition, value = node.partitions[number], b"%d" % next(self.values)
            offset = partition.append(build_single(value, 0, 0))

            def told(failure: LinnError | None) -> None:
                if failure is None:
                    self.confirmed[number, offset] = value

            partition.committed.when_passed(offset + 1, told)
            await node.obey()

    # --- faults ------------------------------------------------------------------------------------------------------

    def fault_acts(self) -> Iterator[Act]:
        kinds: dict[str, Callable[[Node], Awaitable[None]]] = {
            "kill": self._kill,
            "power": self._lose_power,
            "disk": self._lose_disk,
        }
        for node in self.nodes.values():
            if node.is_up:
                yield from (partial(kinds[fault], node) for fault in self.case.faults if fault in kinds)
                if "lease" in self.case.faults and node.number in self.store.sessions:
                    yield partial(self._end_lease, node)
                if "trim" in self.case.faults and node.replica.leader is not None:
                    yield partial(self._trim, node)
        if "link" in self.case.faults:
            yield from (partial(self._close, link) for link in self.links if not link.is_closed)
        if "move" in self.case.faults:
            yield from self.store.elections()

    async def _kill(self, node: Node) -> None:
        node.is_up = False
        node.tasks.clear()

    async def _lose_power(self, node: Node) -> None:
        await self._kill(node)
        for log in node.logs.values():
            after = [b.base_offset for b in await node.batches(log_number(node, log)) if b.base_offset >= log.synced]
            if after:
                await log.trim(after=self.rng.choice(after))
        if not self.case.is_synced:
            node.lost = max(node.lost, TAIL)

    async def _lose_disk(self, node: Node) -> None:
        await self._kill(node)
        node.logs = {log: self.new_log(f"{node.number}/{log}") for log in LOGS}
        node.lost = ALL

    async def _start(self, node: Node) -> None:
        for log in node.logs.values():
            await log._find_facts()
            await log.sync()  # An opening makes durable what it finds.
        node.is_up = True
        node.session += 1
        node.start()
        self.store.sessions[node.number] = node.name, node.lost

    async def _end_lease(self, node: Node) -> None:
        self.store.sessions.pop(node.number, None)
        if node.is_up and self.rng.random() < 0.5:
            node.replica.session_ended()
            await node.obey()

    async def _new_lease(self, node: Node) -> None:
        node.session += 1
        self.store.sessions[node.number] = node.name, node.lost
        node.replica.session_began(node.name)
        await node.obey()

    async def _trim(self, node: Node) -> None:
        """Retention drops records of the leader that are committed."""
        number = self.rng.choice(LOGS)
        bases = [offset for offset in self.committed[number] if offset < node.partitions[number].high_watermark]
        if bases:
            start = self.rng.choice(bases) + 1
            await node.logs[number].trim(before=start)
            self.starts[number] = max(self.starts[number], start)

    # --- afterwards --------------------------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Without more faults everything becomes available, and nothing that was confirmed is lost."""
        for _ in range(3_000):
            if self.is_at_rest():
                break
            await self.step(is_healing=True)
        await self.check()
        if all(self.store.sessions.get(n, ("", ALL))[1] == ALL for n in self.store.part.isr):
            return  # Nobody has the logs any more: an operator has to decide.
        self.expect(self.is_at_rest(), "after the faults all nodes are in sync")
        for node in self.nodes.values():
            for number in LOGS:
                found = await node.batches(number), await self.nodes[self.store.part.leader].batches(number)
                kept = [[identity(b) for b in each if b.base_offset >= self.starts[number]] for each in found]
                self.expect(kept[0] == kept[1], "all replicas are the same in the end")
        for (number, offset), value in self.confirmed.items():
            if offset >= self.starts[number]:
                self.expect(self.committed[number].get(offset, (0, b""))[1] == value, "what is confirmed is not lost")

    def is_at_rest(self) -> bool:
        part = self.store.part
        leader = self.nodes[part.leader]
        if part.isr != set(self.numbers) or not leader.is_up or leader.replica.leader is None:
            return False
        return all(
            node.is_up
            and not node.lost
            and node.logs[number].bounds()[1] == leader.logs[number].bounds()[1]
            and node.logs[number].bounds()[1] == node.partitions[number].high_watermark
            and node.partitions[number].role is (Role.LEADING if node is leader else Role.FOLLOWING)
            for node in self.nodes.values()
            for number in LOGS
        )


def log_number(node: Node, log: SyncedLog) -> int:
    return next(number for number, other in node.logs.items() if other is log)


def identity(batch: RecordBatch) -> Identity:
    return batch.leader_epoch, batch.value(0) or b""


async def replicate(seed: int, steps: int = 160) -> None:
    """Run a seed."""
    await ReplicationRun(seed).live(steps)
