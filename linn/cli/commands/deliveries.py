"""`linn deliveries`: list and describe decided deliveries, and end the deliveries of a lost consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import decided_ids, decided_partitions, topic_names
from linn.cli.confirm import confirm
from linn.cli.exit_code import complain
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.table import number, numbers, print_table, wide
from linn.cli.session import with_client
from linn.core.errors.texts import counted
from linn.core.errors.tree import DeliveryNotCurrent, LinnError, OffsetOutOfRange, StorageError

if TYPE_CHECKING:
    from linn.client.client import Client
    from linn.client.consume.message import Message
    from linn.descriptions import DecidedDeliveries

app = noun("List and describe decided deliveries, and end the deliveries of a lost consumer.")

Topic = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help='Name of a topic with delivery = "exactly-once".', autocompletion=topic_names),
]
OfTopic = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="Only deliveries of this topic.", autocompletion=topic_names)
]
Partition = Annotated[
    int,
    typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.", autocompletion=decided_partitions),
]
DeliveryId = Annotated[
    int,
    typer.Argument(
        metavar="DELIVERY_ID", min=0, help="Id of the delivery, as in the list.", autocompletion=decided_ids
    ),
]
Subscription = Annotated[
    str | None,
    typer.Option("--subscription", metavar="NAME", help="Named subscription of a stream, in place of the queue."),
]
Consumer = Annotated[str | None, typer.Option("--consumer", metavar="NAME", help="Only deliveries to this consumer.")]
Shown = Annotated[int, typer.Option("--count", min=1, metavar="COUNT", help="Maximum number of records shown.")]
First = Annotated[int | None, typer.Option("--first", min=0, metavar="OFFSET", help="Only from this offset on.")]
End = Annotated[int | None, typer.Option("--end", min=0, metavar="OFFSET", help="Only before this offset.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would happen.")]
_KEY_CHARACTERS_MAX = 40


class Outcome(StrEnum):
    """Way to end a decided delivery."""

    DONE = "done"
    RETURN = "return"
    DEAD_LETTER = "dead-letter"


As = Annotated[
    Outcome,
    typer.Option(
        "--as",
        help="done: settle them, as if the effect was stored; return: deliver them to another consumer; dead-letter: "
        "reject them.",
    ),
]
_FATES = {
    Outcome.DONE: "are settled, as if {consumer} had stored their effect: if it has not, it never happens",
    Outcome.RETURN: "go to another consumer: if {consumer} has stored their effect, it happens twice",
    Outcome.DEAD_LETTER: "become dead letters: if {consumer} has stored their effect, a replay repeats it",
}


@app.command("list")
def list_deliveries(
    topic: OfTopic = None,
    subscription: Subscription = None,
    consumer: Consumer = None,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """List the first 1,000 deliveries that are decided, and that their consumers have not reported as done."""
    if subscription is not None and topic is None:
        raise typer.BadParameter("needs a topic: linn deliveries list TOPIC --subscription NAME")
    found = with_client(url, lambda client: client.admin.decided_deliveries(topic, subscription, consumer))
    if as_json:
        print_json(found)
    elif not found["deliveries"]:
        print("nothing is decided and not done" + (f" in {topic}" if topic is not None else ""))
    else:
        _print_deliveries(found, "")


@app.command("describe")
def describe(
    topic: Topic,
    partition: Partition,
    delivery_id: DeliveryId,
    subscription: Subscription = None,
    count: Shown = 100,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Show one decided delivery, with the keys and the sizes of its records."""

    async def look(client: Client) -> tuple[DecidedDeliveries, list[Message], LinnError | None]:
        found = await client.admin.decided_deliveries(topic, subscription, partition=partition, delivery_id=delivery_id)
        if not found["deliveries"]:
            raise DeliveryNotCurrent(f"{topic}: delivery {delivery_id} of partition {partition} is not decided")
        ranges = [(delivery["first"], delivery["end"]) for delivery in found["deliveries"]]
        return found, *await _records(client, topic, partition, ranges, count + 1)

    found, messages, unreadable = with_client(url, look)
    records = [_record_data(message) for message in messages[:count]]
    if as_json:
        print_json({**found, "records": records})
    else:
        _print_deliveries(found, f"delivery {delivery_id} of {topic}")
        rows = [[str(record["offset"]), _short(record["key"]), f"{record['size']:,}"] for record in records]
        print_table([number("offset"), "key", number("size")], rows)
    if unreadable is not None:
        complain(f"records that can't be read: {unreadable.text} [{unreadable.code}]")
    elif len(messages) > count:
        complain(f"there are more than {counted(count, 'record')}: --count shows more")


async def _records(
    client: Client, topic: str, partition: int, ranges: Sequence[tuple[int, int]], count: int
) -> tuple[list[Message], LinnError | None]:
    """Read the first records of ranges of offsets; also return the error that ended the reading early, if any."""
    found: list[Message] = []
    for first, end in ranges:
        offset = first
        while offset < end and len(found) < count:
            try:
                fetched = await client.fetch(topic, partition, offset)
            except (StorageError, OffsetOutOfRange) as error:
                return found, error
            messages = [message for batch in fetched.batches for message in batch]
            found += [message for message in messages if offset <= message.offset < end]
            if fetched.next_offset <= offset:
                break
            offset = fetched.next_offset
    return found[:count], None


def _record_data(message: Message) -> dict[str, Any]:
    from linn.cli.render.message_format import readable

    return {"offset": message.offset, "key": readable(message.key), "size": len(message.value or b"")}


def _short(key: object) -> str:
    text = "" if key is None else str(key)
    return text if len(text) <= _KEY_CHARACTERS_MAX else f"{text[: _KEY_CHARACTERS_MAX - 3]}..."


def _print_deliveries(found: DecidedDeliveries, title: str) -> None:
    from datetime import UTC, datetime

    rows = []
    for delivery in found["deliveries"]:
        since = datetime.fromtimestamp(delivery["since_ms"] / 1000, UTC).isoformat(" ", "seconds")
        numbered = [delivery[name] for name in ("partition", "delivery_id", "first", "end", "attempt")]
        rows.append(
            [
                delivery["topic"],
                delivery["subscription"],
                *map(str, numbered),
                delivery["consumer"],
                "yes" if delivery["connected"] else "no",
                since.removesuffix("+00:00"),
            ]
        )
    heads = [*numbers("partition", "delivery", "first", "end"), wide(number("attempt"))]
    print_table(["topic", wide("subscription"), *heads, "consumer", "connected", wide("decided at (UTC)")], rows, title)
    if found["more"]:
        complain(f"and {found['more']:,} more: --consumer and --subscription show fewer")


@app.command("resolve")
def resolve(
    topic: Topic,
    partition: Partition,
    delivery_id: DeliveryId,
    consumer: Annotated[str, typer.Option("--consumer", metavar="NAME", help="The consumer of the delivery.")],
    outcome: As,
    subscription: Subscription = None,
    first: First = None,
    end: End = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """End a decided delivery for a consumer that does not come back. The broker logs it.

    return: if the consumer has stored the effect, it happens twice. done: if it has not, it never happens. Look into
    its store first: the marks there say which records it has applied.
    """
    bounds = {name: value for name, value in (("first", first), ("end", end)) if value is not None}
    asked: dict[str, Any] = {
        "topic": topic,
        "subscription": subscription or "",
        "partition": partition,
        "delivery_id": delivery_id,
        "consumer": consumer,
        "outcome": outcome.value,
        **bounds,
    }
    if dry_run:
        checked = with_client(url, lambda client: client.admin.perform("delivery.resolve", validate_only=True, **asked))
        _print_resolved(checked, outcome, consumer, dry_run=True, as_json=as_json)
        return
    if not yes:
        fate = _FATES[outcome].format(consumer=consumer)
        question = f"The records of delivery {delivery_id} {fate}. End it?"
        confirm(url, "delivery.resolve", question, "not ended", **asked)
    done = with_client(url, lambda client: client.admin.perform("delivery.resolve", **asked))
    _print_resolved(done, outcome, consumer, dry_run=False, as_json=as_json)


def _print_resolved(
    resolved: Mapping[str, Any], outcome: Outcome, consumer: str, *, dry_run: bool, as_json: bool
) -> None:
    records = resolved["records"]
    data = {"records": records, "outcome": outcome.value, "dry_run": dry_run}
    if dry_run:
        for warning in resolved["warnings"]:
            complain(f"warning: {warning['text']}")
    said = f"{'would end' if dry_run else 'ended'} {counted(records, 'record')} of {consumer} as {outcome.value}"
    print_result(data, said, as_json=as_json)
