"""`linn subscriptions`: list, describe, create and delete named shared subscriptions, of streams and kept queues."""

from __future__ import annotations

from typing import Annotated

import typer

from linn.cli.completion import shared_names, topic_names
from linn.cli.confirm import confirm
from linn.cli.noun import noun
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result
from linn.cli.render.queue_table import print_queue, print_queues
from linn.cli.session import with_client

app = noun("List, describe, create and delete the named shared subscriptions of streams, and of queues with `keep`.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)]
OfTopic = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="Only subscriptions of this topic.", autocompletion=topic_names),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.", autocompletion=shared_names)]
Start = Annotated[
    str,
    typer.Option(
        "--start",
        metavar="PLACE",
        help='Position to begin at: earliest, latest, an offset, a time ("2026-01-31T12:00"), or a duration ago '
        '("10m").',
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Delete it even if it has consumers; they are told.")]


@app.command("list")
def list_subscriptions(topic: OfTopic = None, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the named subscriptions of one topic or of all, with their numbers of records by state."""
    found = with_client(url, lambda client: client.admin.subscriptions(topic))
    named = [subscription for subscription in found if subscription["subscription"]]
    if as_json:
        print_json(named)
    elif not named:
        print("no named subscriptions yet: linn subscriptions create TOPIC NAME")
    else:
        print_queues(named, {"topic": "topic", "subscription": "subscription"})


@app.command("describe")
def describe(topic: Topic, name: Name, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show one subscription by partition, and the records in flight to each consumer."""
    subscription = with_client(url, lambda client: client.admin.subscription(topic, name))
    if as_json:
        print_json(subscription)
    else:
        print_queue(subscription, f"{name} of {topic}")


@app.command("create")
def create(topic: Topic, name: Name, start: Start = "earliest", url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Create a subscription of a stream, or of a queue with `keep`. One that exists stays as it is."""
    from linn.cli.moment import place_of

    place = place_of(start, "--start")
    created = with_client(url, lambda client: client.admin.create_subscription(topic, name, place))
    said = f"created {name} of {topic}" if created else f"{name} of {topic} exists already"
    print_result({"created": created}, said, as_json=as_json)


@app.command("delete")
def delete(
    topic: Topic,
    name: Name,
    force: Force = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Delete a subscription, with its settlements. The records of the topic stay."""
    if not yes:
        question = f"Delete the subscription {name} of {topic}?"
        asked = {"topic": topic, "subscription": name, "force": force}
        confirm(url, "subscription.delete", question, "not deleted", **asked)
    with_client(url, lambda client: client.admin.delete_subscription(topic, name, force=force))
    print_result({"deleted": name}, f"deleted {name} of {topic}", as_json=as_json)
