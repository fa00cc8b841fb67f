"""The results: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

import linn
from benchmarks.line import Line, Unit

LIBRARIES = ("trio", "anyio", "pycapnp", "crc32c", "msgspec", "zstandard")
WIDTH = 120
_DIGITS: dict[Unit, str] = {
    "x floor": "{:.2f} x",
    "x": "{:.2f} x",
    "records/s": "{:,.0f}",
    "s": "{:.3f} s",
    "ms": "{:.2f} ms",
    "us": "{:.2f} us",
    "MB": "{:.1f} MB",
}


def show(lines: Sequence[Line]) -> None:
    """Print the table."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("floor", "linn", "", "median", "best", "CPU", "target", ""):
        table.add_column(name, justify="right", no_wrap=True)
    group = ""
    for line in lines:
        if line.group != group:
            group = line.group
            table.add_row(f"[bold]{group}[/bold]")
        table.add_row(*_row(line))
    console = Console()
    # Of a fixed width where nobody looks, so that a log has whole lines.
    console = console if console.is_terminal else Console(width=WIDTH)
    console.print(table)
    console.print(
        "median and best: of the rounds; each ratio is of two runs that followed one another. CPU: the floor's CPU "
        "time per batch as a share of linn's, median.",
        style="dim",
    )


def _row(line: Line) -> list[str]:
    digits = _DIGITS[line.unit]
    pair = [f"{figure:.2f}" if figure is not None else "" for figure in (line.floor, line.linn)]
    cpu = f"{line.cpu_ratio:.2f} x" if line.cpu_ratio is not None else ""
    verdict = {True: "[green]pass[/green]", False: "[red]miss[/red]", None: ""}[line.is_met]
    bound = str(line.bound) if line.bound is not None else ""
    return [
        f"  {line.name}",
        *pair,
        line.detail_unit,
        digits.format(line.value),
        digits.format(line.best),
        cpu,
        bound,
        verdict,
    ]


def result_of(lines: Sequence[Line], options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """All figures, and the machine that they were measured on, as JSON data."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "options": options,
        "machine": machine(),
        "versions": {"linn": linn.__version__, "python": platform.python_version()}
        | {name: version(name) for name in LIBRARIES},
        "lines": [line.data() for line in lines],
    }


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write a result to a file."""
    path.write_text(json.dumps(result, indent=2) + "\n")


def machine() -> dict[str, Any]:
    """Facts about the machine, and its load."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg(),
    }
