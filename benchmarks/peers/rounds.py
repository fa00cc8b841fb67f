"""The rounds: every system has its turn in each of them, in an order of the round's own.

Laws: all servers of a durability run from its beginning to its end; each turn begins with a synced disk and has a topic
of its own, which is deleted; what a turn publishes is consumed at once and compared with what was published, all of it;
a system of which a record is missing, or that fails, has no figures at all.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

from benchmarks.load import cpu_s
from benchmarks.peers.cargo import Cargo, Supply
from benchmarks.peers.peer import Durability, Kind, Peer, PeerFailed, Server, TransactionalServer, Work
from benchmarks.peers.plan import Plan
from benchmarks.peers.ratios import quantile, shuffled, stands_still
from benchmarks.peers.result import Sample, WarmUp
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun
from benchmarks.servers import fresh_folder

TOOL_RECORDS = 20_000
"""Records of a load tool's first run, which finds out how many fill its time and is not counted."""
Publish = Callable[[Server, str, Supply, Stopwatch], list[float] | None]
Consume = Callable[[Server, str, int, Stopwatch], list[bytes]]


@dataclass(frozen=True)
class Trial:
    """Two works on one topic: publish to it, then consume what was published."""

    kind: Kind
    published: Work
    consumed: Work | None
    """None where consuming is only the proof."""
    publish: Publish
    consume: Consume


def transactional(server: Server) -> TransactionalServer:
    """The server of a system that offers transactions, which alone is asked for them."""
    return cast(TransactionalServer, server)


TRIALS = (
    Trial(
        "queue", "publish one at a time", None,
        lambda server, topic, supply, watch: server.publish_one_at_a_time(topic, supply, watch),
        lambda server, topic, expected, watch: server.work_bulk(topic, expected, watch),
    ),
    Trial(
        "queue", "publish to a queue, a call per record", "consume a queue, an ack per record",
        lambda server, topic, supply, watch: server.publish_calls(topic, "queue", supply, watch),
        lambda server, topic, expected, watch: server.work_records(topic, expected, watch),
    ),
    Trial(
        "queue", "publish to a queue in bulk", "consume a queue in bulk",
        lambda server, topic, supply, watch: server.publish_bulk(topic, "queue", supply, watch),
        lambda server, topic, expected, watch: server.work_bulk(topic, expected, watch),
    ),
    Trial(
        "stream", "publish to a stream, a call per record", "read a stream, record by record",
        lambda server, topic, supply, watch: server.publish_calls(topic, "stream", supply, watch),
        lambda server, topic, expected, watch: server.read_records(topic, expected, watch),
    ),
    Trial(
        "stream", "publish to a stream in bulk", "read a stream in bulk",
        lambda server, topic, supply, watch: server.publish_bulk(topic, "stream", supply, watch),
        lambda server, topic, expected, watch: server.read_bulk(topic, expected, watch),
    ),
    Trial(
        "stream", "publish to a stream in transactions", None,
        lambda server, topic, supply, watch: transactional(server).publish_transactions(topic, supply, watch),
        lambda server, topic, expected, watch: server.read_bulk(topic, expected, watch),
    ),
)  # fmt: skip
TOOL_WORKS: tuple[Work, Work] = ("publish to a stream, by load tool", "read a stream, by load tool")


def trials_of(durability: Durability) -> Sequence[Trial]:
    """Streams and load tools are measured in the page cache only: fsync is for those who can't lose a message."""
    return TRIALS if durability == "page cache" else [trial for trial in TRIALS if trial.kind == "queue"]


class Entrant:
    """A system whose server runs."""

    def __init__(self, peer: Peer, server: Server, plan: Plan, durability: Durability) -> None:
        self.peer = peer
        self.name = peer.facts.name
        self.server = server
        self._calls = peer.facts.calls
        self._plan = plan
        self._durability = durability
        self._topics = 0
        self._tool_counts: dict[int, int] = {}

    @contextmanager
    def _topic(self, kind: Kind) -> Iterator[str]:
        self._topics += 1
        topic = f"turn-{self._topics}"
        self.server.create(topic, kind)
        yield topic
        self.server.delete(topic)

    def turn(self, trial: Trial, cargo: Cargo, number: int, seconds: float) -> list[Sample]:
        """Publish for so long and consume it. Raises PeerFailed, RecordsLost."""
        supply = Supply(cargo, seconds, self._plan.records_max(cargo.record_bytes))
        publishing, consuming = Stopwatch(self.server.pids), Stopwatch(self.server.pids)
        with self._topic(trial.kind) as topic:
            os.sync()  # What one system wrote is not for the next one to wait for.
            gc.collect()
            times = trial.publish(self.server, topic, supply, publishing)
            if not supply.taken:
                raise PeerFailed(f"{self.name} confirmed nothing in the time that there was")
            gc.collect()
            received = trial.consume(self.server, topic, supply.taken, consuming)
        cargo.check(received, supply.taken)
        watches = {trial.published: publishing, trial.consumed: consuming}
        samples = [
            self._sample(work, cargo, number, supply.taken, watch)
            for work, watch in watches.items()
            if work is not None and work in self._calls
        ]
        if times:
            taken_us = [(after - before) * 1e6 for before, after in pairwise(times)]
            samples[0] = replace(samples[0], p50_us=quantile(taken_us, 0.5), p99_us=quantile(taken_us, 0.99))
        return samples

    def _sample(self, work: Work, cargo: Cargo, number: int, records: int, watch: Stopwatch) -> Sample:
        return Sample(
            self.name, work, self._durability, cargo.record_bytes, number, records, watch.seconds,
            records / watch.seconds, watch.server_cpu_s, watch.client_cpu_s,
        )  # fmt: skip

    def warm_up(self, trial: Trial, cargo: Cargo) -> WarmUp:
        """Repeat it until its rates stand still, or for as long as the plan allows."""
        rates: list[float] = []
        ends_at = time.monotonic() + self._plan.warm_up_s_max
        while time.monotonic() < ends_at and not stands_still(rates):
            rates.append(self.turn(trial, cargo, 0, self._plan.warm_up_s)[0].records_per_s)
        return WarmUp(self.name, self._durability, trial.published, rates, stands_still(rates))

    def tool_turn(self, record_bytes: int, number: int, foreseen: float) -> list[Sample]:
        """Let the load tool publish to a stream, and read it; `foreseen` is what the client reached.

        The first run is short and says how many records fill the time. It says too few of a program that its runtime
        still compiles, and there the client's rate says more. Raises ToolFailed, PeerFailed.
        """
        if not any(work in self._calls for work in TOOL_WORKS):
            return []
        count = self._tool_counts.get(record_bytes)
        if count is None:
            rates = [sample.records_per_s for sample in self._tool_samples(record_bytes, 0, TOOL_RECORDS)]
            count = max(TOOL_RECORDS, int(max(foreseen, *rates) * self._plan.tool_s))
            count = min(count, self._plan.records_max(record_bytes))
            self._tool_counts[record_bytes] = count
        return self._tool_samples(record_bytes, number, count)

    def _tool_samples(self, record_bytes: int, number: int, count: int) -> list[Sample]:
        runs = zip(TOOL_WORKS, (self.server.tool_publish, self.server.tool_read), strict=True)
        samples: list[Sample] = []
        with self._topic("stream") as topic:
            os.sync()
            for work, run in runs:
                if work in self._calls:
                    with Stopwatch(self.server.pids) as watch:
                        done = run(topic, record_bytes, count)
                    samples.append(self._tool_sample(work, record_bytes, number, count, done, watch))
        return samples

    def _tool_sample(
        self, work: Work, record_bytes: int, number: int, count: int, done: ToolRun, watch: Stopwatch
    ) -> Sample:
        reading = done.reading
        if reading.records is not None and reading.records < count:
            raise PeerFailed(f"{self.name}'s load tool was told {count} records and did {reading.records}")
        return Sample(
            self.name, work, self._durability, record_bytes, number, count, done.seconds, reading.records_per_s,
            watch.server_cpu_s, done.cpu_s,
        )  # fmt: skip


class Rounds:
    """The rounds of all durabilities, and what came out."""

    def __init__(self, peers: Sequence[Peer], plan: Plan) -> None:
        self.samples: list[Sample] = []
        self.warm_ups: list[WarmUp] = []
        self.idle_cores: dict[Durability, float] = {}
        self.versions: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self._peers = peers
        self._plan = plan
        self._cargoes = [Cargo(size) for size in plan.record_bytes]
        self._entrants: list[Entrant] = []

    def run(self) -> None:
        """All of it; a system that fails is told, and the others go on."""
        for durability in self._plan.durabilities:
            with ExitStack() as stack:
                self._start(durability, stack)
                self._warm_up(durability)
                self.idle_cores[durability] = self._idle()
                for cargo in self._cargoes:
                    self._measure(durability, cargo)
        self.samples = [sample for sample in self.samples if sample.system not in self.failed]

    def _start(self, durability: Durability, stack: ExitStack) -> None:
        self._entrants = []
        for peer in self._peers:
            name = peer.facts.name
            if durability not in peer.facts.settings or name in self.failed:
                continue
            with self._failing(name):
                folder = stack.enter_context(fresh_folder(self._plan.folder))
                server = stack.enter_context(peer.server(folder, durability))
                self.versions[name] = server.version
                self._entrants.append(Entrant(peer, server, self._plan, durability))

    def _warm_up(self, durability: Durability) -> None:
        for entrant in self._running():
            _say(f"{durability}: {entrant.name} warms up")
            with self._failing(entrant.name):
                for trial in trials_of(durability):
                    if offers(entrant.peer, trial):
                        self.warm_ups.append(entrant.warm_up(trial, self._cargoes[0]))

    def _idle(self) -> float:
        pids = [pid for entrant in self._running() for pid in entrant.server.pids]
        before, started = sum(map(cpu_s, pids)), time.monotonic()
        time.sleep(self._plan.idle_s)
        return (sum(map(cpu_s, pids)) - before) / (time.monotonic() - started)

    def _measure(self, durability: Durability, cargo: Cargo) -> None:
        for trial in trials_of(durability):
            what = f"{durability}, {cargo.record_bytes} bytes: {trial.published}"
            self._turns(what, lambda entrant, number, trial=trial: (  # type: ignore[misc]
                entrant.turn(trial, cargo, number, self._plan.seconds) if offers(entrant.peer, trial) else []
            ))  # fmt: skip
        if durability == "page cache":
            size = cargo.record_bytes
            what = f"{durability}, {size} bytes: load tools"
            self._turns(what, lambda entrant, number: entrant.tool_turn(size, number, self._best(entrant.name, size)))

    def _best(self, name: str, record_bytes: int) -> float:
        """The best rate at which a system's client has published to a stream with a call per record."""
        wanted = (name, record_bytes, "publish to a stream, a call per record")
        rates = [each.records_per_s for each in self.samples if (each.system, each.record_bytes, each.work) == wanted]
        return max(rates, default=0.0)

    def _turns(self, what: str, turn: Callable[[Entrant, int], Iterable[Sample]]) -> None:
        _say(what)
        for number in range(1, self._plan.rounds + 1):
            for entrant in shuffled(self._running(), f"{what} {number}"):
                with self._failing(entrant.name):
                    self.samples += turn(entrant, number)

    def _running(self) -> list[Entrant]:
        return [entrant for entrant in self._entrants if entrant.name not in self.failed]

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Each system's library has a tree of errors of its own.
            traceback.print_exc()
            self.failed[name] = f"{type(error).__name__}: {error}"
            _say(f"{name} has failed and is left out")


def minutes(peers: Sequence[Peer], plan: Plan) -> float:
    """Estimate how long `Rounds.run` takes."""
    offered = [
        (peer, trial)
        for durability in plan.durabilities
        for peer in peers
        for trial in trials_of(durability)
        if durability in peer.facts.settings and offers(peer, trial)
    ]
    sizes = plan.rounds * len(plan.record_bytes)
    tools = plan.durabilities.count("page cache") * len(peers)
    return plan.minutes(len(offered) * sizes, tools * sizes, len(offered))


def offers(peer: Peer, trial: Trial) -> bool:
    """Whether anything of it is measured."""
    return trial.published in peer.facts.calls or trial.consumed in peer.facts.calls


_begun = time.monotonic()


def _say(text: str) -> None:
    print(f"{(time.monotonic() - _begun) / 60:5.1f} min  {text}", file=sys.stderr, flush=True)
