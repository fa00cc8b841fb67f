"""What `linn route diff` finds: messages of a sample that go to other topics, grouped by what changes for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.markup import escape

from linn.cli.outgoing import Outgoing, from_json
from linn.cli.render.console import console
from linn.cli.render.table import number, print_table
from linn.cli.routing.route_map import RouteMap, map_of_config
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import NO_LABELS, Record
from linn.core.errors.texts import counted, did_you_mean
from linn.core.errors.tree import ExchangeUnknown, MessageInvalid

LINES_MAX = 10
"""Of the sample that are named for each change."""
Topics = tuple[str, ...] | None
"""None: there is no such exchange."""


@dataclass(slots=True)
class Change:
    """Messages that are published to one exchange, and for which the same changes."""

    exchange: str
    before: Topics
    after: Topics
    messages: int = 0
    lines: list[int] = field(default_factory=list)
    """Of the sample, from 1: the first of these messages."""
    routing_key: str = ""
    """Of the first of them."""


def diff_routes(old: str, new: str, sample: str, exchanges: Sequence[str], *, as_json: bool) -> bool:
    """Print what changes from one configuration to the other; whether nothing does.

    Raises:
        ConfigError: a file can't be read or is wrong. ExchangeUnknown: neither file has one of `exchanges`.
        MessageInvalid: the sample can't be read, or a line of it is no message.
    """
    before, after = map_of_config(old), map_of_config(new)
    asked = _asked(before, after, exchanges)
    changes: dict[tuple[str, Topics, Topics], Change] = {}
    count = 0
    for line, batch in _batches(sample):
        count += 1
        for exchange in asked:
            before_and_after = _topics(before, exchange, batch), _topics(after, exchange, batch)
            _compare(changes, exchange, before_and_after, line, batch)
    found = sorted(changes.values(), key=lambda change: -change.messages)
    if as_json:
        print(json.dumps(_as_data(count, asked, found), indent=2))
    else:
        _show(count, asked, found)
    return not found


def _asked(before: RouteMap, after: RouteMap, exchanges: Sequence[str]) -> list[str]:
    known = [*dict.fromkeys([*before.exchanges, *after.exchanges])]
    for name in exchanges:
        if name not in known:
            raise ExchangeUnknown(f'neither file has an exchange "{name[:80]}"{did_you_mean(name, known)}')
    return [*dict.fromkeys(exchanges)] or known


def _batches(sample: str) -> Iterator[tuple[int, RecordBatch]]:
    """The messages of a sample, each alone and with its line. Raises MessageInvalid."""
    try:
        with Path(sample).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _batch(from_json(line, number, Outgoing(None)), number)
    except OSError as error:
        raise MessageInvalid(f"{sample}: can't be read: {error.strerror}") from error


def _batch(message: Outgoing, number: int) -> RecordBatch:
    record = Record(
        value=message.value,
        key=message.key,
        routing_key=message.routing_key,
        labels=message.labels or NO_LABELS,
        headers=tuple(message.headers),
    )
    try:
        return build_from_records([record], base_id=1)
    except MessageInvalid as error:
        raise MessageInvalid(f"line {number}: {error.text}") from error


def _topics(routes: RouteMap, exchange: str, batch: RecordBatch) -> Topics:
    if exchange not in routes.exchanges:
        return None
    return tuple(sorted(topic for topic, _ in routes.exchanges[exchange].route(batch)))


def _compare(
    changes: dict[tuple[str, Topics, Topics], Change],
    exchange: str,
    topics: tuple[Topics, Topics],
    line: int,
    batch: RecordBatch,
) -> None:
    """Count a message whose topics differ."""
    if topics[0] == topics[1]:
        return
    change = changes.get((exchange, *topics))
    if change is None:
        change = changes[(exchange, *topics)] = Change(exchange, *topics, routing_key=batch.pair(0).routing_key)
    change.messages += 1
    if len(change.lines) < LINES_MAX:
        change.lines.append(line)


def _as_data(count: int, asked: Sequence[str], changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "same": not changes,
        "messages": count,
        "exchanges": list(asked),
        "changes": [
            {
                "exchange": change.exchange,
                "before": change.before,
                "after": change.after,
                "messages": change.messages,
                "lines": change.lines,
                "routing_key": change.routing_key,
            }
            for change in changes
        ],
    }


def _show(count: int, asked: Sequence[str], changes: Sequence[Change]) -> None:
    where = f"{counted(count, 'message')}, each to {', '.join(asked) or 'no exchange: neither file has one'}"
    if not changes:
        console().print(escape(f"{where}: nothing changes"), soft_wrap=True)
        return
    rows = []
    for change in changes:
        example = f"line {change.lines[0]}" + (f', key "{change.routing_key}"' if change.routing_key else "")
        rows.append([change.exchange, f"{change.messages:,}", _names(change.before), _names(change.after), example])
    console().print(escape(where), soft_wrap=True)
    print_table(["exchange", number("messages"), "go to", "and then to", "for example"], rows)


def _names(topics: Topics) -> str:
    if topics is None:
        return "no such exchange"
    return ", ".join(topics) or "nobody"
