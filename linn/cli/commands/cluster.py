"""`linn cluster`: the cluster of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from linn.cli.moment import moment_text
from linn.cli.noun import StatusNoun, noun
from linn.cli.options import DEFAULT_URL, Json, Url
from linn.cli.render.console import print_json, print_text
from linn.cli.render.table import Column, number, print_table, wide
from linn.cli.session import with_client

if TYPE_CHECKING:
    from linn.descriptions import ClusterDescription, NodeDescription

app = noun("Show the cluster of a broker.", StatusNoun)


@app.command("status")
def status(url: Url = DEFAULT_URL, as_json: Json = False) -> None:
    """Show the nodes of the cluster, its controller and its metadata store, as the broker knows them.

    A node is alive, has left because it was stopped, or was given up because the metadata store had no sign of it for
    its session timeout.
    """
    found = with_client(url, lambda client: client.admin.cluster())
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
    if not found["is_registered"]:
        print_text(f"Node {found['node']} has no session, or one that may have ended.")
    heads: list[str | Column] = [number("node"), "state", "since", "given up", "host"]
    heads += map(wide, ("rack", "addresses", "session", "lost"))
    print_table(heads, [_row(node) for node in found["nodes"]])


def _row(node: NodeDescription) -> list[str]:
    state = f"{node['state']}, draining" if node["is_draining"] else node["state"]
    given_up = [end["at_ms"] for end in node["ends"] if end["reason"] == "given up"]
    return [
        str(node["node"]),
        state,
        moment_text(node["since_ms"]) if node["since_ms"] is not None else "",
        moment_text(given_up[-1]) if given_up else "",
        node["host"],
        node["rack"],
        ", ".join(f"{name} {address}" for name, address in node["addresses"].items()),
        node["session"] or "",
        node["lost"],
    ]
