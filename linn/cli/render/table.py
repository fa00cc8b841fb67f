"""Tables that commands print.

Laws: no text is cropped; it folds within its column, so that joining the lines of a cell gives the whole name. On a
terminal that is too narrow for all columns the least important ones are left out, before usual names, numbers or the
words of heads are broken; `--json` has all. In a pipe a row is one line, with all columns.

Rich is loaded when a table is made, so that the files of all commands may import this one.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from linn.cli.render.console import console
from linn.core.errors.texts import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

WIDE = 100
"""Columns a terminal needs to show every column of nearly all tables."""
_NAME_COLUMNS = 20
"""Width that nearly all names fit in; optional columns are left out where text would get less."""
_TEXT_COLUMNS_MIN = 10
"""Narrowest column of text; where it would get less, numbers fold as well."""
_FRAME_COLUMNS = 3
"""Overhead per table column: a border, and a space on both sides."""
_GAP_COLUMNS = 2
"""Overhead per table column without a frame."""

Cell: TypeAlias = "str | Text"


class Column(NamedTuple):
    """Column of a table."""

    head: str
    number: bool = False
    """Align to the right, and fold last."""
    columns_min: int = 0
    """Narrowest terminal that shows the column. A column with a minimum is optional, the largest one first."""


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


def print_fields(fields: Mapping[str, object]) -> None:
    """Print named values, one a line, leaving out None and empty mappings."""
    shown = {name: value for name, value in fields.items() if value not in (None, {})}
    rows = [[name, value if isinstance(value, str) else json.dumps(value)] for name, value in shown.items()]
    print_table(["field", "value"], rows)


def table(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    title: str = "",
    *,
    width: int,
    framed: bool = True,
) -> RenderableType:
    """Make a table for a terminal of `width` columns. Cells are plain or styled text; nothing in them is markup.

    `framed`: False saves lines where there are few.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    wanted = [_column(column) for column in columns]
    cells = [[_text(cell) for cell in row] for row in rows]
    longest = [max((row[place].cell_len for row in cells), default=0) for place in range(len(wanted))]
    room = width - 1 if framed else width
    places, widths = _layout(wanted, longest, width, room, _FRAME_COLUMNS if framed else _GAP_COLUMNS)
    has_heads = any(wanted[place].head for place in places)
    if framed:
        made = Table(show_header=has_heads)
    else:
        made = Table(show_header=has_heads, box=None, pad_edge=False, padding=(0, _GAP_COLUMNS, 0, 0))
    for place, fixed in zip(places, widths, strict=True):
        justify: Literal["left", "right"] = "right" if wanted[place].number else "left"
        made.add_column(wanted[place].head, justify=justify, overflow="fold", width=fixed, min_width=fixed)
    for row in cells:
        made.add_row(*[row[place] for place in places])
    # Rich's own titles are as narrow as the table.
    return Group(*[Text(one_line(title), style="italic")][: bool(title)], made)


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

    return Text(one_line(cell.plain), cell.style) if isinstance(cell, Text) else Text(one_line(cell))


def _layout(
    columns: Sequence[Column], longest: Sequence[int], width: int, room: int, overhead: int
) -> tuple[list[int], Sequence[int | None]]:
    """Return the places of the columns that are shown, and their widths; None for all where nothing helps.

    `longest`: longest cell of each column. `room`: for all columns, each with its `overhead`.
    """
    places = [place for place, column in enumerate(columns) if width >= column.columns_min]

    def widths(names: int) -> list[int] | None:
        shown = [columns[place] for place in places]
        return _widths(shown, [longest[place] for place in places], room - overhead * len(places), names)

    while (found := widths(_NAME_COLUMNS)) is None and any(columns[place].columns_min for place in places):
        places.remove(max(places, key=lambda place: (columns[place].columns_min, place)))
    return places, found or widths(_TEXT_COLUMNS_MIN) or [None] * len(places)


def _widths(columns: Sequence[Column], longest: Sequence[int], room: int, names: int) -> list[int] | None:
    """Return the width of each column; None where a number or a word of a head would break, or text gets too little.

    `names`: width that text gets at least, or its own where it is shorter. The widest texts fold first.
    """
    words = [max(map(len, column.head.split()), default=0) for column in columns]
    least = [
        max(word, cell if column.number else min(cell, names))
        for column, word, cell in zip(columns, words, longest, strict=True)
    ]
    most = [
        low if column.number else max(low, cell, len(column.head))
        for column, low, cell in zip(columns, least, longest, strict=True)
    ]

    def at_most(widest: int) -> list[int]:
        return [max(low, min(high, widest)) for low, high in zip(least, most, strict=True)]

    if sum(least) > room:
        return None
    return at_most(bisect_right(range(room + 1), room, key=lambda widest: sum(at_most(widest))) - 1)
