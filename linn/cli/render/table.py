"""Tables that commands print.

Laws: no text is cropped; it folds within its column, so that joining the lines of a cell gives the whole name. On a
terminal of less than `WIDE` columns the least important columns are left out; `--json` has all. In a pipe a row is one
line, with all columns.

Rich is loaded when a table is made, so that the files of all commands may import this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from linn.cli.render.console import console
from linn.core.errors.texts import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

WIDE = 100
"""Columns a terminal needs to show every column of nearly all tables."""
_TEXT_COLUMNS_MIN = 10
"""Narrowest column of text; where it would get less, numbers fold as well."""
_FRAME_COLUMNS = 3
"""Overhead per table column: a border, and a space on both sides."""

Cell: TypeAlias = "str | Text"


class Column(NamedTuple):
    """Column of a table."""

    head: str
    number: bool = False
    """Align to the right, and fold last."""
    columns_min: int = 0
    """Narrowest terminal that shows the column."""


def number(head: str, columns_min: int = 0) -> Column:
    """Return a column of numbers."""
    return Column(head, number=True, columns_min=columns_min)


def wide(column: str | Column) -> Column:
    """Return the column, to be shown on wide terminals, in pipes and by `--json` only."""
    known = _column(column)
    return Column(known.head, known.number, WIDE)


def numbers(*heads: str) -> list[Column]:
    """Return columns of numbers."""
    return [number(head) for head in heads]


def table(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    title: str = "",
    caption: str = "",
    *,
    width: int,
) -> RenderableType:
    """Make a table for a terminal of `width` columns. Cells are plain or styled text; nothing in them is markup."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

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


def print_settings(settings: Mapping[str, Any], title: str) -> None:
    """Print settings as a table: text as it is, other values as JSON."""
    import json

    rows = [[key, value if isinstance(value, str) else json.dumps(value)] for key, value in settings.items()]
    print_table(["setting", "value"], rows, title)


def _column(column: str | Column) -> Column:
    return Column(column) if isinstance(column, str) else column


def _text(cell: Cell) -> Text:
    """Make text of a cell that a client may have chosen: no markup, and no control characters."""
    from rich.text import Text

    return cell if isinstance(cell, Text) else Text(one_line(cell))


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]], width: int) -> list[int | None]:
    """Return the width of each column of numbers; None for text, and for all columns where text would have no room."""
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
