"""The plots: one PNG per chart, with linn and the floor in every panel. Needs matplotlib: the extra `bench`."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.line import Line
from benchmarks.matrix.axis import size_label

LINN, FLOOR = "#0072B2", "#D55E00"
"""Colours of Okabe and Ito's palette, which is safe for colour-blind readers; markers and dashes differ as well."""
SHADES = ("#0072B2", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^")
DPI = 100
PANEL_INCHES = (4.6, 3.3)
LEGEND_COLUMNS = 3
LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
"""The background of a bar's figure, so that a target's line does not cross it out."""
LOG_SPREAD = 8
"""Spread of a panel's figures above which its scale is logarithmic."""


class NoPlots(Exception):
    """matplotlib is not installed."""


def check_plots() -> None:
    """Check that matplotlib is installed, before anything is measured. Raises NoPlots."""
    if importlib.util.find_spec("matplotlib") is None:
        raise NoPlots("plots need matplotlib: pip install 'linn[bench]', or leave --report out")


@dataclass(frozen=True)
class Chart:
    """The plot of one file."""

    name: str
    title: str
    x: str
    sizes: bool = False
    """Whether x is in bytes."""


CHARTS = (
    Chart("record-size", "By record size", "bytes of a record", sizes=True),
    Chart("batch-size", "By batch size, records of 128 B", "bytes of a batch", sizes=True),
    Chart("acks", "By acks", "acks"),
    Chart("engine", "By storage engine", "engine"),
    Chart("fsync", "By fsync policy", "fsync"),
    Chart("codec", "By codec", "codec"),
    Chart("connections", "By connections", "connections"),
    Chart("partitions", "By partitions", "partitions"),
    Chart("queue", "Through a queue", "acks"),
    Chart("latency", "Latency by load, counted from when a message was due", "share of what linn bears"),
    Chart("backlog", "A queue by its backlog", "records in the queue"),
)


def draw(lines: Sequence[Line], folder: Path) -> list[Chart]:
    """Write a PNG for each chart that has lines; returns those charts. See `check_plots`."""
    from matplotlib.figure import Figure  # Of an extra: only a report needs it.

    drawn = []
    for chart in CHARTS:
        own = [line for line in lines if line.mark is not None and line.mark.chart == chart.name]
        if not own:
            continue
        panels = _panels(chart, own)
        figure = Figure(figsize=(PANEL_INCHES[0] * len(panels), PANEL_INCHES[1]), dpi=DPI, layout="constrained")
        figure.suptitle(chart.title, fontsize=12)
        for axes, (title, inside) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            _panel(axes, chart, title, inside)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=8, frameon=False)
        figure.savefig(folder / f"{chart.name}.png", metadata={"Software": None})
        drawn.append(chart)
    return drawn


def _panels(chart: Chart, lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Lines by panel: publish beside consume; the percentiles of a latency share a panel."""
    panels: dict[str, list[Line]] = {}
    for line in lines:
        assert line.mark is not None, "only marked lines are drawn"
        panels.setdefault(line.mark.series.split(" p")[0] if chart.name == "latency" else line.mark.series, []).append(
            line
        )
    return panels


def _panel(axes: Any, chart: Chart, title: str, lines: Sequence[Line]) -> None:
    figures = [figure for line in lines for figure in (line.floor, line.linn) if figure]
    series = list(dict.fromkeys(line.mark.series for line in lines if line.mark is not None))
    figures += [line.bound.value / 1e3 for line in lines if line.bound is not None]
    is_log = max(figures) > LOG_SPREAD * min(figures)
    if is_log:
        axes.set_yscale("log", subs=[])
        decades = math.log10(max(figures) / min(figures))
        axes.yaxis.get_major_locator().set_params(subs=(1, 2, 5) if decades < 2.5 else (1,))
    if len(series) > 1:
        _percentiles(axes, series, lines)
    elif isinstance(_at(lines[0]), str):
        _bars(axes, lines)
    else:
        _curves(axes, chart, lines)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(_unit_label(lines[0].detail_unit))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    if is_log:
        axes.set_ylim(min(figures) / 2, max(figures) * 2)
    else:
        axes.set_ylim(0, max(figures) * 1.15)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", alpha=0.3)


def _at(line: Line) -> float | str:
    assert line.mark is not None, "only marked lines are drawn"
    return line.mark.at


def _unit_label(unit: str) -> str:
    return {"krecords/s": "thousand records/s"}.get(unit, unit)


def _curves(axes: Any, chart: Chart, lines: Sequence[Line]) -> None:
    at = [_at(line) for line in lines]
    places = range(len(at))
    axes.plot(places, [line.floor for line in lines], "s--", color=FLOOR, fillstyle="none", label="floor")
    axes.plot(places, [line.linn for line in lines], "o-", color=LINN, label="linn")
    axes.set_xticks(list(places), [tick(chart, place) for place in at], fontsize=8)
    if len(at) > 6:
        axes.tick_params(axis="x", labelrotation=45)


def tick(chart: Chart, at: float | str) -> str:
    """The label of a point on the x axis; points are evenly spaced, each several times the one before."""
    if isinstance(at, str):
        return at
    if chart.sizes:
        return size_label(at) if at else "1 record"
    return f"{at / 1e6:g} million" if at >= 1e6 else f"{at:,.0f}"


def _bars(axes: Any, lines: Sequence[Line]) -> None:
    places = range(len(lines))
    sides = (
        ("floor", [line.floor for line in lines], -0.2, {"color": "white", "edgecolor": FLOOR, "hatch": "//"}),
        ("linn", [line.linn for line in lines], 0.2, {"color": LINN}),
    )
    for label, heights, shift, style in sides:
        bars = axes.bar([place + shift for place in places], heights, 0.36, label=label, **style)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=7, padding=2, bbox=LABEL_BOX)
    bounds = [(place, line.bound.value / 1e3) for place, line in zip(places, lines, strict=True) if line.bound]
    for place, bound in bounds:
        named = {"label": "linn's target"} if place == bounds[0][0] else {}
        axes.hlines(bound, place - 0.4, place + 0.4, color="black", linestyle=":", **named)
    axes.set_xticks(list(places), [str(_at(line)) for line in lines])


def _percentiles(axes: Any, series: Sequence[str], lines: Sequence[Line]) -> None:
    for name, shade, marker in zip(series, SHADES, MARKERS, strict=False):
        own = [line for line in lines if line.mark is not None and line.mark.series == name]
        places, label = range(len(own)), name.split(" ")[-1]
        axes.plot(
            places, [line.floor for line in own], marker + "--", color=shade, fillstyle="none", label=f"floor {label}"
        )
        axes.plot(places, [line.linn for line in own], marker + "-", color=shade, label=f"linn {label}")
        axes.set_xticks(list(places), [str(_at(line)) for line in own])
