"""Dead letters over the wire: what the commands of `linn dead-letters` do, and how they show it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from linn.cli.exit_code import complain
from linn.cli.message_format import readable
from linn.cli.moving import Move, Moving, Target
from linn.cli.selection import selection
from linn.cli.session import with_client
from linn.cli.table import number, print_table, wide
from linn.cli.waiting import Waiting
from linn.client.client import Client
from linn.client.consume.message import Message
from linn.core.batch.record import LabelValue, Record
from linn.core.queue.dead_letter import ATTEMPTS, LABELS, OFFSET, PARTITION, REASON, TIME_MS, TOPIC

_VALUE_CHARACTERS_MAX = 40


def list_all(url: str, *, as_json: bool) -> None:
    """Print all topics that take dead letters. Raises LinnError."""
    found = with_client(url, _takers)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found:
        print("no topic has dead letters: linn topics alter NAME dead_letter=TOPIC max_deliveries=5")
        return
    rows = [(taker["topic"], f"{taker['waiting']:,}", ", ".join(taker["sources"])) for taker in found]
    print_table(["dead letters", number("waiting"), "of"], rows)


async def _takers(client: Client) -> list[dict[str, Any]]:
    topics = {topic["name"]: topic for topic in await client.admin.topics()}
    takers = {topic["settings"].get("dead_letter") for topic in topics.values()}
    return [_taker(topic, topics.values()) for name, topic in sorted(topics.items()) if name in takers]


def _taker(topic: Mapping[str, Any], topics: Any) -> dict[str, Any]:
    kept = sum(partition["end"] - partition["start"] for partition in topic["partitions"])
    return {
        "topic": topic["name"],
        "waiting": topic["queue"]["unsettled"] if "queue" in topic else kept,
        "sources": sorted(other["name"] for other in topics if other["settings"].get("dead_letter") == topic["name"]),
    }


def list_one(url: str, name: str, where: str | None, count: int, *, as_json: bool) -> None:
    """Print the dead letters of one topic. Raises LinnError, PredicateInvalid."""
    selects = selection(where) if where is not None else None

    async def look(client: Client) -> tuple[dict[str, Any], list[Message]]:
        topics = await client.admin.topics()
        taker, found = _taker(await client.admin.topic(name), topics), list[Message]()
        async with aclosing(Waiting(client, name).messages()) as waiting:
            async for messages in waiting:
                found += [message for message in messages if selects is None or selects(message)]
                if len(found) > count:
                    break
        return taker, found

    taker, found = with_client(url, look)
    if as_json:
        print(json.dumps([{**taker, "messages": [_as_data(message) for message in found[:count]]}], indent=2))
    elif found:
        _print(found[:count])
    else:
        print(f"no dead letters wait in {name}")
    if len(found) > count:
        complain(f"there are more than {count:,}: --count shows more, --where fewer")


def _as_data(message: Message) -> dict[str, Any]:
    labels = message.labels
    return {
        "partition": message.partition,
        "offset": message.offset,
        "id": str(message.id),
        "from_topic": labels.get(TOPIC),
        "from_partition": labels.get(PARTITION),
        "from_offset": labels.get(OFFSET),
        "reason": labels.get(REASON),
        "attempts": labels.get(ATTEMPTS),
        "time_ms": labels.get(TIME_MS),
        "value": readable(message.value),
    }


def _print(messages: Sequence[Message]) -> None:
    rows = []
    for message in messages:
        labels = message.labels
        came = f"{labels[TOPIC]} {labels.get(PARTITION)}/{labels.get(OFFSET)}" if TOPIC in labels else "no dead letter"
        value = (message.value or b"")[: 4 * _VALUE_CHARACTERS_MAX].decode(errors="replace")
        if len(value) > _VALUE_CHARACTERS_MAX:
            value = f"{value[: _VALUE_CHARACTERS_MAX - 3]}..."
        texts = (came, labels.get(REASON, ""), labels.get(ATTEMPTS, ""), _time(labels.get(TIME_MS)), value)
        rows.append([f"{message.partition}/{message.offset}", *map(str, texts)])
    print_table(["place", "from", "why", number("attempts"), wide("when"), "value"], rows)


def _time(time_ms: LabelValue | None) -> str:
    try:
        return datetime.fromtimestamp(int(time_ms or "") / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):  # Anybody may publish there.
        return ""


def replay_one(
    url: str, name: str, to: str | None, where: str | None, count: int | None, *, dry: bool, as_json: bool
) -> None:
    """Send dead letters back, and say what became of it. Raises LinnError, PredicateInvalid, BadParameter."""
    move = Move(
        name,
        Target(to) if to is not None else None,
        home_of,
        revived,
        None if where is None else selection(where),
        count,
    )
    Moving(move, dry=dry).run(url, as_json=as_json)


def home_of(message: Message) -> Target | None:
    """Where a dead letter came from; None: it is none."""
    topic = message.labels.get(TOPIC)
    return Target(topic) if isinstance(topic, str) else None


def revived(message: Message) -> Record:
    """A dead letter as it was before it died."""
    record = message.record()
    return replace(record, labels={name: value for name, value in record.labels.items() if name not in LABELS})
