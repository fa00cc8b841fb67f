"""The page of the matrix: all figures, and the notes that a reader needs. Pure: a result in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.line import Line
from benchmarks.matrix.chart import Chart, tick
from benchmarks.matrix.point import DEFAULT

HEAD = """# The speed matrix

<!-- Written by `make bench BENCH="matrix --report docs/benchmarks"`. Do not edit: measure again. -->

What linn does by record size, batch size, acks and more, one at a time around a default place, beside **the floor**: a
bare trio server in the same layout that checks nothing and keeps nothing. Rates are a machine's, and ratios less so:
[Benchmarks](../explanation/benchmarks.md) explains the floor and what misses its target, and [Measure how fast it
is](../how-to/measure.md) how to repeat this. [{figures}]({figures}) has every round.
{machine}"""
QUICK = """
**This was a run with `--quick`: it shows that everything works, and its figures mean nothing.**
"""
DEFAULTS = f"""
The default place: records of {DEFAULT.record_bytes} B in batches of {DEFAULT.batch_bytes >> 10} KiB, acks
`{DEFAULT.acks}`, `{DEFAULT.engine}` with `fsync = "{DEFAULT.fsync}"`, codec `{DEFAULT.codec}`, one connection, one
partition. Half of each value is random, half repeats. Both sides are sent the same frames, made before, by the same
generator, in turns; the figures are medians of up to {{rounds}} rounds. The ratio is the median of the rounds' ratios,
which need not be the ratio of the medians. `CPU` is the floor's CPU time per batch as a share of linn's.
"""
NOTES = {
    "batch-size": "Each batch is a request that is answered; up to 2 MiB of them are unanswered at a time.",
    "acks": "On one node `all` waits for what `leader` waits for.",
    "engine": "In `dram` batches are published into a full topic that drops its oldest; the floor keeps nothing there, "
    "and writes each batch to a file for `segmented-log`.",
    "fsync": "With `always` the floor too puts its file on stable storage before it answers, once for all that one "
    "receive brought; its loop waits meanwhile, linn's does not.",
    "codec": "Compressed by the client, before the clock runs. Rates are of records, so the compressed ones are fewer "
    "bytes.",
    "connections": "One process has all the connections' other ends, and is the narrow place of both sides where they "
    "are many.",
    "partitions": "In turn, a batch to each; up to 500 partitions a topic. The floor knows no partitions, and writes "
    "one file.",
    "queue": "linn is driven by its Python client in one process that publishes, consumes and acks at the same time; "
    "the floor hands batches on to frames that were made before, with as many acks, each answered. A message's ack is "
    "merged with its neighbours' by the client where they adjoin.",
    "latency": "Messages of one record, each a publish of its own, evenly spaced by the clock whether or not earlier "
    "ones were answered. Each one's time counts from the moment when it was **due**, not from when it could be sent: "
    "a server that stops for a while delays all that were due meanwhile, and all of that counts (no coordinated "
    "omission). The load is a share of the rate at which linn keeps up with messages that come so, with a "
    "confirmation and a delivery for each; the floor gets messages at the same rates. `confirmed` is the publisher's "
    "wait, `delivered` the consumer's. {samples}",
    "backlog": "A queue on disk, records of 16 B in batches of 1 MiB; as many are published as are consumed and acked "
    "in each round. linn is consumed by its Python client, which acks each batch; of the floor the frames are "
    "counted. Memory is the process's own, without the page cache.",
}


def page(charts: Sequence[Chart], lines: Sequence[Line], result: Mapping[str, Any], figures: str) -> str:
    """Make the whole page; `figures`: the name of the file beside it that has all figures."""
    quick = QUICK if result["options"]["quick"] else ""
    rounds = result["options"]["matrix"]["rounds"]
    parts = [HEAD.format(figures=figures, machine=_machine(result)), quick, DEFAULTS.format(rounds=rounds)]
    for chart in charts:
        own = [line for line in lines if line.mark is not None and line.mark.chart == chart.name]
        parts += _section(chart, own, result)
    return "".join(parts)


def _machine(result: Mapping[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    return (
        f"\nMeasured on {result['measured_at'][:10]} in {result['seconds'] / 60:.1f} minutes: {machine['system']}, "
        f"{machine['cpus']} processors, {machine['memory_bytes'] / 2**30:.0f} GiB, Python {versions['python']}, linn "
        f"{versions['linn']}. Load average of the machine before the run, by others: "
        f"{result['load_average_before'][0]:.1f}.\n"
    )


def _section(chart: Chart, lines: Sequence[Line], result: Mapping[str, Any]) -> Iterator[str]:
    note = NOTES.get(chart.name, "")
    if chart.name == "latency":
        note = note.format(samples=_samples(lines, result))
    yield f"\n## {chart.title}\n\n![{chart.title}: linn and the floor]({chart.name}.png)\n\n"
    if note:
        yield f"{note}\n\n"
    yield from _table(chart, lines)


def _samples(lines: Sequence[Line], result: Mapping[str, Any]) -> str:
    """A note on the number of messages behind a percentile: at 1 % load p99.9 is the figure of a few messages."""
    matrix = result["options"]["matrix"]
    rates = [line["linn"] for line in result["lines"] if line["name"] == BORNE]
    if not rates:
        return ""
    counts = [f"{rates[0] * 1e3 * load * matrix['load_s'] * matrix['load_rounds']:,.0f}" for load in matrix["loads"]]
    kept = f"linn kept up with {rates[0]:,.1f} thousand a second"
    return f"{kept}; the percentiles are of about {', '.join(counts)} messages."


BORNE = "Latency, messages at 100 % load, evenly spaced"
"""The line with linn's sustained rate."""


def _table(chart: Chart, lines: Sequence[Line]) -> Iterator[str]:
    """A row per point, with the floor, linn and their ratio for each series."""
    series = list(dict.fromkeys(line.mark.series for line in lines if line.mark is not None))
    places = list(dict.fromkeys(line.mark.at for line in lines if line.mark is not None))
    if chart.name == "latency":
        yield from _rows(["load", "", "floor", "linn"], _latency_rows(lines))
        return
    has_cpu = any(line.cpu_ratio is not None for line in lines)
    header = [chart.x]
    for name in series:
        unit = next(line.detail_unit for line in lines if line.mark is not None and line.mark.series == name)
        header += [f"{name}: floor", f"linn, {unit}", "of the floor", *(["CPU"] if has_cpu else [])]
    rows = []
    for place in places:
        row = [tick(chart, place)]
        for line in lines:
            if line.mark is not None and line.mark.at == place:
                row += _cells(line)[: 4 if has_cpu else 3]
        rows.append(row)
    yield from _rows(header, rows)


def _cells(line: Line) -> list[str]:
    target = f" (target {line.bound.value / 1e3:,.0f}, {'met' if line.is_met else 'missed'})" if line.bound else ""
    ratio = line.value if line.unit == "x floor" else (line.linn or 0) / (line.floor or 1)
    cpu = f"{line.cpu_ratio:.2f}" if line.cpu_ratio is not None else ""
    return [number(line.floor), f"**{number(line.linn)}**{target}", f"{ratio:.2f}", cpu]


def _latency_rows(lines: Sequence[Line]) -> Iterator[list[str]]:
    for line in lines:
        assert line.mark is not None, "only marked lines are in a table"
        yield [str(line.mark.at), line.mark.series, f"{number(line.floor)} ms", f"**{number(line.linn)}** ms"]


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]] | Iterator[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(header) + " |\n" + "|---|" + "---:|" * (len(header) - 1) + "\n"
    for row in rows:
        yield "| " + " | ".join(row) + " |\n"


def number(value: float | None) -> str:
    """A number with three significant digits."""
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"
