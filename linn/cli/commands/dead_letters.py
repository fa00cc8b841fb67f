"""`linn dead-letters`: list dead letters, and send them back to the topics they came from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.commands.move import Move, MovePlan, Target
from linn.cli.completion import queue_names, topic_names
from linn.cli.exit_code import complain
from linn.cli.moment import OFFSET_MAX, place_of
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, CountMax, DryRun, Json, Url, Where
from linn.cli.render.console import print_json
from linn.cli.render.table import number, print_fields, print_table, wide
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.cli.message_filter import MessageFilter
    from linn.client.client import Client
    from linn.client.consume.message import Message
    from linn.core.batch.record import LabelValue, Record

app = noun("List and describe dead letters, and send them back to the topics they came from.")

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the dead-letter topic.", autocompletion=queue_names)
]
AnyTopic = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPIC]", help="Only this dead-letter topic, with each message in it.", autocompletion=queue_names
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TOPIC",
        help="Send them to this topic, instead of the topics they came from.",
        autocompletion=topic_names,
    ),
]
Place = Annotated[
    str, typer.Argument(metavar="PLACE", help="Partition and offset of the message: 0/17, as `list` shows them.")
]


class Reason(StrEnum):
    """Why a message died."""

    REJECTED = "rejected"
    MAX_DELIVERIES = "max_deliveries"
    EXPIRED = "expired"
    OVERFLOW = "overflow"


Why = Annotated[Reason | None, typer.Option("--reason", help="Only messages that died for this reason.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TOPIC", help="Only messages that died in this topic.", autocompletion=queue_names),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only messages that died then or later: a time, or a time ago (10m)."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only messages that died before then.")]
Shown = Annotated[
    int, typer.Option("--count", min=1, metavar="COUNT", help="Maximum number of messages shown of one topic.")
]


@app.command("list")
def list_dead_letters(
    topic: AnyTopic = None,
    where: Where = None,
    reason: Why = None,
    source: From = None,
    since: Since = None,
    until: Until = None,
    count: Shown = 1_000,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List dead-letter topics with the number of waiting messages, and the topics they come from.

    With TOPIC, lists each message as well: source, reason, the consumer's text, attempts and time. Nothing is consumed.
    """
    selects = _selection(reason, source, since, until)
    if topic is not None:
        _list_messages(url, topic, where, selects, count, as_json=as_json)
        return
    if where is not None or selects is not None:
        raise typer.BadParameter("needs a topic: linn dead-letters list TOPIC --where ...")
    found = with_client(url, _dead_letter_topics)
    if as_json:
        print_json(found)
        return
    if not found:
        print("no topic has dead letters: linn topics alter NAME dead_letter=TOPIC max_deliveries=5")
        return
    rows = [(taker["topic"], f"{taker['waiting']:,}", ", ".join(taker["sources"])) for taker in found]
    print_table(["dead letters", number("waiting"), "of"], rows)


def _selection(reason: Reason | None, source: str | None, since: str | None, until: str | None) -> MessageFilter | None:
    """Return a function that selects dead letters; None: all. Raises BadParameter."""
    if reason is None and source is None and since is None and until is None:
        return None
    from linn.core.queue.dead_letter import REASON, TIME_MS, TOPIC

    first_ms = _time_ms(since, "--since") if since is not None else -math.inf
    end_ms = _time_ms(until, "--until") if until is not None else math.inf

    def selects(message: Message) -> bool:
        labels = message.labels
        time_ms = labels.get(TIME_MS)
        is_then = isinstance(time_ms, int) and first_ms <= time_ms < end_ms
        return reason in (None, labels.get(REASON)) and source in (None, labels.get(TOPIC)) and is_then

    return selects


def _time_ms(text: str, option: str) -> float:
    """Parse a time. Raises BadParameter."""
    place = place_of(text, option)
    if not isinstance(place, datetime):
        raise typer.BadParameter(f'{text!r} is not a time like 2026-01-31T12:00, or a duration ago like "10m"')
    return 1000 * place.timestamp()


def _both(one: MessageFilter | None, other: MessageFilter | None) -> MessageFilter | None:
    """Return a function that selects the messages that both select."""
    if one is None or other is None:
        return one or other
    return lambda message: one(message) and other(message)


async def _dead_letter_topics(client: Client) -> list[dict[str, Any]]:
    topics = {topic["name"]: topic for topic in await client.admin.topics()}
    sources = _sources(topics.values())
    return [_dead_letter_topic(topic, sources) for name, topic in sorted(topics.items()) if sources[name]]


def _sources(topics: Iterable[Mapping[str, Any]]) -> Mapping[str, set[str]]:
    """Return the topics whose dead letters come to a topic, directly or by an exchange that it is bound to itself."""
    bound, found = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for topic in topics:
        for binding in topic["settings"].get("bindings", ()):
            bound[binding["exchange"]].add(topic["name"])
    for topic in topics:
        settings = topic["settings"]
        direct = [settings["dead_letter"]] if settings.get("dead_letter") else []
        for taker in (*direct, *bound[settings.get("dead_letter_exchange") or ""]):
            found[taker].add(topic["name"])
    return found


def _dead_letter_topic(topic: Mapping[str, Any], sources: Mapping[str, set[str]]) -> dict[str, Any]:
    kept = sum(partition["records"] for partition in topic["partitions"])
    return {
        "topic": topic["name"],
        "waiting": topic["queue"]["unsettled"] if "queue" in topic else kept,
        "sources": sorted(sources[topic["name"]]),
    }


def _list_messages(
    url: str, name: str, where: str | None, selection: MessageFilter | None, count: int, *, as_json: bool
) -> None:
    from linn.cli.message_filter import split_filter
    from linn.cli.topic_snapshot import TopicSnapshot

    at_broker, selects = split_filter(where)
    selects = _both(selects, selection)

    async def look(client: Client) -> tuple[dict[str, Any], list[Message]]:
        sources = _sources(await client.admin.topics())
        taker = _dead_letter_topic(await client.admin.topic(name), sources)
        found: list[Message] = []
        async with aclosing(TopicSnapshot(client, name, where=at_broker).messages()) as snapshot:
            async for messages in snapshot:
                found += [message for message in messages if selects is None or selects(message)]
                if len(found) > count:
                    break
        return taker, found

    taker, found = with_client(url, look)
    if as_json:
        print_json([{**taker, "messages": [_message_data(message) for message in found[:count]]}])
    elif found:
        _print_messages(found[:count])
    else:
        print(f"no dead letters wait in {name}")
    if len(found) > count:
        complain(f"there are more than {count:,}: --count shows more, --where fewer")


def _message_data(message: Message) -> dict[str, Any]:
    from linn.cli.render.message_format import readable
    from linn.core.queue.dead_letter import ATTEMPTS, ERROR, OFFSET, PARTITION, REASON, TIME_MS, TOPIC

    labels = message.labels
    return {
        "partition": message.partition,
        "offset": message.offset,
        "id": str(message.id),
        "from_topic": labels.get(TOPIC),
        "from_partition": labels.get(PARTITION),
        "from_offset": labels.get(OFFSET),
        "reason": labels.get(REASON),
        "error": labels.get(ERROR),
        "attempts": labels.get(ATTEMPTS),
        "time_ms": labels.get(TIME_MS),
        "value": readable(message.value),
    }


def _print_messages(messages: Sequence[Message]) -> None:
    from linn.cli.render.message_format import beginning_of
    from linn.core.queue.dead_letter import ATTEMPTS, ERROR, OFFSET, PARTITION, REASON, TIME_MS, TOPIC

    rows = []
    for message in messages:
        labels = message.labels
        came = f"{labels[TOPIC]} {labels.get(PARTITION)}/{labels.get(OFFSET)}" if TOPIC in labels else "no dead letter"
        value = beginning_of(message.value)
        why = ": ".join([str(labels[name]) for name in (REASON, ERROR) if name in labels])
        texts = (came, why, labels.get(ATTEMPTS, ""), _time(labels.get(TIME_MS)), value)
        rows.append([f"{message.partition}/{message.offset}", *map(str, texts)])
    print_table(["place", "from", "why", number("attempts"), wide("when"), "value"], rows)


def _time(time_ms: LabelValue | None) -> str:
    try:
        return datetime.fromtimestamp(int(time_ms or "") / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):  # Any client may publish to the topic.
        return ""


@app.command("describe")
def describe(topic: Topic, place: Place, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show one dead letter: all of the message, and where it has died, why and how often. Nothing is consumed."""
    message = with_client(url, lambda client: _message_at(client, topic, place))
    history = _history(message)
    if as_json:
        print_json({**_message_data(message), **_properties(message), "history": history})
        return
    print_fields({**_message_data(message), **_properties(message)})
    times = [[_time(death["first_ms"]), _time(death["last_ms"])] for death in history]
    rows = [
        [death["topic"], death["reason"], f"{death['times']:,}", *when]
        for death, when in zip(history, times, strict=True)
    ]
    print_table(["died in", "why", number("times"), wide("first"), "last"], rows)


def _properties(message: Message) -> dict[str, Any]:
    """Return the properties that the producer gave the message."""
    from linn.cli.render.message_format import properties_of
    from linn.core.queue.dead_letter import LABELS

    found = properties_of(message)
    return found | {"labels": {name: value for name, value in message.labels.items() if name not in LABELS}}


async def _message_at(client: Client, topic: str, place: str) -> Message:
    """Return the message of a topic at "partition/offset". Raises BadParameter: there is none."""
    partition, _, offset = place.partition("/")
    if not (partition.isascii() and partition.isdigit() and offset.isascii() and offset.isdigit()):
        raise typer.BadParameter(f"{place!r} is not a partition and an offset like 0/17", param_hint="PLACE")
    fetched = await client.fetch(topic, int(partition), min(int(offset), OFFSET_MAX))
    found = next((message for batch in fetched.batches for message in batch), None)
    if found is None or found.offset != int(offset):
        raise typer.BadParameter(f"{topic} has no message at {place}", param_hint="PLACE")
    return found


def _history(message: Message) -> list[dict[str, Any]]:
    from linn.core.queue.dead_letter import HISTORY
    from linn.core.queue.dead_letter_history import deaths_of

    return [death._asdict() for death in deaths_of(message.labels.get(HISTORY))]


@app.command("replay")
def replay(
    topic: Topic,
    to: To = None,
    where: Where = None,
    reason: Why = None,
    source: From = None,
    since: Since = None,
    until: Until = None,
    count: CountMax = None,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Send dead letters back to the topics they came from. As with `linn move`, none is lost.

    They arrive as they were published, without the labels of dead letters. A message whose topic no longer exists
    stays.
    """
    if to == topic:
        raise typer.BadParameter(f"the messages are in {topic} already", param_hint="--to")
    from linn.cli.message_filter import message_filter

    selects = None if where is None else message_filter(where)
    plan = MovePlan(
        topic,
        Target(to) if to is not None else None,
        _source_of,
        _original,
        _both(selects, _selection(reason, source, since, until)),
        count,
    )
    Move(plan, dry_run=dry_run).run(url, as_json=as_json)


def _source_of(message: Message) -> Target | None:
    """Return the topic that a dead letter came from; None: the message is no dead letter."""
    from linn.core.queue.dead_letter import TOPIC

    topic = message.labels.get(TOPIC)
    return Target(topic) if isinstance(topic, str) else None


def _original(message: Message) -> Record:
    """Return the record of a dead letter without the labels that make it one."""
    from dataclasses import replace

    from linn.core.queue.dead_letter import LABELS

    record = message.record()
    return replace(record, labels={name: value for name, value in record.labels.items() if name not in LABELS})
