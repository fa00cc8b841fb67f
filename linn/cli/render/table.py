"""The tables that commands print.

Laws: no text is cropped; it folds within its column, so that a name is whole when the lines of its cell are joined. On
a terminal of less than `WIDE` columns the least important columns are left out; `--json` has all. In a pipe a row is
one line, with all columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from linn.cli.render.console import console
from linn.core.errors.texts import one_line

WIDE = 100
"""From so many columns on a terminal has room for all columns of nearly all tables."""
_TEXT_COLUMNS_MIN = 10
"""Where a column of text would get less than this, numbers fold as well."""
_FRAME_COLUMNS = 3
"""Of each column: a border, and a space on both sides."""

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    head: str
    number: bool = False
    """Aligned to the right, and folded last."""
    columns_min: int = 0
    """On a terminal of less columns than that it is left out."""


def number(head: str, columns_min: int = 0) -> Column:
    """A column of numbers."""
    return Column(head, number=True, columns_min=columns_min)


def wide(column: str | Column) -> Column:
    """A column that only a wide terminal, a pipe and `--json` have."""
    known = _column(column)
    return Column(known.head, known.number, WIDE)


def numbers(*heads: str) -> list[Column]:
    """Columns of numbers."""
    return [number(head) for head in heads]


def table(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    title: str = "",
    caption: str = "",
    *,
    width: int,
) -> RenderableType:
    """A table for a terminal of `width` columns. Cells are plain text, or styled; nothing in them is markup."""
    wanted = [_column(column) for column in columns]
    places = [place for place, column in enumerate(wanted) if width >= column.columns_min]
    shown = [wanted[place] for place in places]
    cells = [[_text(row[place]) for place in places] for row in rows]
    made = Table(show_header=any(column.head for column in shown))
    for column, fixed in zip(shown, _widths(shown, cells, width), strict=True):
        made.add_column(
            column.head, justify="right" if column.number else "left", overflow="fold", width=fixed, min_width=fixed
        )
    for row in cells:
        made.add_row(*row)
    # Rich's own titles are as narrow as the table.
    around = [Text(one_line(line), style="italic") for line in (title, caption)]
    return Group(*around[: bool(title)], made, *(around[1:] if caption else ()))


def print_table(columns: Sequence[str | Column], rows: Iterable[Sequence[Cell]], title: str = "") -> None:
    """Print a table."""
    console().print(table(columns, rows, title, width=console().width))


def _column(column: str | Column) -> Column:
    return Column(column) if isinstance(column, str) else column


def _text(cell: Cell) -> Text:
    """A text that a client chose: no markup, and nothing that a terminal would obey."""
    return cell if isinstance(cell, Text) else Text(one_line(cell))


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[int | None]:
    """How wide each column of numbers has to be; None for text, and for all where text would have no room."""
    widths: list[int | None] = []
    texts = 0
    for place, column in enumerate(columns):
        longest = max((row[place].cell_len for row in rows), default=0)
        if column.number:
            widths.append(max([longest, *(len(word) for word in column.head.split())]))
        else:
            widths.append(None)
            texts += min(max(longest, len(column.head)), _TEXT_COLUMNS_MIN)
    taken = texts + sum(fixed or 0 for fixed in widths) + _FRAME_COLUMNS * len(columns) + 1
    return widths if taken <= width else [None] * len(columns)
