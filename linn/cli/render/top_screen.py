"""Screen of `linn top`: a view as tables that fit the terminal.

Separate from the command because it needs Rich.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.text import Text

from linn.cli.render.table import WIDE, Column, number, numbers, table, wide
from linn.cli.render.top_view import BrokerView, ConnectionView, GroupView, PipelineView, TopicView, View
from linn.core.errors.texts import counted, one_line

_SHARES = (2, 1, 1, 1)
"""Weights of topics, groups, pipelines and connections on a screen that is too small for all rows."""

R = TypeVar("R")


def screen(view: View, width: int, lines: int | None = None) -> RenderableType:
    """Draw as many rows as fit into `width` columns and `lines` lines; all, in frames, where `lines` is None."""
    counts = [len(view.topics), len(view.groups), len(view.pipelines), len(view.connections)]
    if lines is None:
        return _picture(view, width, counts, framed=True)
    room, measuring = lines - 1, Console(width=width)  # The cursor stands in the last line.

    def too_long(rows: Sequence[int]) -> bool:
        return len(measuring.render_lines(_picture(view, width, rows, framed=False), pad=False)) > room

    tables = next((most for most in _fewer(counts) if not too_long(_rows(most, 0))), [0] * len(counts))
    # Names fold, so the number of rows that fit is known only once they are drawn.
    fitting = bisect_left(range(1, lines), True, key=lambda rows: too_long(_rows(tables, rows)))
    return _picture(view, width, _rows(tables, fitting), framed=False)


def _picture(view: View, width: int, rows: Sequence[int], *, framed: bool) -> RenderableType:
    """Draw the screen with so many rows of each table."""
    parts: list[RenderableType] = [_head(view.broker)]
    if view.trouble is not None:
        parts.append(Text(one_line(view.trouble), style="bold red"))
    if rows[0] or not view.topics:
        parts.append(_topics(view.topics, rows[0], width, framed))
    if rows[1]:
        parts.append(_groups(view.groups, rows[1], width, framed))
    if rows[2]:
        parts.append(_pipelines(view.pipelines, rows[2], width, framed))
    if rows[3]:
        parts.append(_connections(view.connections, rows[3], width, framed))
    return Group(*parts)


def _fewer(counts: Sequence[int]) -> Iterator[list[int]]:
    """Yield the tables that may be shown: all, then without the last ones."""
    for shown in range(len(counts), -1, -1):
        yield [count if place < shown else 0 for place, count in enumerate(counts)]


def _rows(counts: Sequence[int], room: int) -> list[int]:
    """Distribute rows to the tables: one to each, then by weight, then the first tables first."""
    rows = [min(count, max(1, room * share // sum(_SHARES))) for count, share in zip(counts, _SHARES, strict=True)]
    for place, count in enumerate(counts):
        rows[place] += min(count - rows[place], max(0, room - sum(rows)))
    return rows


def _head(broker: BrokerView) -> Text:
    lag = "" if broker.loop_lag_ms is None else f", loop lag {broker.loop_lag_ms:.1f} ms"
    opened = f", {counted(broker.open_transactions, 'open transaction')}" if broker.open_transactions else ""
    errors = f", {broker.publish_errors_per_s:,.0f} publish errors/s" if broker.publish_errors_per_s else ""
    words = (
        f"up {_duration(broker.uptime_s)}, memory {_bytes(broker.memory_bytes)}, "
        f"descriptors {broker.descriptors:,} of {broker.descriptors_max:,}, "
        f"connections {broker.connections:,}{opened}{lag}{errors}"
    )
    name = (f"{one_line(broker.name)} {broker.version}", "bold")
    return Text.assemble(name, f"  {words}")


def _topics(topics: Sequence[TopicView], rows: int, width: int, framed: bool) -> RenderableType:
    def cells(topic: TopicView) -> list[str]:
        return [topic.topic, *(cell(topic) for _, cell in _TOPIC_COLUMNS)]

    return _table("Topics", ["topic", *(column for column, _ in _TOPIC_COLUMNS)], topics, rows, width, framed, cells)


def _groups(groups: Sequence[GroupView], rows: int, width: int, framed: bool) -> RenderableType:
    def cells(group: GroupView) -> list[str]:
        return [group.topic, group.group, _count(group.members), _count(group.lag)]

    return _table("Groups", ["topic", "group", *numbers("members", "lag")], groups, rows, width, framed, cells)


def _pipelines(pipelines: Sequence[PipelineView], rows: int, width: int, framed: bool) -> RenderableType:
    def cells(pipeline: PipelineView) -> list[str]:
        seconds = "" if pipeline.batch_s is None else f"{pipeline.batch_s:,.2f}"
        counts = _rate(pipeline.rows_per_s), _count(pipeline.rows), _count(pipeline.lag), seconds
        return [pipeline.pipeline, pipeline.state, *counts, _count(pipeline.restarts)]

    columns: list[str | Column] = ["pipeline", "state", *numbers("rows/s", "rows", "lag", "batch s", "restarts")]
    return _table("Spark pipelines", columns, pipelines, rows, width, framed, cells)


def _connections(connections: Sequence[ConnectionView], rows: int, width: int, framed: bool) -> RenderableType:
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

    columns = [Column("peer"), wide("listener"), *numbers("in B/s", "out B/s", "in flight"), wide(number("unsent"))]
    return _table("Connections", [*columns, number("held")], connections, rows, width, framed, cells)


def _table(
    title: str,
    columns: Sequence[str | Column],
    things: Sequence[R],
    rows: int,
    width: int,
    framed: bool,
    cells: Callable[[R], list[str]],
) -> RenderableType:
    title += f" ({rows:,} of {len(things):,})" if rows < len(things) else ""
    return table(columns, map(cells, things[:rows]), title, width=width, framed=framed)


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


_TOPIC_COLUMNS: Sequence[tuple[Column, Callable[[TopicView], str]]] = (
    (number("in/s"), lambda topic: _rate(topic.in_records_per_s)),
    (number("in B/s", 120), lambda topic: _bytes(topic.in_bytes_per_s)),
    (number("out/s"), lambda topic: _rate(topic.out_records_per_s)),
    (number("out B/s", 120), lambda topic: _bytes(topic.out_bytes_per_s)),
    (number("records", WIDE), lambda topic: _count(topic.records)),
    (number("bytes", 140), lambda topic: _bytes(topic.bytes)),
    (number("ready", 80), lambda topic: _count(topic.ready)),
    (number("leased"), lambda topic: _count(topic.leased)),
    (number("decided", 140), lambda topic: _count(topic.decided)),
    (number("unsettled"), lambda topic: _count(topic.unsettled)),
    (number("redelivered/s", 160), lambda topic: _rate(topic.redelivered_per_s)),
    (number("dead letters", 140), lambda topic: _count(topic.dead_letters)),
    (number("consumers"), lambda topic: _count(topic.consumers)),
)
"""Columns, and functions that make their cells."""
