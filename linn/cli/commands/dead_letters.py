"""`linn dead-letters`: list dead letters, and send them back to the topics they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.commands.move import Move, MovePlan, Target
from linn.cli.completion import queue_names, topic_names
from linn.cli.exit_code import complain
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, CountMax, DryRun, Json, Url, Where
from linn.cli.render.console import print_json
from linn.cli.render.table import number, print_table, wide
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.client.consume.message import Message
    from linn.core.batch.record import LabelValue, Record

app = noun("List dead letters, and send them back to the topics they came from.")

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
Shown = Annotated[
    int, typer.Option("--count", min=1, metavar="COUNT", help="Maximum number of messages shown of one topic.")
]
_VALUE_CHARACTERS_MAX = 40


@app.command("list")
def list_dead_letters(
    topic: AnyTopic = None, where: Where = None, count: Shown = 1_000, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """List dead-letter topics with the number of waiting messages, and the topics they come from.

    With TOPIC, lists each message as well: source, reason, the consumer's text, attempts and time. Nothing is consumed.
    """
    if topic is not None:
        _list_messages(url, topic, where, count, as_json=as_json)
        return
    if where is not None:
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


async def _dead_letter_topics(client: Client) -> list[dict[str, Any]]:
    topics = {topic["name"]: topic for topic in await client.admin.topics()}
    named = {topic["settings"].get("dead_letter") for topic in topics.values()}
    return [_dead_letter_topic(topic, topics.values()) for name, topic in sorted(topics.items()) if name in named]


def _dead_letter_topic(topic: Mapping[str, Any], topics: Any) -> dict[str, Any]:
    kept = sum(partition["records"] for partition in topic["partitions"])
    return {
        "topic": topic["name"],
        "waiting": topic["queue"]["unsettled"] if "queue" in topic else kept,
        "sources": sorted(other["name"] for other in topics if other["settings"].get("dead_letter") == topic["name"]),
    }


def _list_messages(url: str, name: str, where: str | None, count: int, *, as_json: bool) -> None:
    from linn.cli.message_filter import split_filter
    from linn.cli.topic_snapshot import TopicSnapshot

    at_broker, selects = split_filter(where)

    async def look(client: Client) -> tuple[dict[str, Any], list[Message]]:
        topics = await client.admin.topics()
        taker = _dead_letter_topic(await client.admin.topic(name), topics)
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
    from linn.core.queue.dead_letter import ATTEMPTS, ERROR, OFFSET, PARTITION, REASON, TIME_MS, TOPIC

    rows = []
    for message in messages:
        labels = message.labels
        came = f"{labels[TOPIC]} {labels.get(PARTITION)}/{labels.get(OFFSET)}" if TOPIC in labels else "no dead letter"
        value = (message.value or b"")[: 4 * _VALUE_CHARACTERS_MAX].decode(errors="replace")
        if len(value) > _VALUE_CHARACTERS_MAX:
            value = f"{value[: _VALUE_CHARACTERS_MAX - 3]}..."
        why = ": ".join([str(labels[name]) for name in (REASON, ERROR) if name in labels])
        texts = (came, why, labels.get(ATTEMPTS, ""), _time(labels.get(TIME_MS)), value)
        rows.append([f"{message.partition}/{message.offset}", *map(str, texts)])
    print_table(["place", "from", "why", number("attempts"), wide("when"), "value"], rows)


def _time(time_ms: LabelValue | None) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(int(time_ms or "") / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    except (ValueError, OverflowError, OSError):  # Any client may publish to the topic.
        return ""


@app.command("replay")
def replay(
    topic: Topic,
    to: To = None,
    where: Where = None,
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

    plan = MovePlan(
        topic,
        Target(to) if to is not None else None,
        _source_of,
        _original,
        None if where is None else message_filter(where),
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
