"""Run of the demo in this process: signals, view, story and tables."""

from __future__ import annotations

import logging
import signal

import anyio

from linn.cli.demo.flights import FLIGHTS
from linn.cli.demo.progress import Progress
from linn.cli.demo.story import Story
from linn.cli.demo.tally import Count
from linn.cli.demo.view import View, show_counts, show_rates
from linn.cli.render.console import console


def run_demo(flights: int | None) -> bool:
    """Run the demo and print its output; return whether all counts are right.

    Raises:
        LinnError: it could not be run to its end. KeyboardInterrupt: also for SIGTERM and a closed terminal; children
            and the folder are gone by then.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP):
        # Like Ctrl-C, so that the children go as well.
        signal.signal(ending, lambda *_: signal.raise_signal(signal.SIGINT))
    # A client that connects again says so in its log: the demo shows it by counts.
    logging.getLogger("linn").addHandler(logging.NullHandler())
    limit = None if flights is None or flights >= FLIGHTS else flights
    progress = Progress(limit or FLIGHTS)
    view = View(console(), progress)
    with view.shown():
        counts = anyio.run(Story(limit, progress, view).run, backend="trio")
    show_counts(counts)
    show_rates(progress)
    print(verdict(counts), flush=True)
    return all(count.right for count in counts)


def verdict(counts: list[Count]) -> str:
    """Return the last line of output."""
    wrong = [count.what for count in counts if not count.right]
    if wrong:
        return f"{len(wrong)} of {len(counts)} counts are wrong: {'; '.join(wrong)}"
    return f"all {len(counts)} counts are right: nothing lost, nothing twice, nothing out of order"
