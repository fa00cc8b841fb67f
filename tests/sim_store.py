"""SimStore: the metadata store of a simulation, shared by its nodes, with etcd's habits and faults by a seed.

Laws: requests are performed one at a time, each at one moment between its call and its answer, if at all; everything
follows from the seed. A request is on its way for a moment, and so is its answer, and either may be lost: a write's
outcome is unknown then, and it may have been made, or not, or be made seconds later. A request that was sent arrives
even if its caller was cancelled, or killed. Watches deliver late, several changes at a time, in order; they may be
lost. A lease ends up to half a second after its time, as etcd looks for ended leases twice a second. While the store is
down no lease ends, and when it is back each has its whole time again, and some more: etcd's new leader renews all
(`Promote` of its lessor). Any lease may end early, as with a store that has lost them.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import trio

from linn.core.env.alarm import Alarm
from linn.core.env.env import Spawn
from linn.core.errors.metadata import LeaseLost, MetadataUnavailable, MetadataUnknown, RevisionConflict
from linn.core.errors.tree import LimitExceeded, LinnError
from linn.core.metadata.store import ABSENT, NO_LEASE, REMOVED, Changes, Snapshot, Stored
from linn.testing.sim_env import SimClock, SimEnv

CHANGES_MAX = 128
"""Limit of the keys of a write: etcd's."""
WRITE_BYTES_MAX = 3 << 19
"""Limit of a write's values: etcd's 1.5 MiB."""
TIMEOUT_S = 4.0
"""Time after which a client gives up a request, or a watch over a cut connection."""
LATE_S_MAX = 5.0
"""Longest time after which a request that its client has given up is performed."""
LEASE_END_S_MAX = 0.5
"""Longest time between the end of a lease's time and its end."""
LEASE_EXTENSION_S = 1.0
"""Time that each lease gets in addition when the store is back: etcd's election timeout."""
WAITING_MAX = 1000
"""Limit of the writes that wait for a watch's reader; beyond it the watch is lost."""
ALL_CHANGES_AT_ONCE = 0.25

T = TypeVar("T")
Range = tuple[float, float]


class SimWrite(NamedTuple):
    """A write that the store has made."""

    at_s: float
    revision: int
    node: str
    """The writer; empty: the store itself."""
    changes: Mapping[str, Any]
    """The new values, or REMOVED."""
    lease: int
    cause: str
    """`put`; `lease`: a lease has ended; `emptied`: the store lost everything, and counts from 0 again."""


class _Entry(NamedTuple):
    revision: int
    text: bytes
    lease: int

    def decoded(self) -> Stored:
        return Stored(self.revision, json.loads(self.text))


@dataclass
class _Lease:
    node: str
    duration_s: float
    """Its `ttl_s` by the clock of this simulation."""
    ends_at: float
    is_awaited: bool = False
    """Whether a call at its end is due."""
    keys: dict[str, None] = field(default_factory=dict)


class _Request(Generic[T]):
    """A request on its way, and its answer."""

    def __init__(self, node: str, perform: Callable[[], T], is_write: bool) -> None:
        self.node = node
        self.is_write = is_write
        self.was_sent = True
        self._perform = perform
        self._result: T | None = None
        self._error: LinnError | None = None
        self._answered = trio.Event()

    def perform(self) -> None:
        try:
            self._result = self._perform()
        except LinnError as error:
            self._error = error

    def deliver(self) -> None:
        """Bring the answer to the client."""
        self._answered.set()

    def lose(self, why: str) -> None:
        """Tell the client that its connection is lost."""
        if not self._answered.is_set():
            self._error = self.lost(why)
            self._answered.set()

    def lost(self, why: str) -> LinnError:
        kind = MetadataUnknown if self.is_write and self.was_sent else MetadataUnavailable
        return kind(f"the simulated metadata store {why}")

    async def answer(self) -> T:
        """Wait for the answer. Raises LinnError."""
        with trio.move_on_after(TIMEOUT_S) as waiting:
            await self._answered.wait()
        if waiting.cancelled_caught:
            raise self.lost("does not answer")
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class SimStore:
    """The store: its content, its history, and its faults. `client` makes the store of a node."""

    def __init__(self, seed: int | str, spawn: Spawn) -> None:
        """Prepare. `spawn` starts tasks of the simulation, which outlive every node."""
        self.history: list[SimWrite] = []
        """All writes, in order."""
        self.delay_s: Range = (0.0002, 0.004)
        """Range of the time that a request takes to arrive, and an answer."""
        self.loss = 0.0
        """Probability that a request, or its answer, meets a lost connection."""
        self.on_write: Callable[[SimWrite], None] | None = None
        """Called after each write, before its writer has the answer: here a writer can be killed between two writes."""
        self._rng = random.Random(f"{seed}/store")
        self._alarm = Alarm(SimClock(), spawn, self._run_due)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._due_count = 0
        self._revision = 0
        self._entries: dict[str, _Entry] = {}
        self._leases: dict[int, _Lease] = {}
        self._leases_granted = 0
        self._watches: dict[SimWatch, None] = {}
        self._is_up = True
        self._life = 0
        """Number of stops: an answer of an earlier life is lost."""
        self._unheard: dict[str, None] = {}
        """Nodes whose requests do not arrive."""
        self._deaf: dict[str, None] = {}
        """Nodes at which no answer and no change arrives."""
        self._cuts = 0
        self._held: list[_Request[Any]] = []
        self._held_answers: list[_Request[Any]] = []
        self._delays: dict[str, Range] = {}
        self._watch_delays: dict[str, Range] = {}
        self._speeds: dict[str, float] = {}

    def client(self, env: SimEnv) -> SimStoreClient:
        """Make the store of a node's process; the node is `env.name`."""
        return SimStoreClient(self, env)

    def content(self) -> dict[str, Stored]:
        """Return all entries, at once and whatever is down."""
        return {key: entry.decoded() for key, entry in self._entries.items()}

    # --- faults ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the store, or its majority: it refuses connections until `start`, and its watches are lost."""
        self._is_up = False
        self._life += 1
        self._held.clear()
        self._held_answers.clear()
        self.lose_watches()

    def start(self) -> None:
        """Start the store again, with all that was written. Each lease has its time from now, and some more."""
        self._is_up = True
        for number, lease in self._leases.items():
            lease.ends_at = trio.current_time() + lease.duration_s + LEASE_EXTENSION_S
            self._await_end(number)

    def cut(self, node: str, *, requests: bool = True, answers: bool = True) -> None:
        """Hold back what a node sends to the store, or what the store sends to it, or both, until `heal`."""
        if requests:
            self._unheard[node] = None
        if answers and node not in self._deaf:
            self._deaf[node] = None
            self._cuts += 1
            for watch in self._watches_of(node):
                watch.cut = self._cuts
            self._after(TIMEOUT_S, partial(self._give_up_watches, node, self._cuts))

    def heal(self, node: str) -> None:
        """End all cuts of a node. Held requests arrive, or are lost; held answers arrive."""
        self._unheard.pop(node, None)
        self._deaf.pop(node, None)
        held = [request for request in self._held if request.node == node]
        answers = [request for request in self._held_answers if request.node == node]
        self._held = [request for request in self._held if request.node != node]
        self._held_answers = [request for request in self._held_answers if request.node != node]
        for request in held:
            if self._flips_coin():
                self._send(request)
        for request in answers:
            self._answer(request)
        for watch in self._watches_of(node):
            watch.cut = 0
            self._after(self._delay(node), watch.wake)

    def end_all_leases(self) -> None:
        """End every lease at once, however it was renewed."""
        for number in list(self._leases):
            self._end_lease(number)

    def end_leases(self, node: str) -> None:
        """End the leases of a node at once."""
        for number in [number for number, lease in self._leases.items() if lease.node == node]:
            self._end_lease(number)

    def lose_watches(self, node: str | None = None) -> None:
        """End the watches of a node, or all; changes on their way are lost with them."""
        for watch in [watch for watch in self._watches if node in (None, watch.node)]:
            self._lose_watch(watch)

    def slow(self, node: str, delay_s: Range) -> None:
        """Change the range of the time that a node's requests take to arrive, and their answers."""
        self._delays[node] = delay_s

    def slow_watches(self, node: str, delay_s: Range) -> None:
        """Change the range of the time after which a node's watches see a change."""
        self._watch_delays[node] = delay_s

    def drift(self, node: str, speed: float) -> None:
        """Let the store's clock run `speed` times as fast as the node's, for later leases: 1 is the same."""
        self._speeds[node] = speed

    def empty(self) -> None:
        """Lose everything: keys, leases, watches, requests on their way, and the count of revisions."""
        self._life += 1
        self._held.clear()
        self._held_answers.clear()
        self.lose_watches()
        gone = dict.fromkeys(self._entries, REMOVED)
        self._entries.clear()
        self._leases.clear()
        self._revision = 0
        self.history.append(SimWrite(trio.current_time(), 0, "", gone, NO_LEASE, "emptied"))

    def _give_up_watches(self, node: str, cut: int) -> None:
        for watch in self._watches_of(node):
            if watch.cut == cut:
                self._lose_watch(watch)

    def _watches_of(self, node: str) -> list[SimWatch]:
        return [watch for watch in self._watches if watch.node == node]

    def _lose_watch(self, watch: SimWatch) -> None:
        self._watches.pop(watch, None)
        watch.lose()

    # --- time --------------------------------------------------------------------------------------------------------

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        self._due_count += 1
        heapq.heappush(self._due, (trio.current_time() + delay_s, self._due_count, call))
        self._alarm.set(self._due[0][0])

    def _run_due(self) -> float | None:
        while self._due and self._due[0][0] <= trio.current_time():
            heapq.heappop(self._due)[2]()
        return self._due[0][0] if self._due else None

    def _delay(self, node: str) -> float:
        return self._rng.uniform(*self._delays.get(node, self.delay_s))

    def _flips_coin(self) -> bool:
        return self._rng.random() < 0.5

    # --- requests ----------------------------------------------------------------------------------------------------

    async def request(self, node: str, perform: Callable[[], T], *, is_write: bool = False) -> T:
        """Send a request and wait for its answer. Raises LinnError."""
        request = _Request(node, perform, is_write)
        if self._rng.random() < self.loss:
            self._lose(request)
        else:
            self._send(request)
        return await request.answer()

    def _send(self, request: _Request[Any]) -> None:
        self._after(self._delay(request.node), lambda: self._arrive(request))

    def _lose(self, request: _Request[Any]) -> None:
        """Lose the request, or its answer, or perform it after its client has given up."""
        self._after(self._delay(request.node), lambda: request.lose("has lost the connection"))
        fate = self._rng.randrange(3)
        if fate:
            delay_s = 0.0 if fate == 1 else self._rng.uniform(0, LATE_S_MAX)
            self._after(delay_s, lambda: self._perform_late(request))

    def _perform_late(self, request: _Request[Any]) -> None:
        if self._is_up and request.node not in self._unheard:
            request.perform()

    def _arrive(self, request: _Request[Any]) -> None:
        if request.node in self._unheard:
            request.was_sent = self._flips_coin()  # Otherwise it had no connection on which to send.
            if request.was_sent:
                self._held.append(request)
        elif self._is_up:
            request.perform()
            self._answer(request)
        else:
            request.was_sent = self._flips_coin()
            self._after(self._delay(request.node), lambda: request.lose("is down"))

    def _answer(self, request: _Request[Any]) -> None:
        if request.node in self._deaf:
            self._held_answers.append(request)
            return
        life = self._life

        def land() -> None:
            if life != self._life:
                request.lose("has lost the connection")
            elif request.node in self._deaf:
                self._held_answers.append(request)
            else:
                request.deliver()

        self._after(self._delay(request.node), land)

    # --- content -----------------------------------------------------------------------------------------------------

    def load(self) -> Snapshot:
        """Perform a `load`."""
        return Snapshot(self._revision, self.content())

    def new_watch(self, node: str) -> SimWatch:
        """Make a watch that has not begun."""
        return SimWatch(node, self._rng)

    def open_watch(self, watch: SimWatch) -> None:
        """Perform the beginning of a watch, unless its reader has given up."""
        if not watch.is_lost:
            watch.snapshot = self.load()
            self._watches[watch] = None

    def close_watch(self, watch: SimWatch) -> None:
        """End a watch of which no more is read."""
        self._lose_watch(watch)

    def put_all(self, node: str, texts: Mapping[str, bytes | None], conditions: Mapping[str, int], lease: int) -> int:
        """Perform a `put_all`; None: the key is removed. Raises RevisionConflict, LeaseLost."""
        for key, wanted in conditions.items():
            found = self._entries[key].revision if key in self._entries else ABSENT
            if found != wanted:
                raise RevisionConflict(f"{key} is at revision {found}, not {wanted}")
        if lease != NO_LEASE and lease not in self._leases:
            raise LeaseLost(f"the lease {lease} has ended")
        return self._write(node, texts, lease, "put")

    def _write(self, node: str, texts: Mapping[str, bytes | None], lease: int, cause: str) -> int:
        self._revision += 1
        told: dict[str, bytes | None] = {}
        for key, text in texts.items():
            before = self._entries.pop(key, None)
            if before is not None and before.lease in self._leases:
                self._leases[before.lease].keys.pop(key, None)
            if text is not None:
                self._entries[key] = _Entry(self._revision, text, lease)
                if lease != NO_LEASE:
                    self._leases[lease].keys[key] = None
            told[key] = text
        values = {key: REMOVED if text is None else json.loads(text) for key, text in told.items()}
        self.history.append(SimWrite(trio.current_time(), self._revision, node, values, lease, cause))
        for watch in list(self._watches):
            delay_s = self._rng.uniform(*self._watch_delays.get(watch.node, self.delay_s))
            if watch.tell(trio.current_time() + delay_s, self._revision, told):
                self._after(delay_s, watch.wake)
            else:
                self._lose_watch(watch)
        if self.on_write is not None:
            self.on_write(self.history[-1])
        return self._revision

    # --- leases ------------------------------------------------------------------------------------------------------

    def grant_lease(self, node: str, ttl_s: float) -> int:
        """Perform a `grant_lease`."""
        self._leases_granted += 1
        duration_s = ttl_s / self._speeds.get(node, 1.0)
        self._leases[self._leases_granted] = _Lease(node, duration_s, trio.current_time() + duration_s)
        self._await_end(self._leases_granted)
        return self._leases_granted

    def renew_lease(self, number: int) -> None:
        """Perform a `renew_lease`; a lease whose time is over ends now. Raises LeaseLost."""
        lease = self._leases.get(number)
        if lease is not None and lease.ends_at <= trio.current_time():
            self._end_lease(number)
            lease = None
        if lease is None:
            raise LeaseLost(f"the lease {number} has ended")
        lease.ends_at = trio.current_time() + lease.duration_s

    def revoke_lease(self, number: int) -> None:
        """Perform a `revoke_lease`."""
        self._end_lease(number)

    def _await_end(self, number: int) -> None:
        lease = self._leases[number]
        if not lease.is_awaited:
            lease.is_awaited = True
            late_s = self._rng.uniform(0, LEASE_END_S_MAX)
            self._after(lease.ends_at + late_s - trio.current_time(), lambda: self._end_in_time(number))

    def _end_in_time(self, number: int) -> None:
        lease = self._leases.get(number)
        if lease is None:
            return
        lease.is_awaited = False
        if not self._is_up:
            return
        if lease.ends_at > trio.current_time():
            self._await_end(number)
        else:
            self._end_lease(number)

    def _end_lease(self, number: int) -> None:
        lease = self._leases.pop(number, None)
        if lease is not None and lease.keys:
            self._write("", dict.fromkeys(lease.keys), NO_LEASE, "lease")


class _Told(NamedTuple):
    """A write on its way to a watcher."""

    arrives_at: float
    revision: int
    texts: Mapping[str, bytes | None]


class SimWatch:
    """A watch of a node."""

    snapshot: Snapshot

    def __init__(self, node: str, rng: random.Random) -> None:
        self.node = node
        self.is_lost = False
        self.cut = 0
        """The number of the cut that holds it up."""
        self._rng = rng
        self._told: deque[_Told] = deque()
        self._changed = trio.lowlevel.ParkingLot()

    def tell(self, arrives_at: float, revision: int, texts: Mapping[str, bytes | None]) -> bool:
        """Send a write to the watcher, behind earlier ones; False: too many wait."""
        if self._told:
            arrives_at = max(arrives_at, self._told[-1].arrives_at)
        self._told.append(_Told(arrives_at, revision, texts))
        return len(self._told) <= WAITING_MAX

    def lose(self) -> None:
        """Lose the watch, with the writes on their way."""
        self.is_lost = True
        self._told.clear()
        self.wake()

    def wake(self) -> None:
        """Wake its reader."""
        self._changed.unpark_all()

    async def next(self) -> Changes:
        """See `Watch.next`."""
        await trio.lowlevel.checkpoint()
        while not (count := self._arrived_count()):
            if self.is_lost:
                raise MetadataUnavailable("the watch of the simulated metadata store is lost")
            await self._changed.park()
        count = count if self._rng.random() < ALL_CHANGES_AT_ONCE else 1
        entries: dict[str, Stored | None] = {}
        for told in [self._told.popleft() for _ in range(count)]:
            for key, text in told.texts.items():
                entries[key] = None if text is None else Stored(told.revision, json.loads(text))
        return Changes(told.revision, entries)

    def _arrived_count(self) -> int:
        now = trio.current_time()
        return 0 if self.cut else sum(told.arrives_at <= now for told in self._told)


class SimStoreClient:
    """The `MetadataStore` of one process of a simulated node."""

    changes_max = CHANGES_MAX

    def __init__(self, store: SimStore, env: SimEnv) -> None:
        self._store = store
        self._env = env
        self._watches: dict[SimWatch, None] = {}
        self._is_closed = False

    async def _ask(self, perform: Callable[[], T], *, is_write: bool = False) -> T:
        """Raises LinnError, SimulatedCrash."""
        await trio.lowlevel.checkpoint()
        self._env.disk.check_alive()
        if self._is_closed:
            raise MetadataUnavailable("the metadata store was closed on this side")
        try:
            return await self._store.request(self._env.name, perform, is_write=is_write)
        finally:
            self._env.disk.check_alive()

    async def load(self) -> Snapshot:
        """See `MetadataStore.load`."""
        return await self._ask(self._store.load)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[SimWatch]:
        """See `MetadataStore.watch`."""
        watch = self._store.new_watch(self._env.name)
        self._watches[watch] = None
        try:
            await self._ask(lambda: self._store.open_watch(watch))
            yield watch
        finally:
            del self._watches[watch]
            self._store.close_watch(watch)

    async def put_all(self, changes: Mapping[str, Any], conditions: Mapping[str, int], lease: int = NO_LEASE) -> int:
        """See `MetadataStore.put_all`."""
        texts = {key: None if value is REMOVED else msgspec.json.encode(value) for key, value in changes.items()}
        size = sum(len(text) for text in texts.values() if text is not None)
        if len(changes) > CHANGES_MAX or len(conditions) > CHANGES_MAX or size > WRITE_BYTES_MAX:
            raise LimitExceeded(f"a write has at most {CHANGES_MAX} keys and {WRITE_BYTES_MAX} bytes")
        compared, node = dict(conditions), self._env.name
        return await self._ask(lambda: self._store.put_all(node, texts, compared, lease), is_write=True)

    async def grant_lease(self, ttl_s: float) -> int:
        """See `MetadataStore.grant_lease`."""
        return await self._ask(lambda: self._store.grant_lease(self._env.name, ttl_s))

    async def renew_lease(self, lease: int) -> None:
        """See `MetadataStore.renew_lease`."""
        await self._ask(lambda: self._store.renew_lease(lease))

    async def revoke_lease(self, lease: int) -> None:
        """See `MetadataStore.revoke_lease`."""
        await self._ask(lambda: self._store.revoke_lease(lease), is_write=True)

    async def aclose(self) -> None:
        """See `MetadataStore.aclose`. Its watches are lost."""
        self._is_closed = True
        for watch in list(self._watches):
            watch.lose()
