"""One run of two-phase delivery, in which single messages and log records go wrong: one seed is one run.

Consumers with participants, whose stores outlive them, take a queue's records through a proxy. The proxy sees each
message of the protocol, and the broker's state log tells of each record; at those that the seed names a side is killed,
power is lost, or the message is lost, cut, stalled, sent twice, late, or over a connection whose name was taken over.
In the end each record has had its effect exactly once, and nothing that was told of the log was untrue.

    python tests/broker/two_phase_arrows.py SEED [SEED ...]
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

import trio
from arrow_world import DONE_S_MAX, PROXY, REQUEST_TIMEOUT_S, ArrowWorld, deaths_at
from raw_client import ADDRESS, RawClient, Refused, records

import linn
from linn.client.participants.participant import NO_FLOOR, Floor, Mark, Place
from linn.client.participants.spans import Span, applied_parts, conflict, is_below, merged_span, raised_floor
from linn.core.broker.broker import Broker
from linn.core.errors.tree import LinnError
from linn.core.queue.event import Acquired, Decided, Settled, decode_events, single_events
from linn.core.queue.event_run import Snapshot
from linn.testing.deterministic import run_simulation
from linn.testing.sim_env import SimEnv
from linn.wire import messages as m
from linn.wire.connection import Event

VERDICTS = {
    m.Verdict.READY: "ready",
    m.Verdict.DONE: "done",
    m.Verdict.NACK: "return",
    m.Verdict.RELEASE: "return",
    m.Verdict.REJECT: "",
    m.Verdict.EXTEND: "",
    m.Verdict.ACK: "",
}
"""The arrow that each verdict is; "": none of two-phase delivery's own, or its end like any other."""
PHASES = {m.Phase.NONE: "", m.Phase.PREPARE: "deliver", m.Phase.COMMIT: "deliver again"}
LOGGED: dict[str, str] = {
    "Acquired": "acquired",
    "Decided": "decided",
    "Settled": "settled",
    "Returned": "",
    "Died": "",
    "Ended": "",
    "Explained": "",
    "Intended": "",
    "Skipped": "",
    "DeliveryIdsStarted": "",
    "Started": "",
}
"""The arrow that each kind of row in the state log is."""
TO_BROKER = ("subscribe", "ready", "done", "return", "resolve")
TO_CLIENT = ("subscribed", "deliver", "deliver again", "answer to ready", "answer to done", "resolved")
IN_THE_LOG = ("acquired", "decided", "settled", "snapshot")
IN_THE_STORE = ("commit",)
ARROWS = (*TO_BROKER, *TO_CLIENT, *IN_THE_LOG, *IN_THE_STORE)
RARE = ("subscribe", "subscribed", "deliver again", "resolve", "resolved", "return", "snapshot")
"""Arrows of which a run has a few at most."""
ONLY_IN_DOUBT = ("resolve", "resolved")
FAULTS: list[tuple[str, str]] = [
    *deaths_at(ARROWS),
    *product((*TO_BROKER, *TO_CLIENT), ["lose it", "cut it in the middle", "stall it"]),
    *product(TO_BROKER, ["send it over a fenced connection"]),
    *product(("ready", "done", "resolve"), ["send it twice", "send it late as well"]),
    *product(("ready", "done"), ["fill the disk before it"]),
]
"""Each arrow of the protocol with all that may happen to it."""
RECORDS = 36
TOML = """
[storage.segmented-log]
fsync = "always"
segment_bytes_max = 4096
[topics.jobs]
kind = "%s"
delivery = "exactly-once"
retention = "forever"
partitions = %d
lease = "%ds"
"""


class Store:
    """The durable part of a consumer's store."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.floors: dict[Place, Floor] = {}
        self.marks: dict[tuple[Place, int], list[Span]] = {}


class StoreParticipant:
    """An `AsyncParticipant` whose transaction is gone with the consumer, before the commit or after it, never between.

    The handle is the list of the effects.
    """

    def __init__(self, store: Store, pause: Callable[[str], Any]) -> None:
        self._store = store
        self._pause = pause
        self._pending: list[str] | None = None
        self._place: Place

    async def open(self) -> None:
        await self._pause("open")

    async def floor(self, place: Place) -> Floor:
        return self._store.floors.get(place, NO_FLOOR)

    async def begin(self, place: Place) -> list[str]:
        assert self._pending is None, "a transaction is open"
        self._place, self._pending = place, []
        await self._pause("begin")
        return self._pending

    async def applied(self, mark: Mark) -> Sequence[Span]:
        spans = self._store.marks.get((self._place, mark.epoch), [])
        return applied_parts(mark, self._store.floors.get(self._place, NO_FLOOR), spans)

    async def prepare(self) -> None:
        await self._pause("prepare")

    async def commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        await self._pause("before commit")
        self._commit(marks, floor)
        await self._pause("after commit")

    def _commit(self, marks: Sequence[Mark], floor: Floor) -> None:
        store, place, pending = self._store, self._place, self._pending
        assert pending is not None, "no transaction is open"
        now = store.floors.get(place, NO_FLOOR)
        for mark in marks:
            if parts := applied_parts(mark, now, store.marks.get((place, mark.epoch), [])):
                raise conflict(place, mark, parts)
        for mark in marks:
            spans = store.marks.setdefault((place, mark.epoch), [])
            merged = merged_span(mark, spans)
            spans[:] = [span for span in spans if span[1] < merged[0] or span[0] > merged[1]] + [merged]
        store.floors[place] = floor = raised_floor(now, floor)
        for (where, epoch), spans in store.marks.items():
            if where == place:
                spans[:] = [span for span in spans if not is_below(Mark(epoch, *span), floor)]
        store.effects += pending
        self._pending = None

    async def rollback(self) -> None:
        self._pending = None

    async def close(self) -> None:
        self._pending = None


class Run(ArrowWorld):
    """The world of one seed."""

    faults_of_protocol = FAULTS
    rare = RARE

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng, arrow = self.rng, FAULTS[seed % len(FAULTS)][0]
        if arrow == "deliver again":
            self.add_fault("commit", "kill the client before it")
        if arrow in ONLY_IN_DOUBT:  # Ready may have been carried out, or not: the answer does not say.
            for _ in range(3):
                self.add_fault("ready", "fill the disk before it")
        self.fails_at = 0.35 if arrow == "return" else 0.02
        """Probability that an application raises at a record."""
        self.oversleeps_at = 0.0
        """Probability that an application takes longer than a lease lasts, and its client does not renew it."""
        self.partitions = rng.choice([1, 1, 2])
        self.lease_s = rng.choice([5, 10])
        self.sync_delay_s = rng.choice([0.0, 0.005, 0.05])
        self.shared = rng.choice(["", "", "work"])
        """The shared subscription of a stream; "": it is a queue."""
        self.text = TOML % ("stream" if self.shared else "queue", self.partitions, self.lease_s)
        self.published: list[str] = []
        self.settled_before: dict[int, int] = {}
        """The highest `settledBefore` that a client was told, by partition."""

    def make_clients(self) -> Sequence[Taker]:
        self.consumers = [Taker(self, name) for name in ("ann", "bob")]
        return self.consumers

    async def set_up(self) -> None:
        if not self.shared:
            return
        client = RawClient(await self.probe.net.connect(ADDRESS))
        await client.greet()
        await client.administer("subscription.create", topic="jobs", subscription=self.shared)
        await client.stream.aclose()
        for partition_queue in self.running.topics["jobs"].subscriptions[self.shared].partition_queues:
            self.watch(partition_queue.log.state, "append", arrows_logged)

    def look_at(self, broker: Broker) -> None:
        """Compare what a start has found with what clients were told, and watch the state logs."""
        queue = broker.topics["jobs"].subscriptions.get(self.shared)
        for partition, partition_queue in enumerate(queue.partition_queues if queue is not None else ()):
            found, told = partition_queue.subscription.settled_before(), self.settled_before.get(partition, 0)
            if found < told:
                self.untrue = f"settled_before {told} of partition {partition} was told, and is {found} after a start"
            self.watch(partition_queue.log.state, "append", arrows_logged)

    def told(self, message: m.Message) -> None:
        if isinstance(message, m.Deliver):
            before = self.settled_before.get(message.partition, 0)
            self.settled_before[message.partition] = max(before, message.settled_before)

    def request_arrow(self, event: Event) -> str:
        """The arrow that a request is. A settle of many is what its most telling entry is."""
        match event.message:
            case m.Subscribe():
                return "subscribe"
            case m.Resolve():
                return "resolve"
            case m.Settle(entries=entries):
                found = {VERDICTS[m.Verdict(entry.verdict)] for entry in entries}
                return next((arrow for arrow in ("ready", "done", "return") if arrow in found), "")
        return ""

    def answer_arrow(self, event: Event, asked: str) -> str:
        match event.message:
            case m.Deliver(phase=phase):
                return PHASES[m.Phase(phase)]
            case m.Subscribed():
                return "subscribed"
            case m.Resolved():
                return "resolved"
        return f"answer to {asked}" if asked in ("ready", "done") else ""

    async def work(self) -> None:
        await self._publish()
        await self._until_settled()

    # --- records ---

    async def _publish(self) -> None:
        number = 0
        while number < RECORDS:
            with suppress(LinnError, EOFError, Refused):
                client = RawClient(await self.probe.net.connect(ADDRESS))
                await client.greet()
                while number < RECORDS:
                    values = [f"{number + at}" for at in range(self.rng.randint(1, 6))]
                    number += len(values)
                    # Sent once: a batch that no answer has come for may be stored or not.
                    await client.call(m.Publish("jobs", partition=number % self.partitions), [records(values)])
                    self.published += values
                    await trio.sleep(self.rng.choice([0.0, 0.01, 0.1]))
            await trio.sleep(0.1)

    async def _until_settled(self) -> None:
        while True:
            with suppress(LinnError, EOFError, Refused), trio.move_on_after(5):
                client = RawClient(await self.probe.net.connect(ADDRESS))
                await client.greet()
                if self.shared:
                    (shown,) = await client.administer("subscription.list", topic="jobs")
                else:
                    shown = (await client.administer("topic.show", name="jobs"))["queue"]
                await client.stream.aclose()
                if not shown["unsettled"]:
                    return
            await trio.sleep(0.2)

    async def check(self) -> None:
        assert not self.untrue, self.untrue
        effects = Counter(value for consumer in self.consumers for value in consumer.store.effects)
        twice = {value: count for value, count in effects.items() if count > 1}
        assert not twice, f"had their effect more than once: {twice}"
        missing = [value for value in self.published if not effects[value]]
        assert not missing, f"had no effect: {missing}"


class Taker:
    """One consumer by its name, which may be killed and started again; its store stays."""

    def __init__(self, run: Run, name: str, node: str = "") -> None:
        """`node`: the name of its machine, if that is another."""
        self.name = name
        self.store = Store()
        self.env = SimEnv(run.seed, name=node or name, world=run.probe.world)
        self._run = run
        self._rng = random.Random(f"{run.seed}/{node or name}")
        self._after_commit = ""
        """A death that is to come when the commit is done."""

    async def run(self) -> None:
        while True:
            if not await self.env.run_until_death(self._take):
                return
            await trio.sleep(self._rng.choice([0.05, 0.5, 3.0]))
            self.env = self.env.restart()

    async def _take(self, env: SimEnv) -> None:
        while True:
            with suppress(LinnError, ValueError):
                async with linn.connect(
                    f"linn://{PROXY}", env=env, request_timeout_s=REQUEST_TIMEOUT_S, connect_timeout_s=1
                ) as client:
                    participant = StoreParticipant(self.store, self._pause)
                    prefetch = self._rng.choice([1, 4, 20])
                    async with client.consumer(
                        "jobs",
                        name=self.name,
                        shared=self._run.shared or None,
                        prefetch=prefetch,
                        renewal_max_s=0 if self._run.oversleeps_at else 3600,
                        exactly_once=participant,
                    ) as consumer:
                        async for message, effects in consumer:
                            effects.append(message.text)
                            await trio.sleep(self._rng.choice([0, 0, 0.01]))
                            if self._rng.random() < self._run.oversleeps_at:
                                await trio.sleep(self._rng.choice([0.9, 1.0, 1.5]) * self._run.lease_s)
                            if self._rng.random() < self._run.fails_at:
                                raise ValueError("the application fails")
                            if self._rng.random() < 0.1:
                                await consumer.commit()
            await trio.sleep(0.1)

    async def _pause(self, where: str) -> None:
        """Give a death the time to come between two steps of a transaction."""
        if where == "before commit":
            for what in self._run.faults_of("commit"):
                if what.endswith("after it"):
                    self._after_commit = what
                else:
                    self._die(what)
        elif where == "after commit" and self._after_commit:
            what, self._after_commit = self._after_commit, ""
            self._die(what)
        await trio.sleep(self._rng.choice([0, 0.001]))

    def _die(self, what: str) -> None:
        if "client" in what:
            self.env.kill()
        else:
            self._run.kill(what)


def arrows_logged(record: bytes) -> list[str]:
    """The arrows that a record of the state log is."""
    events = decode_events(record)
    if isinstance(events[0], Snapshot):
        return ["snapshot"]
    found = dict.fromkeys(LOGGED[type(event).__name__] for event in single_events(events))
    return [arrow for arrow in found if arrow]


assert {"acquired", "decided", "settled"} == {LOGGED[kind.__name__] for kind in (Acquired, Decided, Settled)}


def walk(seed: int) -> Run:
    """Run a seed. Raises what went wrong."""
    run = Run(seed)
    run_simulation(seed, run.run, virtual_s_max=2 * DONE_S_MAX)
    return run


if __name__ == "__main__":
    for text in sys.argv[1:]:
        print(f"seed {text} holds, with {dict(walk(int(text)).made)}")
