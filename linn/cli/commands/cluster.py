"""`linn cluster`: the cluster of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from linn.cli.commands.cluster_operations import add_operations
from linn.cli.moment import moment_text
from linn.cli.noun import StatusNoun, noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json, print_text
from linn.cli.render.table import WIDE, Column, number, print_table, wide
from linn.cli.session import with_client
from linn.core.errors.texts import counted
from linn.descriptions import TROUBLED_MAX

if TYPE_CHECKING:
    from linn.descriptions import ClusterDescription, NodeDescription, TopicTrouble

app = noun("Show and operate the cluster of a broker.", StatusNoun)
add_operations(app)


TROUBLED = 10
"""Topics in trouble that are listed."""


@app.command("status")
def status(
    url: Url = DEFAULT_URL,
    topics: Annotated[
        bool,
        typer.Option("--topics", help=f"List all topics in trouble, not only {TROUBLED}; at most {TROUBLED_MAX:,}."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the cluster as the broker knows it: its nodes, controller and metadata store, and topics in trouble.

    A node is alive, has left because it was stopped, or was given up because the metadata store had no sign of it for
    its session timeout. A topic is in trouble without a leader, below its min_in_sync, or with fewer replicas in sync
    than it should have.
    """
    troubled_max = TROUBLED_MAX if topics else TROUBLED
    found = with_client(url, lambda client: client.admin.cluster(troubled_max=troubled_max))
    if as_json:
        print_json(found)
    elif found["node"] is None:
        print_text("This broker is alone: its configuration has no [cluster].")
    else:
        _print(found)


def _print(found: ClusterDescription) -> None:
    is_old = "" if found["problem"] is None else f", which is {found['view_age_s']:,.0f} s old: {found['problem']}"
    print_text(f"Cluster {found['name']}, as node {found['node']} knows it{is_old}.")
    if found["controller"] is None:
        print_text("It has no controller now.")
    else:
        print_text(f"Node {found['controller']} is the controller, in epoch {found['controller_epoch']:,}.")
    latency_ms = found["store_latency_s"] * 1000
    store = f"The metadata store {found['store']} is at revision {found['revision']:,}"
    print_text(f"{store}; the last renewal of the session took {latency_ms:,.1f} ms.")
    print_text(_level(found))
    if not found["is_registered"]:
        print_text(f"Node {found['node']} has no session, or one that may have ended.")
    if found["failing"]:
        count = counted(found["failing"], "topic")
        print_text(f"The disk of node {found['node']} takes no records of {count}: make room.")
    heads: list[str | Column] = [number("node"), "state", "since", "given up", number("leads"), number("holds")]
    heads += [number("out of sync", WIDE), "version", "host"]
    heads += map(wide, ("rack", "addresses", "session", "lost", "level", "clock"))
    print_table(heads, [_row(node) for node in found["nodes"]])
    _print_topics(found)


def _level(found: ClusterDescription) -> str:
    known = min([node["levels"][-1] for node in found["nodes"] if node["levels"]], default=0)
    text = f"The cluster has level {found['level']}"
    if found["level"] is None or known <= found["level"]:
        return f"{text}."
    return f"{text}, and all nodes know level {known}: linn cluster upgrade raises it."


def _row(node: NodeDescription) -> list[str]:
    state = f"{node['state']}, draining" if node["is_draining"] else node["state"]
    given_up = [end["at_ms"] for end in node["ends"] if end["reason"] == "given up"]
    ahead_s = node["clock_ahead_s"]
    return [
        str(node["node"]),
        state,
        moment_text(node["since_ms"]) if node["since_ms"] is not None else "",
        moment_text(given_up[-1]) if given_up else "",
        f"{node['leads']:,}",
        f"{node['holds']:,}",
        f"{node['out_of_sync']:,}",
        node["version"],
        node["host"],
        node["rack"],
        ", ".join(f"{name} {address}" for name, address in node["addresses"].items()),
        node["session"] or "",
        node["lost"],
        str(node["levels"][-1]) if node["levels"] else "",
        "" if ahead_s is None else f"{ahead_s:+,.1f} s",
    ]


def _print_topics(found: ClusterDescription) -> None:
    """Print the trouble of topics: numbers of all, then a table of the listed ones."""
    topics = found["topics"]
    named = [
        ("without a leader", topics["leaderless"]),
        ("below min_in_sync", topics["below_minimum"]),
        ("with an unfit replica", topics["unfit"]),
        ("with a replica out of sync", topics["out_of_sync"]),
        ("with too few replicas", topics["too_few_replicas"]),
        ("on the way to other nodes", topics["moving"]),
        ("away from their preferred leader", topics["away"]),
    ]
    shown = ", ".join(f"{count:,} {text}" for text, count in named if count)
    count = counted(topics["topics"], "topic")
    print_text(
        f"{count}: {shown}." if shown else f"{count}, all led and in sync." if topics["topics"] else "No topics."
    )
    if found["troubled"]:
        heads: list[str | Column] = ["topic", "trouble", number("leader"), "in sync", "replicas", wide(number("epoch"))]
        print_table([*heads, wide(number("min_in_sync"))], [_trouble(topic) for topic in found["troubled"]])
    if found["troubled_more"]:
        print_text(f"{found['troubled_more']:,} more are in trouble: linn cluster status --topics lists them.")


def _trouble(topic: TopicTrouble) -> list[str]:
    unfit = f"unfit: {numbers_text(topic['unfit'])}" if topic["unfit"] else "unfit"
    few = f"{len(topic['nodes'])} of {topic['replicas']} replicas"
    texts = {"unfit": unfit, "too few replicas": few}
    return [
        topic["topic"],
        ", ".join(texts.get(trouble, trouble) for trouble in topic["troubles"]),
        str(topic["leader"] or "none"),
        numbers_text(topic["in_sync"]) or "none",
        numbers_text(topic["nodes"]) or "none",
        f"{topic['epoch']:,}",
        str(topic["min_in_sync"]),
    ]


def numbers_text(numbers: Iterable[int]) -> str:
    """Return numbers with commas between them."""
    return ", ".join(map(str, numbers))
