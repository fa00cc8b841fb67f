"""Differences between two configurations: messages of a sample that are routed to other topics.

Separate from the command, which has to load without the record batch and the plugins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from linn.cli.outgoing_message import OutgoingMessage, message_from_json
from linn.cli.routing.route_map import RouteMap, map_of_config
from linn.core.batch.batch import RecordBatch
from linn.core.batch.builder import build_from_records
from linn.core.batch.record import NO_LABELS, Record
from linn.core.errors.texts import did_you_mean
from linn.core.errors.tree import ExchangeUnknown, MessageInvalid

LINES_MAX = 10
"""Maximum number of lines of the sample that are listed for each change."""
Topics = tuple[str, ...] | None
"""Topics that a message is routed to; None: there is no such exchange."""


@dataclass(slots=True)
class Change:
    """Group of messages, published to one exchange, whose topics change in the same way."""

    exchange: str
    before: Topics
    after: Topics
    messages: int = 0
    lines: list[int] = field(default_factory=list)
    """Lines of the sample, from 1, of the first of these messages."""
    routing_key: str = ""
    """Routing key of the first of these messages."""


@dataclass(frozen=True, slots=True)
class RouteDiff:
    """Changes of routing, largest first, and the exchanges and number of messages that were compared."""

    messages: int
    exchanges: Sequence[str]
    changes: Sequence[Change]

    def data(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        return {
            "same": not self.changes,
            "messages": self.messages,
            "exchanges": list(self.exchanges),
            "changes": [asdict(change) for change in self.changes],
        }


def diff_routes(old: str, new: str, sample: str, exchanges: Sequence[str]) -> RouteDiff:
    """Compare the routing of a sample by two configuration files.

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
    return RouteDiff(count, asked, sorted(changes.values(), key=lambda change: -change.messages))


def _asked(before: RouteMap, after: RouteMap, exchanges: Sequence[str]) -> list[str]:
    known = [*dict.fromkeys([*before.exchanges, *after.exchanges])]
    for name in exchanges:
        if name not in known:
            raise ExchangeUnknown(f'neither file has an exchange "{name[:80]}"{did_you_mean(name, known)}')
    return [*dict.fromkeys(exchanges)] or known


def _batches(sample: str) -> Iterator[tuple[int, RecordBatch]]:
    """Yield the messages of a sample, each as a batch with its line number. Raises MessageInvalid."""
    try:
        with Path(sample).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _batch(message_from_json(line, number, OutgoingMessage(None)), number)
    except OSError as error:
        raise MessageInvalid(f"{sample}: can't be read: {error.strerror}") from error


def _batch(message: OutgoingMessage, number: int) -> RecordBatch:
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
    """Count a message if its topics differ."""
    if topics[0] == topics[1]:
        return
    change = changes.get((exchange, *topics))
    if change is None:
        change = changes[(exchange, *topics)] = Change(exchange, *topics, routing_key=batch.pair(0).routing_key)
    change.messages += 1
    if len(change.lines) < LINES_MAX:
        change.lines.append(line)
