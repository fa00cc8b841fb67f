"""Routing lines, in this process: the cost of routing a batch, and the cost of many bindings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.line import Bound, Line
from benchmarks.plan import Plan
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import Record
from linn.core.routing.exchange import Binding, Exchange, Subject, Target
from linn.core.routing.graph import ExchangeGraph
from linn.core.routing.router import Router
from linn.plugins.exchanges import DirectExchange, NoSettings, TopicExchange

KINDS: dict[str, Callable[[str, NoSettings], Exchange]] = {"direct": DirectExchange, "topic": TopicExchange}
RECORDS = 1_000
FEW, MANY = 100, 10_000
TOPICS = 10
"""Topics that the bindings of an exchange lead to, in turn."""


def routing_lines(plan: Plan) -> Iterator[Line]:
    """All routing lines."""
    yield _one_label_set(plan)
    yield _many_label_sets(plan)
    for kind in KINDS:
        yield Line("routing", f"{kind}: {MANY:,} bindings loaded", "s", Bound(1.0, at_most=True), _loads(plan, kind))
    for kind in KINDS:
        yield _matches(plan, kind)


def _pattern(number: int) -> str:
    return f"departed.{number}.late"


def _router(kind: str, count: int) -> tuple[Router, ExchangeGraph]:
    graph = ExchangeGraph()
    router = graph.routers["e"] = Router("e", kind, lambda: KINDS[kind]("e", NoSettings()), graph)
    for number in range(count):
        router.bind(Binding(Target(f"t{number % TOPICS}"), _pattern(number)))
    return router, graph


def _batch(label_sets: int) -> RecordBatch:
    records = [
        Record(
            value=bytes(128),
            routing_key=_pattern(number % label_sets % FEW),
            labels={"flight": number % label_sets, "origin": "JFK"},
        )
        for number in range(RECORDS)
    ]
    return build_from_records(records, base_id=1)


def _seconds(work: Callable[[], object]) -> float:
    """CPU time of some work: nothing here waits, and other processes disturb it less."""
    started = time.process_time()
    work()
    return time.process_time() - started


def _one_label_set(plan: Plan) -> Line:
    """Route batches as producers send them: the same pair, batch after batch."""
    router, _ = _router("topic", FEW)
    content = bytes(_batch(1).message)
    values = []
    for _ in range(plan.rounds):
        batches = [RecordBatch(content) for _ in range(plan.routings)]
        values.append(_seconds(lambda batches=batches: [router.route(batch) for batch in batches]) / len(batches) * 1e6)  # type: ignore[misc]
    return Line("routing", f"{RECORDS:,} records, one label set", "us", Bound(20, at_most=True), values)


def _many_label_sets(plan: Plan) -> Line:
    """Route batches of which nothing is cached, and each topic gets a part."""
    router, graph = _router("topic", FEW)
    content = bytes(_batch(RECORDS).message)
    values = []
    for _ in range(plan.rounds):
        graph.changed()
        batch = RecordBatch(content)
        values.append(_seconds(lambda batch=batch: router.route(batch)) * 1e3)  # type: ignore[misc]
    name = f"{RECORDS:,} label sets, {FEW} bindings, cold"
    return Line("routing", name, "ms", Bound(15, at_most=True), values)


def _loads(plan: Plan, kind: str) -> list[float]:
    return [_seconds(lambda: _router(kind, MANY)) for _ in range(plan.rounds)]


def _matches(plan: Plan, kind: str) -> Line:
    """The time of a match among many bindings, relative to one among few: about 1 with an index."""
    few, many = _router(kind, FEW)[0], _router(kind, MANY)[0]
    subjects = [Subject(_pattern(number % FEW), {}) for number in range(plan.routings)]
    pairs = []
    for _ in range(plan.rounds):
        small, large = [
            _seconds(lambda router=router: [router.match(subject) for subject in subjects]) / len(subjects) * 1e6  # type: ignore[misc]
            for router in (few, many)
        ]
        pairs.append((small, large))
    line = Line("routing", f"{kind}: a match in {MANY:,}, by one in {FEW}", "x", Bound(2, at_most=True), [])
    line.values = [large / small for small, large in pairs]
    line.floor, line.linn = median(small for small, _ in pairs), median(large for _, large in pairs)
    line.detail_unit = "us"
    return line
