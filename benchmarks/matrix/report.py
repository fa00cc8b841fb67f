"""The report: a folder with the page, the plots and all figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.line import Line
from benchmarks.matrix.chart import check_plots, draw
from benchmarks.matrix.page import page
from benchmarks.report import write_json

FIGURES = "matrix.json"


class NoFolder(Exception):
    """Raised if the report can't be written to its folder."""


def prepare_report(folder: Path) -> None:
    """Check before anything is measured that a report can be written. Raises NoPlots, NoFolder."""
    check_plots()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NoFolder(f"{folder} can't be a folder for a report: {error.strerror}") from error


def write_report(folder: Path, lines: Sequence[Line], result: dict[str, Any]) -> None:
    """Write `index.md`, one PNG per chart and the figures into `folder`, over those of an earlier run."""
    prepare_report(folder)
    charts = draw(lines, folder)
    write_json(folder / FIGURES, result)
    (folder / "index.md").write_text(page(charts, lines, result, FIGURES), encoding="utf-8")
