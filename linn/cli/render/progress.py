"""Progress on stderr: a bar on a terminal, nothing elsewhere.

Rich is loaded for a terminal only, so that the files of all commands may import this one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
"""Callback that adds a number of finished items."""


@contextmanager
def progress(description: str, total: int | None, *, shown: bool = True) -> Iterator[Advance]:
    """Show a progress bar for the time of the block; yields the function that advances it."""
    if not shown or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(bar_width=None), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    times = TimeElapsedColumn(), TimeRemainingColumn()
    # The bar takes what room is left, so that the numbers are whole.
    bar = Progress(*columns, *times, console=Console(stderr=True), transient=True, expand=True)
    with bar:
        task = bar.add_task(description, total=total, rate="")

        def advance(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[0].speed
            if speed:
                bar.update(task, rate=f"{speed:,.0f}/s")

        yield advance


def _ignore(count: int) -> None:
    return
