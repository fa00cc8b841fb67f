"""Output of the demo: a live picture on a terminal or lines elsewhere, and the tables at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from linn.cli.demo.progress import Progress, Stretch
from linn.cli.demo.tally import Count
from linn.cli.render.table import Cell, numbers, print_table

LINE_INTERVAL_S = 2.0
"""Interval of progress lines without a terminal."""


class View:
    """Live output of the demo. `tick` is called a few times a second, and prints lines where there is no picture."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._started_at = self._told_at = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line about an event."""
        elapsed_s = time.monotonic() - self._started_at
        self._console.print(Text(f"{elapsed_s:6.2f} s  {text}"), soft_wrap=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the picture up to date for the time of the block, on a terminal."""
        if not self._console.is_terminal:
            yield
            return
        live = Live(
            get_renderable=lambda: picture(self._progress),
            console=self._console,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with live:
            yield

    def tick(self) -> None:
        """Print a progress line when it is due, without a terminal."""
        now = time.monotonic()
        if self._console.is_terminal or now - self._told_at < LINE_INTERVAL_S:
            return
        self._told_at = now
        progress = self._progress
        running = next((stretch for stretch in progress.stretches if stretch.started_at and not stretch.ended_at), None)
        if running is not None:
            share = f"{running.done:,} of {running.expected:,}" if running.expected else f"{running.done:,}"
            facts = f"queue depth {progress.queue_depth:,}, redelivered {len(progress.ledger.redelivered):,}"
            if progress.pipelines:
                facts = "; ".join(f"{name} is {doing}" for name, doing in progress.pipelines.items())
            facts = progress.brokers or facts
            self.say(f"{running.name}: {share}, {running.rate:,.0f}/s; {facts}")


def picture(progress: Progress) -> Group:
    """Draw the progress."""
    bars = Table.grid(padding=(0, 2))
    for stretch in progress.stretches:
        name, bar, share, rate = _bar(stretch)
        bars.add_row(name, bar, share, rate)
    ledger = progress.ledger
    facts = Table.grid(padding=(0, 2))
    facts.add_row("queue depth", f"{progress.queue_depth:,}", "redelivered", f"{len(ledger.redelivered):,}")
    workers = Table.grid(padding=(0, 2))
    for name, doing in progress.workers.items():
        workers.add_row(name, doing, f"{ledger.by_worker[name]:,} acked", f"{len(ledger.held.get(name, ())):,} in hand")
    pipelines = Table.grid(padding=(0, 2))
    for name, doing in progress.pipelines.items():
        pipelines.add_row("pipeline", name, doing)
    if progress.brokers:
        facts = Table.grid(padding=(0, 2))
        facts.add_row("brokers", progress.brokers)
    return Group(Text(progress.phase, style="bold"), bars, facts, workers, pipelines)


def _bar(stretch: Stretch) -> tuple[str, ProgressBar, str, str]:
    share = f"{stretch.done:,} / {stretch.expected:,}" if stretch.expected else f"{stretch.done:,}"
    bar = ProgressBar(total=max(stretch.expected, 1), completed=stretch.done, width=30)
    return stretch.name, bar, share, f"{stretch.rate:,.0f}/s" if stretch.started_at else ""


def show_counts(counts: Sequence[Count]) -> None:
    """Print every count beside that of the file."""
    marks = {True: Text("ok", "green"), False: Text("WRONG", "bold red")}
    rows: list[list[Cell]] = [
        [count.what, f"{count.expected:,}", f"{count.found:,}", marks[count.right]] for count in counts
    ]
    print_table(["count", *numbers("expected", "found"), ""], rows, "Checked against the file")


def show_rates(progress: Progress) -> None:
    """Print the rate of each phase."""
    rows = [
        [stretch.name, f"{stretch.done:,}", f"{stretch.elapsed_s:.2f}", f"{stretch.rate:,.0f}"]
        for stretch in progress.stretches
    ]
    rows.append(["broker ready again after SIGKILL", "", f"{progress.recovery_s:.2f}", ""])
    print_table(["part", *numbers("messages", "seconds", "per second")], rows, "Rates on this machine")
