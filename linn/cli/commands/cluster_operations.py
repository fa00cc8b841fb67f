"""`linn cluster`: operations: drain and remove nodes, move and balance topics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linn.cli.completion import node_numbers, topic_names
from linn.cli.confirm import confirm
from linn.cli.exit_code import complain
from linn.cli.options import DEFAULT_URL, Json, Url, Yes
from linn.cli.render.console import print_json, print_result, print_text
from linn.cli.render.table import number, print_table
from linn.cli.session import with_client
from linn.core.errors.texts import counted, one_line

if TYPE_CHECKING:
    from linn.descriptions import TopicMoveDescription

WAIT_INTERVAL_S = 0.5
"""Interval of questions about a node that hands its topics over."""

Node = Annotated[int, typer.Argument(min=1, metavar="NODE", help="Number of the node.", autocompletion=node_numbers)]
Nodes = Annotated[
    list[int],
    typer.Argument(
        min=1,
        metavar="NODE...",
        help="Numbers of the nodes to hold it, the preferred leader first.",
        autocompletion=node_numbers,
    ),
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)]
Leader = Annotated[int | None, typer.Option("--leader", min=1, metavar="NODE", help="The node that is to lead.")]
Unclean = Annotated[bool, typer.Option("--unclean", help="Let a replica lead that may lack confirmed records.")]
GiveUp = Annotated[
    list[int] | None,
    typer.Option("--give-up", min=1, metavar="NODE", help="A node whose records are given up. May be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only check the operation.")]
Wait = Annotated[
    float | None,
    typer.Option("--wait", min=0, metavar="SECONDS", help="Wait until the node leads nothing, at most so long."),
]


def add_operations(app: typer.Typer) -> None:
    """Add the commands to the group of a noun."""
    for name, command in _COMMANDS.items():
        app.command(name)(command)


def drain(
    node: Node, wait: Wait = None, dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Let a node lead nothing, and get no topics, until it is undrained, also over restarts.

    Other nodes lead its topics as soon as they have everything. It still holds its replicas. Refused where a topic
    would have fewer replicas in sync than it needs without the node.
    """
    found = _perform(url, "drain", dry_run, node=node)
    if wait and not dry_run:
        found = _waited(url, found, wait)
    said = f"node {node} {_would(dry_run, 'drains', 'would drain')}: it leads {_topics(found['leads'])}"
    print_result(found | {"dry_run": dry_run}, said, as_json=as_json)


def _waited(url: str, found: dict[str, Any], wait_s: float) -> dict[str, Any]:
    """Ask again until a node leads nothing. Raises typer.Exit: it still does."""
    left = int(wait_s / WAIT_INTERVAL_S) + 1
    while found["leads"] and left:
        time.sleep(WAIT_INTERVAL_S)
        left -= 1
        found |= {"leads": _perform(url, "drain", True, node=found["node"])["leads"]}
    if found["leads"]:
        complain(f"node {found['node']} still leads {_topics(found['leads'])}: linn cluster moves shows them")
        raise typer.Exit(1)
    return found


def undrain(node: Node, dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Let a node lead and get topics again. Topics that prefer it come back by themselves."""
    found = _perform(url, "undrain", dry_run, node=node)
    said = f"node {node} {_would(dry_run, 'takes', 'would take')} topics again"
    print_result(found | {"dry_run": dry_run}, said, as_json=as_json)


def remove(
    node: Node, dry_run: DryRun = False, yes: Yes = False, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Move all replicas of a node to other nodes, and forget it when it has stopped.

    The copies go on for as long as it takes: `linn cluster moves` shows the rest. `linn cluster undrain` calls it
    off. Refused where too few nodes would be left for a topic.
    """
    if not (yes or dry_run):
        question = f"All replicas of node {node} go to other nodes. Remove it?"
        confirm(url, "cluster.remove", question, "not removed", node=node)
    found = _perform(url, "remove", dry_run, node=node)
    said = f"node {node} {_would(dry_run, 'leaves', 'would leave')}: it holds {_topics(found['holds'])}"
    print_result(found | {"dry_run": dry_run}, said, as_json=as_json)


def reassign(
    topic: Topic, nodes: Nodes, dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False
) -> None:
    """Move a topic to other nodes, the preferred leader first.

    The former nodes hold it until the others have everything: nothing is lost, whatever fails. Copies are as fast as
    `catch_up_rate` lets them.
    """
    _print_moved(_perform(url, "reassign", dry_run, topic=topic, nodes=nodes), dry_run, as_json)


def cancel(topic: Topic, dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Go back to the nodes that held a topic before it began to move. Nothing happens where it does not move."""
    _print_moved(_perform(url, "cancel", dry_run, topic=topic), dry_run, as_json)


def _print_moved(found: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    topic, target = one_line(found["topic"]), _listed(found["target"])
    said = f"topic {topic} {_would(dry_run, 'goes', 'would go')} from nodes {_listed(found['replicas'])} to {target}"
    if not found["changed"]:
        said = f"nothing to do: topic {topic} is on nodes {target}, or goes there"
    print_result(found | {"dry_run": dry_run}, said, as_json=as_json)


def balance(dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Spread topics and their preferred leaders evenly over the nodes, after nodes were added.

    Moves as few topics as possible, and none twice: what moves already counts where it goes. Replicas that are apart in
    racks and on hosts stay so. Nodes that drain or are down, and topics with replicas on such, are left alone.
    """
    found = _perform(url, "balance", dry_run)
    if as_json:
        print_json(found | {"dry_run": dry_run})
        return
    if found["moves"]:
        rows = ([move["topic"], _listed(move["replicas"]), _listed(move["target"])] for move in found["moves"])
        print_table(["topic", "from", "to"], rows)
    if found["moving"]:
        print_text(f"{_topics(found['moving'])} moved already: linn cluster moves shows them")
    if found["left"]:
        print_text(f"{_topics(found['left'])} have to move after these: balance again when they have")
    print_text(_said_of_balance(len(found["moves"]), dry_run))


def _said_of_balance(count: int, dry_run: bool) -> str:
    go = _would(dry_run, "goes" if count == 1 else "go", "would go")
    return f"{_topics(count)} {go} to other nodes or leaders" if count else "nothing to do: the nodes are even"


def elect(
    topic: Topic,
    leader: Leader = None,
    unclean: Unclean = False,
    give_up: GiveUp = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Let another replica lead a topic now: the preferred one, or --leader.

    With --unclean, a replica that may lack confirmed records leads a topic which no node can lead without loss. Name
    the nodes whose records are given up: they cut them off when they are back.
    """
    asked: dict[str, Any] = {"topic": topic, "leader": leader, "unclean": unclean, "give_up": give_up or []}
    if unclean and not (yes or dry_run):
        lost = f"that only nodes {_listed(give_up or [])} have are lost"
        question = f"Confirmed records of topic {one_line(topic)} {lost}. Do it?"
        confirm(url, "cluster.elect", question, "nothing was done", **asked)
    found = _perform(url, "elect", dry_run, **asked)
    said = "nothing to do"
    if found["changed"]:
        said = f"topic {one_line(topic)} {_would(dry_run, 'gets', 'would get')} another leader"
    print_result(found | {"dry_run": dry_run}, said, as_json=as_json)


def upgrade(dry_run: DryRun = False, url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Let the cluster use all features of this version, after all brokers were restarted in it.

    Brokers of an older version can't join from then on. Refused while one is alive.
    """
    found = _perform(url, "upgrade", dry_run)
    said = f"the cluster has level {found['level']}: nothing to do"
    if found["changed"]:
        said = f"the cluster {_would(dry_run, 'has', 'would have')} level {found['level']}; it had {found['before']}"
    print_result(found | {"dry_run": dry_run}, said, as_json=as_json)


def moves(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """List the topics that move to other nodes, or whose leader is about to hand them over."""
    found: list[TopicMoveDescription] = with_client(url, lambda client: client.admin.perform("cluster.moves"))
    if as_json:
        print_json(found)
    elif not found:
        print("no topic moves")
    else:
        print_table(["topic", number("leader"), number("next leader"), "from", "to", "in sync"], map(_row, found))


def _row(move: TopicMoveDescription) -> list[str]:
    to = _listed(move["target"]) + (" (cancelled)" if move["is_cancelled"] else "")
    successor = "" if move["successor"] is None else str(move["successor"])
    return [move["topic"], str(move["leader"]), successor, _listed(move["replicas"]), to, _listed(move["in_sync"])]


def _perform(url: str, verb: str, validate_only: bool, **asked: Any) -> dict[str, Any]:
    asked |= {"validate_only": validate_only}
    return with_client(url, lambda client: client.admin.perform(f"cluster.{verb}", **asked))


def _would(dry_run: bool, now: str, would: str) -> str:
    return would if dry_run else now


def _topics(count: int) -> str:
    return counted(count, "topic")


def _listed(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes))


_COMMANDS: dict[str, Any] = {
    "drain": drain,
    "undrain": undrain,
    "remove": remove,
    "reassign": reassign,
    "cancel": cancel,
    "moves": moves,
    "balance": balance,
    "elect": elect,
    "upgrade": upgrade,
}
