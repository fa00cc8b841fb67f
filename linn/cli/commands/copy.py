"""`linn copy`: copy topics to another broker, with the offsets of their groups, for a move to a new version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.completion import topic_names
from linn.cli.exit_code import complain, on_interrupt
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_result
from linn.cli.render.progress import progress
from linn.cli.session import RETRIES_MAX, broker_address, login_of, tls_of, with_client

if TYPE_CHECKING:
    from linn.cli.topic_copy import TopicCopy, TopicPlan
    from linn.client.client import Client

Topics = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="Topics to copy. Default: all.", autocompletion=topic_names),
]
To = Annotated[str, typer.Option("--to", metavar="URL", help="URL of the broker that gets the copies.")]


def copy(to: To, topics: Topics = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Copy topics to another broker: messages in order, settlements, and the offsets of groups.

    The topics must exist at the target and be empty: `linn definitions import` creates them. From a queue the unsettled
    messages are copied; from a stream, and from a topic of kind both, all messages. Copies keep partition, value, key,
    routing key, labels, headers, id, time and priority; the labels of dead letters become headers. Offsets differ at
    the target; the offsets of groups are translated, so that they point to the same messages. Stop producers and
    consumers first: messages published meanwhile are not copied.

    Everything is checked before the first copy. After a failure or Ctrl-C delete the topics at the target, import their
    definitions, and copy again.
    """
    broker_address(to, "--to")
    copies: list[TopicCopy] = []

    async def work(source: Client) -> None:
        import linn

        async with linn.connect(
            to, name="linn-cli", retries_max=RETRIES_MAX, tls=tls_of(to), login=login_of()
        ) as target:
            await _copy(source, target, topics or [], copies)

    with on_interrupt(lambda: complain(f"interrupted: {_done(copies)}")):
        with_client(url, work)
    data = {
        "copied": sum(topic_copy.messages for topic_copy in copies),
        "topics": {topic_copy.name: topic_copy.messages for topic_copy in copies},
        "offsets": sum(topic_copy.offsets for topic_copy in copies),
    }
    print_result(data, f"copied {_done(copies)}", as_json=as_json)


async def _copy(source: Client, target: Client, names: list[str], copies: list[TopicCopy]) -> None:
    """Check all topics, and copy them. Raises LinnError; Exit where a topic can't be copied."""
    from linn.cli.topic_copy import TopicCopy, plan_of
    from linn.core.errors.tree import LinnError

    plans = [await plan_of(name, source, target) for name in names or await _all(source)]
    _refuse(plans, await _unfinished(source, {plan.name for plan in plans}))
    held = sum(bounds["end"] - bounds["start"] for plan in plans for bounds in plan.source["partitions"])
    with progress("copying", held) as advance:
        for plan in plans:
            copies.append(TopicCopy(plan, source, target, advance))
            try:
                await copies[-1].run()
            except LinnError as error:
                error.text += f"; {_done(copies)} copied: delete these topics at the target to begin again"
                raise


async def _all(source: Client) -> list[str]:
    return [topic["name"] for topic in await source.admin.topics()]


async def _unfinished(source: Client, topics: set[str]) -> list[str]:
    """Return the names of open transactions that write to one of the topics, or ack messages of it."""
    found = (await source.admin.transactions("open"))["transactions"]
    found += (await source.admin.transactions("ending"))["transactions"]
    described = [await source.admin.transaction(transaction["name"]) for transaction in found]
    return [
        transaction["name"]
        for transaction in described
        if {row["topic"] for row in (*transaction["wrote"], *transaction["holds"])} & topics
    ]


def _refuse(plans: list[TopicPlan], transactions: list[str]) -> None:
    """Print why a topic can't be copied. Records behind an open transaction can't be read, so the copy would lack them.

    Raises Exit.
    """
    from linn.cli.topic_copy import problems_of

    found = [f"transaction {name} has not ended: see linn transactions list" for name in transactions]
    found += [f"{plan.name}: {problem}" for plan in plans for problem in problems_of(plan)]
    for problem in found:
        complain(problem)
    if found:
        complain("nothing was copied")
        raise typer.Exit(1)


def _done(copies: list[TopicCopy]) -> str:
    from linn.cli.topic_copy import total_text

    return total_text(copies)
