"""Cluster lines: three brokers beside one, a follower beside its leader, acks beside each other, and workers.

Laws: all processes run during the whole measurement; in each round every case has its turn, and a ratio is of two turns
of one round. The floor of a line is the case that its name has last.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import product

from benchmarks.cluster.processes import Brokers, Place, cluster_missing, one_broker, three_brokers
from benchmarks.cluster.work import Case, Turn, batches, singles
from benchmarks.cluster.workers import worker_lines
from benchmarks.line import Bound, Line, Pair, line_of_pairs
from benchmarks.plan import ClusterPlan, Plan
from benchmarks.servers import fresh_folder, share_processors
from linn.client.produce.producer import AcksName
from linn.descriptions import TopicSettings

GROUP = "cluster"
RATE = Bound(0.5)
FOLLOWER = Bound(0.5, at_most=True)
LATENCY_MS = Bound(1.0, at_most=True)
ACKS: tuple[AcksName, ...] = ("none", "leader", "all")
SIZES = (128, 1024)
FSYNCS = ("os", "always")
KINDS = ("stream", "queue")
REPLICAS = (0, 1, 2, 3)
KEPT_BYTES = 64 << 20
"""Size of a stream, so that runs do not fill the disk."""


def cluster_lines(plan: Plan) -> Iterator[Line]:
    """All lines. None without etcd."""
    missing = cluster_missing()
    if missing is not None:
        print(f"  {GROUP} is skipped: {missing}", file=sys.stderr, flush=True)
        return
    share_processors()
    with ExitStack() as stack:
        folder = stack.enter_context(fresh_folder(plan.folder))
        one = stack.enter_context(one_broker(folder / "one"))
        three = stack.enter_context(three_brokers(folder))
        yield from Measurement(plan.cluster, one, three).lines()
    yield from worker_lines(plan)


def cases_of(plan: ClusterPlan) -> list[Case]:
    """The cases in batches."""
    every = [Case(*values) for values in product(KINDS, FSYNCS, SIZES, REPLICAS, ACKS)]
    return every if plan.is_whole else [case for case in every if _is_usual(case)]


def _is_usual(case: Case) -> bool:
    if case.kind == "queue" and (case.record_bytes, case.fsync) != (128, "os"):
        return False
    return (case.replicas == 3 and case.kind == "stream") or case.acks == "all"


def single_cases_of(plan: ClusterPlan) -> list[Case]:
    """The cases in single publishes."""
    every = cases_of(dataclasses.replace(plan, is_whole=True))
    if plan.is_whole:
        return every
    return [
        case
        for case in every
        if (case.kind, case.record_bytes) == ("stream", 128) and case.replicas in (0, 3) and case.acks != "none"
    ]


def topics_of(replicas: Sequence[int]) -> dict[str, TopicSettings]:
    """The topics of all cases with so many replicas."""
    found: dict[str, TopicSettings] = {}
    for kind, fsync, count in product(KINDS, FSYNCS, replicas):
        settings: TopicSettings = {"kind": kind, "storage": fsync}  # type: ignore[typeddict-item]
        if kind == "stream":
            settings |= {"bytes_max": KEPT_BYTES, "overflow": "drop-head"}
        found[Case(kind, fsync, 0, count, "all").topic] = settings | ({"replicas": count} if count else {})
    return found


class Measurement:
    """All turns of all rounds."""

    def __init__(self, plan: ClusterPlan, one: Brokers, three: Brokers) -> None:
        self._plan = plan
        one.make(topics_of([0]))
        three.make(topics_of(REPLICAS[1:]))
        self._places = one.places | three.places
        self._batches: dict[Case, list[Turn]] = {}
        self._singles: dict[Case, list[Turn]] = {}
        self._passed_on: dict[str, list[tuple[Turn, Turn]]] = {"batches": [], "singles": []}
        """(through the leader, through another broker)."""

    def lines(self) -> Iterator[Line]:
        """Measure, and return the lines."""
        for number in range(1 + self._plan.rounds):
            self._run_round()
            if not number:  # Files, caches and links are new in the first.
                for turns in (self._batches, self._singles):
                    turns.clear()
                for pairs in self._passed_on.values():
                    pairs.clear()
        yield from self._goals()
        for case in self._batches:
            yield from self._batch_lines(case)
        for case in self._singles:
            yield from self._single_lines(case)

    def _run_round(self) -> None:
        for case in cases_of(self._plan):
            turn = batches(case, self._places[case.topic], self._count(case))
            self._batches.setdefault(case, []).append(turn)
        for case in single_cases_of(self._plan):
            turn = singles(case, self._places[case.topic], self._plan.single_calls)
            self._singles.setdefault(case, []).append(turn)
        case = Case("stream", "os", 128, 3, "leader")
        place = self._places[case.topic]
        ways: dict[str, tuple[Callable[[Case, Place, int, str], Turn], int]] = {
            "batches": (batches, self._count(case)),
            "singles": (singles, self._plan.single_calls),
        }
        for way, (run, count) in ways.items():
            through_leader = run(case, place, count, place.url)
            self._passed_on[way].append((through_leader, run(case, place, count, place.elsewhere)))

    def _count(self, case: Case) -> int:
        return min(self._plan.run_bytes // case.record_bytes, self._plan.run_records)

    # --- lines -------------------------------------------------------------------------------------------------------

    def _goals(self) -> Iterator[Line]:
        for size in SIZES:
            case, alone = (Case("stream", "os", size, replicas, "all") for replicas in (3, 0))
            pairs = [
                Pair(a.rate / 1e3, b.rate / 1e3, a.cpu_us["leader"], b.cpu_us["leader"])
                for a, b in zip(self._batches[alone], self._batches[case], strict=True)
            ]
            yield line_of_pairs(GROUP, f"{size} B in batches, all of three / one broker", RATE, pairs, "k/s")
            pairs = [Pair(turn.cpu_us["leader"], turn.cpu_us["follower"]) for turn in self._batches[case]]
            name = f"{size} B in batches, CPU of a follower / leader"
            yield line_of_pairs(GROUP, name, FOLLOWER, pairs, "us/record")
        for fsync in FSYNCS:
            both = [self._singles[Case("stream", fsync, 128, 3, acks)] for acks in ACKS[1:]]
            more_ms = [all.p50_ms - leader.p50_ms for leader, all in zip(*both, strict=True)]
            yield Line(GROUP, f"one publish, {fsync}, p50 of all - leader", "ms", LATENCY_MS, more_ms)
        found = self._passed_on["batches"]
        pairs = [Pair(a.rate / 1e3, b.rate / 1e3, a.cpu_us["leader"], b.cpu_us["leader"]) for a, b in found]
        yield line_of_pairs(GROUP, "128 B in batches, passed on / at the leader", None, pairs, "k/s")
        pairs = [Pair(a.p50_ms, b.p50_ms) for a, b in self._passed_on["singles"]]
        yield line_of_pairs(GROUP, "one publish, p50, passed on / at the leader", None, pairs, "ms")

    def _batch_lines(self, case: Case) -> Iterator[Line]:
        turns = self._batches[case]
        line = Line(GROUP, f"{case}, batches", "records/s", None, [turn.rate for turn in turns])
        line.linn, line.detail_unit = line.value * case.record_bytes / 1e6, "MB/s"
        yield line
        yield from self._roles(case, turns)

    def _single_lines(self, case: Case) -> Iterator[Line]:
        turns = self._singles[case]
        yield Line(GROUP, f"{case}, one, p50", "ms", None, [turn.p50_ms for turn in turns])
        yield Line(GROUP, f"{case}, one, p99", "ms", None, [turn.p99_ms for turn in turns])
        yield from self._roles(case, turns)

    def _roles(self, case: Case, turns: list[Turn]) -> Iterator[Line]:
        way = ", one" if turns[0].single_s else ""
        for role in turns[0].cpu_us if case.acks == "all" or self._plan.is_whole else ():
            yield Line(GROUP, f"{case}{way}, CPU {role}", "us", None, [turn.cpu_us[role] for turn in turns])
