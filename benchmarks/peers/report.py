"""`python -m benchmarks.peers.report`: write what the documentation says of a run, from its JSON and nothing else.

That is the page docs/benchmarks/peers.md with its charts, and in other pages what stands between `<!-- peers: NAME
-->` and `<!-- peers end -->`. Law: a system is called faster where it was in every round, and nowhere else.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.peers.chart import OWN, overview, whole
from benchmarks.peers.peer import DURABILITIES, WORKS, Durability, Facts, Work
from benchmarks.peers.plan import CHUNK, LINGER_MS, WINDOW
from benchmarks.peers.ratios import STILL, STILL_TURNS, Ratio, ratio
from benchmarks.peers.result import Result, Sample, read

ROOT = Path(__file__).parents[2]
JSON = Path("docs/benchmarks/peers.json")
PAGE = Path("docs/benchmarks/peers.md")
OVERVIEW = Path("docs/benchmarks/peers.svg")
BLOCKS = {
    "README.md": "docs/benchmarks/peers.md",
    "docs/index.md": "benchmarks/peers.md",
    "docs/explanation/linn-beside-others.md": "../benchmarks/peers.md",
}
"""The pages that claim something of a run, and the link from each of them."""
NOTHING = "Nothing was measured yet: `python -m benchmarks.peers --docs` does it."
HEADER = ("", "durability", "records/s", "x linn's", "least to greatest", "server CPU", "client CPU")
TIMES = ("p50", "p99")
HEAD = """# linn and its peers, side by side

<!-- Written by `python -m benchmarks.peers.report` from peers.json. Do not edit: measure again. -->

The same work with the same records, turn by turn, on one machine. [peers.json](peers.json) has every turn of every
system; this page, and what other pages say of it, is made from it by a command.

"""


# --- what was faster -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One work at one durability and size: the others' rates as multiples of linn's."""

    work: Work
    durability: Durability
    record_bytes: int
    ratios: Mapping[str, Ratio]

    @property
    def ahead(self) -> list[str]:
        """Systems that were faster than linn in every round, the fastest first."""
        found = [name for name, found in self.ratios.items() if found.least > 1]
        return sorted(found, key=lambda name: -self.ratios[name].median)

    @property
    def is_linn_first(self) -> bool:
        """Whether linn was faster than each of them in every round."""
        return all(found.greatest < 1 for found in self.ratios.values())

    @property
    def best(self) -> str:
        """The fastest of the others."""
        return max(self.ratios, key=lambda name: self.ratios[name].median)


def comparisons(result: Result) -> list[Comparison]:
    """All that have linn and another."""
    found: list[Comparison] = []
    for work in WORKS:
        for durability in DURABILITIES:
            for record_bytes in _sizes(result):
                place = (work, durability, record_bytes)
                ratios = {facts.name: ratio_of(result, facts.name, *place) for facts in result.facts}
                others = {name: each for name, each in ratios.items() if each is not None and name != OWN}
                if others:
                    found.append(Comparison(*place, others))
    return found


def ratio_of(result: Result, system: str, work: Work, durability: Durability, record_bytes: int) -> Ratio | None:
    """A system's rate as a multiple of linn's. None where one of them was not measured."""
    place = (work, durability, record_bytes)
    return ratio(result.rates(system, *place), result.rates(OWN, *place))


def _sizes(result: Result) -> list[int]:
    return sorted({sample.record_bytes for sample in result.samples})


def standing(result: Result, link: str) -> str:
    """Show the chart, say how often linn leads, and link to where another does."""
    found = comparisons(result)
    if not found:
        return NOTHING
    names = [facts.name for facts in result.facts if facts.name != OWN and facts.name in result.versions]
    first = sum(each.is_linn_first for each in found)
    behind = sum(bool(each.ahead) for each in found)
    rest = len(found) - first - behind
    picture = f"![Rates beside {_listed(names)}]({link.removesuffix('.md')}.svg)"
    text = (
        f"Measured beside {_listed(names)} on one machine, linn was the fastest in every round of {first} of "
        f"{len(found)} comparisons. "
    )
    text += f"In {rest} the order changed from round to round. " if rest else ""
    text += f"In {behind} [another was faster in every round]({link}#where-another-was-faster). " if behind else ""
    text += f"[All figures, and how they were measured]({link})."
    return f"{picture}\n\n{_wrapped(text)}"


def _behind(found: Sequence[Comparison]) -> Iterator[str]:
    for work in WORKS:
        parts = []
        for durability in DURABILITIES:
            here = [each for each in found if (each.work, each.durability) == (work, durability)]
            if here:
                names = sorted({name for each in here for name in each.ahead})
                sizes = "" if len(here) > 1 else f", {here[0].record_bytes:,} bytes"
                parts.append(f"{_listed(names)} ({durability}{sizes})")
        if parts:
            yield _point(f"{work}: {'; '.join(parts)}").rstrip()


def summary(result: Result) -> str:
    """The table of who was fastest at what."""
    found = {(each.work, each.durability, each.record_bytes): each for each in comparisons(result)}
    if not found:
        return NOTHING + "\n"
    sizes = _sizes(result)
    rows = []
    for work in WORKS:
        for durability in DURABILITIES:
            cells = [found.get((work, durability, record_bytes)) for record_bytes in sizes]
            if any(cells):
                rows.append([work, durability, *(_verdict(cell) if cell is not None else "" for cell in cells)])
    return table(["", "durability", *(f"{size:,} bytes" for size in sizes)], rows, 4)


def _verdict(found: Comparison) -> str:
    name, times = found.best, found.ratios[found.best]
    if found.ahead:
        return f"**{name}**: {_times(times)} linn"
    if found.is_linn_first:
        return f"**linn**: {_times(times.inverse)} {name}"
    return f"no order: {name} {_times(times)} linn"


def _times(found: Ratio) -> str:
    return f"{_factor(found.median)} x ({_factor(found.least)} to {_factor(found.greatest)})"


def _factor(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


# --- the page --------------------------------------------------------------------------------------------------------


def page(result: Result) -> str:
    """The whole page, as Markdown."""
    parts = [HEAD]
    if result.samples:
        parts += [_occasion(result), f"![Rates of linn and others at four kinds of work]({OVERVIEW.name})\n\n"]
        parts += ["## Who was fastest\n\n", _key(), summary(result), "\n", *_where_behind(result), *_tables(result)]
    else:
        parts.append(f"{NOTHING}\n\n")
    parts += [_method(result), *_systems(result)]
    return "".join(parts).rstrip() + "\n"


def _occasion(result: Result) -> str:
    machine = result.machine
    gib = machine["memory_bytes"] / 2**30
    text = (
        f"Measured on {result.measured_at[:10]} in {result.minutes:.0f} minutes on {machine['cpus']} cores, {gib:.0f} "
        f"GiB of memory, {machine['system']}, Python {machine['python']}, at a load average of "
        f"{machine['load_average'][0]:.1f} at the start. "
    )
    if result.is_quick:
        text += "This was a trial that things work (`--quick`): its figures mean nothing. "
    return _wrapped(text) + "\n\n"


def _key() -> str:
    return (
        _wrapped(
            "Each cell has the fastest system and how far it was ahead: of linn, or where linn was the fastest, of the "
            "best of the others. In brackets the least and the greatest of the rounds. A system that was ahead in "
            "every round is bold; `no order` says that the rounds do not agree."
        )
        + "\n\n"
    )


def _where_behind(result: Result) -> Iterator[str]:
    behind = [each for each in comparisons(result) if each.ahead]
    if behind:
        yield "## Where another was faster\n\nIn every round, than linn:\n\n"
        yield "\n".join(_behind(behind)) + "\n\n"


def _tables(result: Result) -> Iterator[str]:
    for record_bytes in _sizes(result):
        yield f"## Records of {record_bytes:,} bytes\n\n"
        yield f"![All rates with records of {record_bytes:,} bytes]({_chart(record_bytes).name})\n\n"
        for work in WORKS:
            rows = [row for durability in DURABILITIES for row in _rows(result, work, durability, record_bytes)]
            if rows:
                header = (*HEADER, *TIMES) if any(row[-1] for row in rows) else HEADER
                trimmed = [row[: len(header)] for row in rows]
                yield f"### {work.capitalize()}: {record_bytes:,} bytes\n\n{table(header, trimmed, 2)}\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> str:
    """In Markdown: the first columns are words, the others figures."""
    marks = ["---" if index < words else "---:" for index in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, marks, *rows))


def _rows(result: Result, work: Work, durability: Durability, record_bytes: int) -> Iterator[list[str]]:
    place = (work, durability, record_bytes)
    found = {facts.name: result.of(facts.name, *place) for facts in result.facts}
    rates = {name: median(sample.records_per_s for sample in samples) for name, samples in found.items() if samples}
    if not rates:
        return
    for facts in result.facts:
        if facts.name in rates:
            yield _row(result, found[facts.name], rates, place)
        elif facts.name in result.versions:
            yield [facts.name, durability, "not offered", *[""] * (len(HEADER) + len(TIMES) - 3)]


def _row(
    result: Result, samples: Sequence[Sample], rates: Mapping[str, float], place: tuple[Work, Durability, int]
) -> list[str]:
    name = samples[0].system
    rate = f"{rates[name]:,.0f}"
    if len(rates) > 1 and rates[name] == max(rates.values()):
        rate = f"**{rate}**"
    found = ratio_of(result, name, *place)
    times = f"{found.median:.2f}" if found else ""
    spread = f"{found.least:.2f} to {found.greatest:.2f}" if found and name != OWN else ""
    cpu = [_cpu(samples, of, place[0]) for of in (_server_cpu_s, _client_cpu_s)]
    quantiles = [_us(samples, of) for of in (_p50_us, _p99_us)]
    return [name, place[1], rate, times, spread, *cpu, *quantiles]


def _server_cpu_s(sample: Sample) -> float:
    return sample.server_cpu_s


def _client_cpu_s(sample: Sample) -> float:
    return sample.client_cpu_s


def _p50_us(sample: Sample) -> float | None:
    return sample.p50_us


def _p99_us(sample: Sample) -> float | None:
    return sample.p99_us


def _cpu(samples: Sequence[Sample], of: Callable[[Sample], float], work: Work) -> str:
    text = f"{median(of(sample) / sample.records * 1e6 for sample in samples):,.2f} us"
    if "load tool" in work:  # It starts and ends beside what it measures.
        return text
    return f"{text} ({median(of(sample) / sample.seconds for sample in samples):.2f})"


def _us(samples: Sequence[Sample], of: Callable[[Sample], float | None]) -> str:
    values = [value for sample in samples if (value := of(sample)) is not None]
    if not values:
        return ""
    value = median(values)
    return f"{value:,.0f} us" if value < 10_000 else f"{value / 1000:,.1f} ms"


# --- how it was measured ---------------------------------------------------------------------------------------------


def _method(result: Result) -> str:
    plan = result.plan
    points = [
        "**Rounds.** "
        + (f"{plan['rounds']} of them. " if plan else "")
        + "In each round every system has its turn at the same work, one after another, in an order that changes from "
        "round to round. Before each turn the disk is synced. A ratio is of two turns of one round, so that what slows "
        "the machine down slows both; the figure is the median of the ratios, with the least and the greatest beside "
        "it. The rates are medians too: they say more of the machine, and the ratio of two of them is not quite the "
        "median of the ratios.",
        "**Faster** is said where a system was faster in every round, and nowhere else.",
        "**A turn** publishes for "
        + (f"{plan['seconds']:g} s (at most {plan['stock_bytes_max'] >> 20} MiB)" if plan else "a bounded time")
        + " to a topic of its own, and then consumes all of it. Every record is compared with what was published, "
        "after the clock has stopped: if one is missing, doubled, changed or late, the system has no figures at all.",
        "**Nothing is done per record by the measurement** but what a program has to do: the client's call, and where "
        "records are consumed, keeping the value in a list and looking whether it was the last. The clock is read "
        f"once per {CHUNK:,} records at most, and once per record where they are published one at a time.",
        f"**The same window.** At most {WINDOW:,} records are published and unconfirmed, and at most {WINDOW:,} of a "
        "queue are delivered and not acked; of Kafka, which has no acks, at most as many are not committed. Some "
        "clients send on while confirmations come, others wait for those of the whole window: see below. "
        f"Kafka's clients may wait {LINGER_MS} ms to fill a batch; linn's does not wait.",
        "**Like beside like.** A call per record stands beside a call per record, and calls for many records beside "
        "such calls; what a system has no call for is not imitated. The load tools all publish to a stream, with "
        "confirmations and the window, and read it from its beginning; they differ in language and in what they batch.",
        "**page cache**: a confirmed record has been handed to the operating system; it survives a crash of the "
        "server, and not one of the machine. **fsync**: it is on stable storage when it is confirmed; strace showed "
        "that each of the servers does sync at least once per record that is published one at a time. Streams and "
        "load tools are measured in the page cache only.",
        "**Warm-up.** Before anything is counted each system repeats each work until the rates of "
        f"{STILL_TURNS} turns lie within {STILL:.0%} of one another, or until the warm-up's time is over. "
        + _warm_up(result),
        "**One machine.** Servers and client share its cores over loopback, and the operating system places them: a "
        "server may take as many as it can use. There is one client with one connection, one topic with one partition "
        "or queue, no replicas, no compression, no encryption. " + _idle(result),
        "**CPU**: microseconds per record, and in brackets how many cores that kept busy. A load tool's has its start "
        "in it. Where the client's cores are near one and the server's are not, the figure is the client library's "
        "more than the server's.",
        "**p50, p99**: from a publish to its confirmation, one at a time.",
    ]
    return "## How it was measured\n\n" + "".join(_point(text) for text in points) + "\n"


def _warm_up(result: Result) -> str:
    moving = [each for each in result.warm_ups if not each.is_still]
    if not result.warm_ups or not moving:
        return "All of them came to stand still." if result.warm_ups else ""
    names = sorted({f"{each.system} ({each.durability})" for each in moving})
    return (
        f"{len(moving)} of {len(result.warm_ups)} did not come to stand still, of {', '.join(names)}; their spread "
        "says what that means."
    )


def _idle(result: Result) -> str:
    said = [f"{cores:.2f} cores ({durability})" for durability, cores in result.idle_cores.items()]
    idle = "All servers run at the same time, and all but one are idle"
    return f"{idle}; idle, all together took {' and '.join(said)}." if said else f"{idle}."


def _systems(result: Result) -> Iterator[str]:
    yield "## The systems\n\n"
    for facts in result.facts:
        yield f"### {facts.name}: {result.versions.get(facts.name, 'not measured')}\n\n"
        if facts.name in result.missing:
            yield _point(f"Not measured: {result.missing[facts.name]}")
        yield _point(f"client: {facts.client}")
        for durability in DURABILITIES:
            yield _point(f"{durability}: {facts.settings.get(durability, 'not offered')}")
        yield from map(_point, facts.notes)
        yield "\n" + table(("", "done with"), list(_calls(result, facts)), 2) + "\n"
    known = {facts.name for facts in result.facts}
    unknown = [_point(f"{name}: {why}") for name, why in result.missing.items() if name not in known]
    if unknown:
        yield "### Not measured\n\n" + "".join(unknown)


def _calls(result: Result, facts: Facts) -> Iterator[tuple[str, str]]:
    # A run that is older than a work has nothing to say about it.
    for work in [work for work in WORKS if any(work in each.calls for each in result.facts)]:
        yield work, facts.calls.get(work) or f"not offered: {facts.lacks.get(work, 'no call for it')}"


def _point(text: str) -> str:
    return f"- {_wrapped(text, 118).replace(chr(10), chr(10) + '  ')}\n"


def _wrapped(text: str, width: int = 120) -> str:
    return "\n".join(textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False))


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# --- the documentation -----------------------------------------------------------------------------------------------

_BLOCK = re.compile(r"(<!-- peers: (standing|summary) -->\n).*?(\n<!-- peers end -->)", re.DOTALL)


def _chart(record_bytes: int) -> Path:
    return PAGE.with_name(f"peers-{record_bytes}.svg")


def documented(result: Result, root: Path = ROOT) -> dict[Path, str]:
    """Contents of the documentation's files for a run, by path below `root`."""
    texts = {PAGE: page(result)}
    if result.samples:
        texts[OVERVIEW] = overview(result)
        texts |= {_chart(record_bytes): whole(result, record_bytes) for record_bytes in _sizes(result)}
    for name, link in BLOCKS.items():
        blocks = {"standing": standing(result, link), "summary": summary(result).rstrip()}
        text = (root / name).read_text(encoding="utf-8")
        texts[Path(name)] = _filled(text, blocks)
    return texts


def _filled(text: str, blocks: Mapping[str, str]) -> str:
    return _BLOCK.sub(lambda found: found[1] + blocks[found[2]] + found[3], text)


def document(result: Result, root: Path = ROOT) -> None:
    """Write them."""
    for path, text in documented(result, root).items():
        (root / path).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the documentation from the JSON; or with --print only print the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.report", description=__doc__)
    parser.add_argument("--json", type=Path, default=ROOT / JSON, metavar="FILE", help="what `--docs` wrote")
    parser.add_argument("--print", action="store_true", help="print the page, and write nothing")
    options = parser.parse_args(arguments)
    result = read(options.json)
    if options.print:
        print(page(result))
    else:
        document(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
