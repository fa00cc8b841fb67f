"""Charts of a run as SVG: a panel per work, and in it a bar per system, the fastest first.

Law: a picture depends on the run alone, so that a test compares it with the raw data, as it does the pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from benchmarks.peers.peer import DURABILITIES, WORKS, Durability, Work
from benchmarks.peers.result import Result

OWN = "linn"
"""The system whose bars are coloured."""
OVERVIEW: tuple[Work, ...] = (
    "publish to a queue, a call per record",
    "consume a queue, an ack per record",
    "publish to a stream in bulk",
    "read a stream in bulk",
)
OVERVIEW_BYTES = 128
_COLUMNS = 2
_PANEL_WIDTH, _LABEL_WIDTH, _FIGURE_WIDTH = 370, 108, 58
_BAR_HEIGHT, _ROW_HEIGHT, _TITLE_HEIGHT, _GAP, _MARGIN = 14, 20, 26, 18, 16
_STYLE = """text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 13px; font-weight: 600 }
.own { font-weight: 700 }
.label { text-anchor: end }
.note { fill: #59636e }"""
_OWN_COLOUR, _COLOUR, _SPREAD_COLOUR = "#0072B2", "#aab4be", "#1f2328"


@dataclass(frozen=True)
class Bar:
    """Rate of one system at one work: the median of the rounds, the least and the greatest."""

    system: str
    rate: float
    least: float
    greatest: float


@dataclass(frozen=True)
class Panel:
    """One work at one durability."""

    title: str
    bars: Sequence[Bar]


def overview(result: Result) -> str:
    """Draw the picture of the front pages."""
    size = OVERVIEW_BYTES
    panels = [Panel(work, _bars(result, work, "page cache", size)) for work in OVERVIEW]
    note = f"records of {size} bytes per second, confirmed when the operating system has them"
    return _picture(result, f"Rates of linn and other brokers, {size} bytes", panels, note)


def whole(result: Result, record_bytes: int) -> str:
    """Draw all works with records of one size."""
    panels = [
        Panel(f"{work} ({durability})", _bars(result, work, durability, record_bytes))
        for work in WORKS
        for durability in DURABILITIES
    ]
    note = f"records of {record_bytes:,} bytes per second"
    return _picture(result, f"Rates of linn and other brokers, {record_bytes:,} bytes", panels, note)


def _bars(result: Result, work: Work, durability: Durability, record_bytes: int) -> list[Bar]:
    found = []
    for facts in result.facts:
        rates = [sample.records_per_s for sample in result.of(facts.name, work, durability, record_bytes)]
        if rates:
            found.append(Bar(facts.name, median(rates), min(rates), max(rates)))
    return sorted(found, key=lambda bar: -bar.rate)


def _picture(result: Result, title: str, panels: Sequence[Panel], note: str) -> str:
    shown = [panel for panel in panels if panel.bars]
    lines: list[str] = []
    top = float(_MARGIN)
    for first in range(0, len(shown), _COLUMNS):
        row = shown[first : first + _COLUMNS]
        for place, panel in enumerate(row):
            lines += _panel(panel, _MARGIN + place * (_PANEL_WIDTH + _GAP), top)
        top += _TITLE_HEIGHT + max(len(panel.bars) for panel in row) * _ROW_HEIGHT + _GAP
    rounds = f"the median of {result.plan['rounds']} rounds" if result.plan else "the median"
    for words in (note, f"{rounds}, with a line from the least to the greatest; measured on {result.measured_at[:10]}"):
        lines.append(_text(_MARGIN, top + 4, words, "note"))
        top += _ROW_HEIGHT
    width, height = 2 * _MARGIN + _COLUMNS * _PANEL_WIDTH + (_COLUMNS - 1) * _GAP, top + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            '<rect width="100%" height="100%" rx="8" fill="#ffffff"/>',
            *lines,
            "</svg>",
            "",
        ]
    )


def _panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    yield _text(left, top + 12, panel.title, "title")
    begin = left + _LABEL_WIDTH
    scale = (_PANEL_WIDTH - _LABEL_WIDTH - _FIGURE_WIDTH) / max(bar.greatest for bar in panel.bars)
    for number, bar in enumerate(panel.bars):
        y = top + _TITLE_HEIGHT + number * _ROW_HEIGHT
        own, middle, text = bar.system == OWN, y + _BAR_HEIGHT / 2, y + _BAR_HEIGHT - 3
        colour = _OWN_COLOUR if own else _COLOUR
        yield _text(begin - 8, text, bar.system, "label own" if own else "label")
        yield (
            f'<rect x="{begin:.1f}" y="{y:.1f}" width="{max(1, bar.rate * scale):.1f}" height="{_BAR_HEIGHT}" '
            f'rx="2" fill="{colour}"/>'
        )
        ends = begin + bar.least * scale, begin + bar.greatest * scale
        yield f'<path d="M{ends[0]:.1f} {middle:.1f}H{ends[1]:.1f}" stroke="{_SPREAD_COLOUR}" stroke-width="1.2"/>'
        yield _text(ends[1] + 6, text, rate_text(bar.rate), "own" if own else "")


def rate_text(rate: float) -> str:
    """Return a rate in three digits: "4.17 M", "346 k", "2,913"."""
    for unit, size in ((" M", 1e6), (" k", 1e3)):
        if rate >= size * (1 if unit == " M" else 10):
            digits = 2 if rate < 10 * size else 1 if rate < 100 * size else 0
            return f"{rate / size:.{digits}f}{unit}"
    return f"{rate:,.0f}"


def _text(x: float, y: float, words: str, kind: str) -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(words)}</text>'
