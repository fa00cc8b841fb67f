"""The page: all figures as they came out, and what a reader has to know to judge them. Pure: a result in, text out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.figure import TOOL_WORKS, WORKS, Figure, Sample, Work, client_cpu_s, server_cpu_s
from benchmarks.peers.peer import DURABILITIES, Durability, Facts

OWN = "linn"
"""The system that the others are compared with."""
HEADER = ("", "durability", "records/s", "of linn's", "p50", "p99", "server CPU", "client CPU")
HEAD = """# linn and its peers, side by side

<!-- Written by `python -m benchmarks.peers --page docs/benchmarks`. Do not edit: measure again. -->

The same work, with the same records, one system after another on one machine: {machine}. Measured on {date} in
{minutes:.0f} minutes, at a load average of {load} at the start. All figures are as they came out, also where linn
loses; [peers.json](peers.json) has every repetition.

"""
METHOD = """## How it was measured

- One server and one client, over loopback, with a data folder made for the run.
- {pinning}
- One topic, with one partition or one queue, no replicas, no compression, no encryption.
- Each figure is the median of {repetitions} repetitions of {seconds:.1f} s of publishing, after a warm-up. A
  repetition publishes at most {stock_mib} MiB. What was published is consumed in full,
  counted, and compared where each delivery begins and ends: if a record is missing, the system has no figures.
- **page cache**: a confirmed record has been handed to the operating system; it survives a crash of the server, and
  not one of the machine. **fsync**: it is on stable storage when it is confirmed. How each system is told is below.
- **CPU**: microseconds per record, and in brackets how many cores that kept busy. A load tool's has its start in it.
  Where the client's cores are near one and the server's are not, the figure is the client library's, not the server's.
- **p50, p99**: from a publish to its confirmation; those of a load tool are its own, of whole batches or pipelines.
- The bold figure of a table is the best of its durability.
- The clients do not all do the same, and the load tools even less: what is batched, how acks are sent and which
  language a client is written in is said with each system. Some figures are its client's more than its server's.

"""


@dataclass(frozen=True)
class Result:
    """A run of some systems."""

    facts: Sequence[Facts]
    versions: Mapping[str, str]
    """By the system's name."""
    figures: Sequence[Figure]
    missing: Mapping[str, str]
    """Systems that were not measured, and why."""
    measured_at: str
    seconds: float
    repetition_s: float
    repetitions: int
    stock_bytes_max: int
    is_apart: bool
    machine: Mapping[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "measured_at": self.measured_at,
            "seconds": self.seconds,
            "repetition_s": self.repetition_s,
            "repetitions": self.repetitions,
            "stock_bytes_max": self.stock_bytes_max,
            "apart": self.is_apart,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "missing": dict(self.missing),
            "settings": {facts.name: dict(facts.settings) for facts in self.facts},
            "figures": [figure.data() for figure in self.figures],
        }

    def find(self, system: str, work: Work, durability: Durability, record_bytes: int) -> Figure | None:
        """None where it was not measured."""
        wanted = (system, work, durability, record_bytes)
        for figure in self.figures:
            if (figure.system, figure.work, figure.durability, figure.record_bytes) == wanted:
                return figure
        return None


def page(result: Result) -> str:
    """The Markdown."""
    gib = result.machine["memory_bytes"] / 2**30
    machine = f"{result.machine['cpus']} cores, {gib:.0f} GiB of memory, {result.machine['system']}"
    load = f"{result.machine['load_average'][0]:.1f}"
    head = HEAD.format(machine=machine, date=result.measured_at[:10], minutes=result.seconds / 60, load=load)
    parts = [head, *_tables(result), _method(result), *_systems(result)]
    return "".join(parts).rstrip() + "\n"


def _tables(result: Result) -> Iterator[str]:
    for record_bytes in sorted({figure.record_bytes for figure in result.figures}):
        yield f"## Records of {record_bytes:,} bytes\n\n"
        for work in WORKS:
            rows = list(_rows(result, work, record_bytes))
            if rows:
                yield f"### {work.capitalize()}: {record_bytes:,} bytes\n\n{table(HEADER, rows)}\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown: the first two columns are words, the others figures."""
    marks = ["---" if index < 2 else "---:" for index in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, marks, *rows))


def _rows(result: Result, work: Work, record_bytes: int) -> Iterator[list[str]]:
    for durability in DURABILITIES:
        found = [(facts, result.find(facts.name, work, durability, record_bytes)) for facts in result.facts]
        rates = {facts.name: figure.records_per_s for facts, figure in found if figure is not None}
        if not rates:
            continue
        for facts, figure in found:
            if figure is not None:
                yield _row(figure, rates)
            elif facts.name not in result.missing and work not in TOOL_WORKS:
                yield [facts.name, durability, "not offered", *[""] * (len(HEADER) - 3)]


def _row(figure: Figure, rates: Mapping[str, float]) -> list[str]:
    rate = f"{figure.records_per_s:,.0f}"
    rate = f"**{rate}**" if len(rates) > 1 and figure.records_per_s == max(rates.values()) else rate
    own = rates.get(OWN)
    of_own = f"{figure.records_per_s / own:.2f}" if own else ""
    p50, p99 = (_us(figure.median(of)) for of in (lambda sample: sample.p50_us, lambda sample: sample.p99_us))
    return [figure.system, figure.durability, rate, of_own, p50, p99, *(_cpu(figure, of) for of in _SIDES)]


_SIDES: tuple[Callable[[Sample], float], ...] = (server_cpu_s, client_cpu_s)


def _us(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} us" if value < 10_000 else f"{value / 1000:,.1f} ms"


def _cpu(figure: Figure, of: Callable[[Sample], float]) -> str:
    cores = figure.cores(of)
    return f"{figure.cpu_us(of):,.2f} us" + (f" ({cores:.2f})" if cores is not None else "")


def _method(result: Result) -> str:
    pinning = (
        "The server has a processor of its own, and the client the others."
        if result.is_apart
        else "The operating system shares the cores between them: a server may take as many as it can use."
    )
    return METHOD.format(
        pinning=pinning,
        repetitions=result.repetitions,
        seconds=result.repetition_s,
        stock_mib=result.stock_bytes_max >> 20,
    )


def _systems(result: Result) -> Iterator[str]:
    yield "## The systems\n\n"
    for facts in result.facts:
        yield f"### {facts.name} {result.versions.get(facts.name, '')}".rstrip() + "\n\n"
        if facts.name in result.missing:
            yield f"Not measured: {result.missing[facts.name]}\n\n"
        lines = [f"client: {facts.client}", f"load tool: {facts.tool}"]
        lines += [f"{durability}: {facts.settings.get(durability, 'not offered')}" for durability in DURABILITIES]
        lines += [f"a queue: {facts.queue}", f"batched: {facts.batched}", *facts.notes]
        yield "".join(f"- {line}\n" for line in lines) + "\n"
    unknown = [f"- {name}: {why}\n" for name, why in result.missing.items() if not _is_told(result, name)]
    if unknown:
        yield "### Not measured\n\n" + "".join(unknown)


def _is_told(result: Result, name: str) -> bool:
    return any(facts.name == name for facts in result.facts)
