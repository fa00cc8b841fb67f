"""The screen of `linn top`: a view as tables that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from linn.cli.console import columns_right
from linn.cli.top_view import BrokerView, ConnectionView, GroupView, TopicView, View
from linn.core.config.problem import one_line

_TABLE_LINES = 6
"""Of a table without its rows: title, borders, heads, and the line that says how many more there are."""
_HEAD_LINES = 3
"""The broker, what is wrong, and where the cursor stands."""
_WORD_COLUMNS_MIN = 12
"""Of a name, however narrow the terminal is."""
_SHARES = (2, 1, 1)
"""How topics, groups and connections share a screen that is too small for all of them."""

R = TypeVar("R")


def screen(view: View, width: int, lines: int | None = None) -> RenderableType:
    """Everything that fits into `width` columns and `lines` lines; None: however long it is."""
    rows = _rows([len(view.topics), len(view.groups), len(view.connections)], lines)
    parts: list[RenderableType] = [_head(view.broker)]
    if view.trouble is not None:
        parts.append(Text(one_line(view.trouble), style="bold red", no_wrap=True, overflow="ellipsis"))
    parts.append(_topics(view.topics, rows[0], width))
    if view.groups:
        parts.append(_groups(view.groups, rows[1]))
    parts.append(_connections(view.connections, rows[2]))
    return Group(*parts)


def _rows(counts: Sequence[int], lines: int | None) -> list[int]:
    """How many rows each table may have: all where there is room, else by their shares."""
    if lines is None:
        return list(counts)
    room = max(len(counts), lines - _HEAD_LINES - _TABLE_LINES * len(counts))
    if sum(counts) <= room:
        return list(counts)
    rows = [min(count, max(1, room * share // sum(_SHARES))) for count, share in zip(counts, _SHARES, strict=True)]
    for place, count in enumerate(counts):
        rows[place] += min(count - rows[place], max(0, room - sum(rows)))
    return rows


def _head(broker: BrokerView) -> Text:
    lag = "" if broker.loop_lag_ms is None else f", loop lag {broker.loop_lag_ms:.1f} ms"
    errors = f", {broker.publish_errors_per_s:,.0f} publish errors/s" if broker.publish_errors_per_s else ""
    words = (
        f"up {_duration(broker.uptime_s)}, memory {_bytes(broker.memory_bytes)}, "
        f"descriptors {broker.descriptors:,} of {broker.descriptors_max:,}, "
        f"connections {broker.connections:,}{lag}{errors}"
    )
    name = (f"{one_line(broker.name)} {broker.version}", "bold")
    return Text.assemble(name, f"  {words}", no_wrap=True, overflow="ellipsis")


def _topics(topics: Sequence[TopicView], rows: int, width: int) -> Table:
    columns = [(head, cell) for head, width_min, cell in _TOPIC_COLUMNS if width >= width_min]

    def cells(topic: TopicView) -> list[str]:
        return [topic.topic, *(cell(topic) for _, cell in columns)]

    return _table("Topics", ("topic",), [head for head, _ in columns], topics, rows, cells)


def _groups(groups: Sequence[GroupView], rows: int) -> Table:
    def cells(group: GroupView) -> list[str]:
        return [group.topic, group.group, _count(group.members), _count(group.lag)]

    return _table("Groups", ("topic", "group"), ("members", "lag"), groups, rows, cells)


def _connections(connections: Sequence[ConnectionView], rows: int) -> Table:
    def cells(connection: ConnectionView) -> list[str]:
        return [
            connection.peer,
            connection.listener,
            _bytes(connection.in_bytes_per_s),
            _bytes(connection.out_bytes_per_s),
            _count(connection.inflight_requests),
            _bytes(connection.unsent_bytes),
            _bytes(connection.held_bytes),
        ]

    heads = ("in B/s", "out B/s", "in flight", "unsent", "held")
    return _table("Connections", ("peer", "listener"), heads, connections, rows, cells)


def _table(
    title: str,
    words: Sequence[str],
    numbers: Sequence[str],
    things: Sequence[R],
    rows: int,
    cells: Callable[[R], list[str]],
) -> Table:
    hidden = len(things) - rows
    caption = f"and {hidden:,} more" if hidden > 0 else None
    table = Table(*words, *numbers, title=title, title_justify="left", caption=caption, caption_justify="left")
    columns_right(table, len(words))
    for place, column in enumerate(table.columns):
        column.no_wrap = True
        column.min_width = _WORD_COLUMNS_MIN if place < len(words) else None
    for thing in things[:rows]:
        table.add_row(*(escape(one_line(cell)) for cell in cells(thing)))
    return table


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _rate(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _bytes(number: float | None) -> str:
    if number is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:,.4g} TiB"


def _duration(seconds: float) -> str:
    minutes, whole_s = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02}:{minutes:02}:{whole_s:02}" if days else f"{hours:02}:{minutes:02}:{whole_s:02}"


_TOPIC_COLUMNS: Sequence[tuple[str, int, Callable[[TopicView], str]]] = (
    ("in/s", 0, lambda topic: _rate(topic.in_records_per_s)),
    ("in B/s", 120, lambda topic: _bytes(topic.in_bytes_per_s)),
    ("out/s", 0, lambda topic: _rate(topic.out_records_per_s)),
    ("out B/s", 120, lambda topic: _bytes(topic.out_bytes_per_s)),
    ("records", 100, lambda topic: _count(topic.records)),
    ("bytes", 140, lambda topic: _bytes(topic.bytes)),
    ("ready", 90, lambda topic: _count(topic.ready)),
    ("leased", 0, lambda topic: _count(topic.leased)),
    ("unsettled", 0, lambda topic: _count(topic.unsettled)),
    ("redelivered/s", 160, lambda topic: _rate(topic.redelivered_per_s)),
    ("dead letters", 140, lambda topic: _count(topic.dead_letters)),
    ("consumers", 0, lambda topic: _count(topic.consumers)),
)
"""(head, from how many columns on it is shown, cell)"""
