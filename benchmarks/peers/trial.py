"""What is done with each system, in which order, and what is measured of it.

Laws: each repetition has a topic of its own, which is deleted; the first one is a warm-up and is not counted, nor is
what a new server does before; what a repetition publishes is consumed at once, counted, and compared with what was
published wherever a delivery begins and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]

from benchmarks.peers.cargo import Cargo, Supply, Tally
from benchmarks.peers.figure import Figure, Sample, Work, quantile
from benchmarks.peers.peer import DURABILITIES, Durability, Kind, Peer, PeerFailed, Server
from benchmarks.peers.plan import REPETITIONS, Plan
from benchmarks.peers.stopwatch import Stopwatch
from benchmarks.peers.tool import ToolRun
from benchmarks.servers import fresh_folder, set_apart

WARM_UP = 0.3
"""Of a repetition's time."""
TOOL_RECORDS = 20_000
"""Of a load tool's warm-up."""
TOOL_SHARE = 1.5
"""Of a repetition's time. More, because the first second of a new Java process is slow."""
_BATCHED: dict[Kind, tuple[Work, Work]] = {
    "queue": ("publish to a queue", "consume and ack"),
    "stream": ("publish to a stream", "read a stream"),
}


class Trial:
    """One system, and what its pieces of work came to."""

    def __init__(self, peer: Peer, plan: Plan) -> None:
        self.figures: list[Figure] = []
        self.version = ""
        self._peer = peer
        self._plan = plan
        self._topics = 0

    def run(self) -> None:
        """All of it. Raises PeerFailed, RecordsLost, ToolFailed."""
        for durability in DURABILITIES:
            if durability not in self._peer.facts.settings:
                continue
            with fresh_folder(self._plan.folder) as folder, self._peer.server(folder, durability) as server:
                self.version = server.version
                if self._plan.is_apart:
                    _set_threads_apart(server.pids)
                if self._peer.warm_up_s:
                    self._warm_up(server, Cargo(self._plan.record_bytes[0]))
                for record_bytes in self._plan.record_bytes:
                    print(f"  {durability}, {record_bytes} bytes ...", file=sys.stderr, flush=True)
                    self._measure(server, durability, Cargo(record_bytes))

    def _warm_up(self, server: Server, cargo: Cargo) -> None:
        share = self._peer.warm_up_s / self._plan.repetition_s
        self._batched(server, "queue", cargo, share)
        self._singly(server, cargo, share)

    def _measure(self, server: Server, durability: Durability, cargo: Cargo) -> None:
        self._repeat(durability, cargo, lambda share: self._singly(server, cargo, share))
        self._repeat(durability, cargo, lambda share: self._batched(server, "queue", cargo, share))
        if durability == "page cache":
            self._repeat(durability, cargo, lambda share: self._batched(server, "stream", cargo, share))
            self._with_tool(server, durability, cargo.record_bytes)

    def _repeat(self, durability: Durability, cargo: Cargo, once: Callable[[float], dict[Work, Sample]]) -> None:
        once(WARM_UP)
        rounds = [once(1.0) for _ in range(REPETITIONS)]
        for work in rounds[0]:
            self._add(work, durability, cargo.record_bytes, [samples[work] for samples in rounds])

    def _add(self, work: Work, durability: Durability, record_bytes: int, samples: list[Sample]) -> None:
        self.figures.append(Figure(self._peer.facts.name, work, durability, record_bytes, samples))

    @contextmanager
    def _topic(self, server: Server, kind: Kind) -> Iterator[str]:
        self._topics += 1
        topic = f"trial-{self._topics}"
        server.create(topic, kind)
        yield topic
        server.delete(topic)

    def _supply(self, cargo: Cargo, share: float) -> Supply:
        return Supply(cargo, self._plan.repetition_s * share, self._plan.records_max(cargo.record_bytes))

    def _singly(self, server: Server, cargo: Cargo, share: float) -> dict[Work, Sample]:
        with self._topic(server, "queue") as topic:
            supply, watch = self._supply(cargo, share), Stopwatch(server.pids)
            taken_us = [seconds * 1e6 for seconds in server.publish_singly(topic, "queue", supply, watch)]
            self._consumed(server, "queue", topic, cargo, supply.taken)
        sample = _sample(supply.taken, watch, quantile(taken_us, 0.5), quantile(taken_us, 0.99))
        return {"publish one at a time": sample}

    def _batched(self, server: Server, kind: Kind, cargo: Cargo, share: float) -> dict[Work, Sample]:
        with self._topic(server, kind) as topic:
            supply, watch = self._supply(cargo, share), Stopwatch(server.pids)
            server.publish_batched(topic, kind, supply, watch)
            consumed = self._consumed(server, kind, topic, cargo, supply.taken)
        published, read = _BATCHED[kind]
        return {published: _sample(supply.taken, watch), read: consumed}

    def _consumed(self, server: Server, kind: Kind, topic: str, cargo: Cargo, expected: int) -> Sample:
        if not expected:
            raise PeerFailed(f"{self._peer.facts.name} confirmed nothing in the time that there was")
        tally, watch = Tally(cargo, expected), Stopwatch(server.pids)
        consume = server.work if kind == "queue" else server.read
        consume(topic, tally, watch)
        tally.check()
        return _sample(tally.count, watch)

    def _with_tool(self, server: Server, durability: Durability, record_bytes: int) -> None:
        """The warm-up, and what the client published before, say how many records fill the time."""
        runs = self._tool_runs(server, record_bytes, TOOL_RECORDS)
        if not runs:
            return
        rates = [sample.records_per_s for sample in runs.values()]
        for figure in self.figures:
            if figure.record_bytes == record_bytes and figure.work in ("publish to a queue", "publish to a stream"):
                rates.append(figure.records_per_s)
        count = max(TOOL_RECORDS, int(max(rates) * self._plan.repetition_s * TOOL_SHARE))
        count = min(count, self._plan.records_max(record_bytes))
        rounds = [self._tool_runs(server, record_bytes, count) for _ in range(REPETITIONS)]
        for work in runs:
            self._add(work, durability, record_bytes, [samples[work] for samples in rounds])

    def _tool_runs(self, server: Server, record_bytes: int, count: int) -> dict[Work, Sample]:
        samples: dict[Work, Sample] = {}
        with self._topic(server, self._peer.tool_kind) as topic:
            runs: dict[Work, Callable[[str, int, int], ToolRun | None]] = {
                "load tool publishes": server.tool_publish,
                "load tool consumes": server.tool_consume,
            }
            for work, run in runs.items():
                watch = Stopwatch(server.pids)
                with watch:
                    done = run(topic, record_bytes, count)
                if done is not None:
                    samples[work] = self._tool_sample(done, count, watch)
        return samples

    def _tool_sample(self, done: ToolRun, count: int, watch: Stopwatch) -> Sample:
        reading = done.reading
        if reading.records is not None and reading.records < count:
            raise PeerFailed(f"{self._peer.facts.name}'s load tool was told {count} records and did {reading.records}")
        rate = reading.records_per_s
        return Sample(count, done.seconds, watch.server_cpu_s, done.cpu_s, rate, reading.p50_us, reading.p99_us)


def _set_threads_apart(pids: Sequence[int]) -> None:
    # A process's affinity is that of each of its threads; a new one has its maker's.
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            set_apart(thread.id)


def _sample(records: int, watch: Stopwatch, p50_us: float | None = None, p99_us: float | None = None) -> Sample:
    rate = records / watch.seconds
    return Sample(records, watch.seconds, watch.server_cpu_s, watch.client_cpu_s, rate, p50_us, p99_us)
