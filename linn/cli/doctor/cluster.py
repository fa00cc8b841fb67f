"""Checks of `linn doctor` on the cluster of the broker that answers, and on the `[cluster]` table of the file.

Law: they are pure functions of what the broker tells and of the configuration. Advice names a command or a setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal
from urllib.parse import urlsplit

from linn.cli.doctor.finding import Finding
from linn.cli.workers.store import NAME as OF_WORKERS
from linn.core.config.config import Config
from linn.core.errors.texts import counted
from linn.descriptions import ClusterDescription, NodeDescription, TopicTrouble, Trouble

CLOCK_AHEAD_S_MAX = 1.0
"""Difference of clocks from which they are not kept by NTP, which keeps them within some milliseconds."""
RENEWALS_PER_TIMEOUT_MIN = 12
"""A session is renewed three times in its timeout, and four times as often after a failure: a store that takes longer
than that interval makes nodes lose their sessions while it has a bad moment."""
NAMED_MAX = 5
"""Topics that a finding names."""
_GUIDE = "docs/how-to/operate-a-cluster.md"


def cluster_findings(found: ClusterDescription) -> Iterator[Finding]:
    """Check a cluster as one of its nodes describes it; a broker that is alone has no findings."""
    if found["node"] is None:
        return
    yield _view(found)
    yield _store(found)
    if found["failing"]:
        text = f"the disk of node {found['node']} takes no records of {counted(found['failing'], 'topic')}"
        yield Finding("full disk", "error", text, "make room, or give topics bytes_max, retention or retention_bytes")
    yield from _nodes(found["nodes"])
    yield from _versions(found)
    yield from _clocks(found["nodes"], found["node"])
    if found["store"] != OF_WORKERS:
        yield from _places(found["nodes"])
    yield from _topics(found)


def configured_findings(config: Config) -> Iterator[Finding]:
    """Check the `[cluster]` table of a file."""
    cluster = config.cluster
    if cluster is None:
        return
    endpoints = getattr(cluster.store_settings, "endpoints", None)
    if endpoints is not None and len(endpoints) == 1 and cluster.replicas > 1:
        text = f"endpoints has {endpoints[0]} alone: while that is down, no other node can lead, and nothing be created"
        yield Finding("metadata store", "warning", text, "run three etcd members, and list all of them in endpoints")
    if cluster.replicas == 2 and cluster.min_in_sync == 2:
        text = "replicas = 2 and min_in_sync = 2: without any one node acks = all is refused"
        yield Finding("replicas", "warning", text, "replicas = 3, or min_in_sync = 1")


def _view(found: ClusterDescription) -> Finding:
    alive = sum([node["state"] == "alive" for node in found["nodes"]])
    name = f"{found['name']}: {alive} of {counted(len(found['nodes']), 'node')} alive, as node {found['node']} knows it"
    if found["problem"] is not None:
        text = f"{name}; that is {found['view_age_s']:,.0f} s old: {found['problem']}"
        return Finding("cluster", "error", text, "look after the metadata store, and endpoints in [cluster]")
    if not found["is_registered"]:
        text = f"{name}; this node has no session, or one that may have ended"
        return Finding("cluster", "error", text, "its log says why it is not registered")
    if found["controller"] is None:
        return Finding("cluster", "error", f"{name}; there is no controller", "the log of each node says why")
    return Finding("cluster", "ok", f"{name}; node {found['controller']} is the controller")


def _store(found: ClusterDescription) -> Finding:
    latency_s, timeout_s = found["store_latency_s"], found["session_timeout_s"]
    text = f"{found['store']} renewed the session in {latency_s * 1000:,.1f} ms; session_timeout is {timeout_s:g} s"
    if latency_s * RENEWALS_PER_TIMEOUT_MIN > timeout_s:
        least_s = latency_s * RENEWALS_PER_TIMEOUT_MIN
        advice = f'session_timeout = "{least_s:.0f}s" or more, or a faster disk for the store'
        return Finding("session timeout", "warning", text, advice)
    return Finding("session timeout", "ok", text)


def _nodes(nodes: Iterable[NodeDescription]) -> Iterator[Finding]:
    for node in nodes:
        number, place = f"node {node['node']}", f"node {node['node']} on {node['host']}"
        topics = f"it is a replica of {counted(node['holds'], 'topic')}" if node["holds"] else "it has no topics"
        if node["state"] in ("given up", "gone"):
            state: Literal["error", "warning"] = "error" if node["holds"] else "warning"
            advice = f"start it again; {_GUIDE} says how to replace it"
            yield Finding("nodes", state, f"{place} is {node['state']}; {topics}", advice)
        elif node["state"] == "left":
            yield Finding("nodes", "warning", f"{place} was stopped; {topics}", "start it again")
        if node["is_draining"]:
            text = f"{place} is being drained: it leads {counted(node['leads'], 'topic')}"
            yield Finding("nodes", "ok", text, f"linn cluster undrain {node['node']}, when it is to lead again")
        if node["lost"] != "none":
            text = f"{number} came back without {_LOST[node['lost']]}"
            yield Finding(
                "nodes", "warning", text, "it copies what it lacks; if this stays, the controller's log says why"
            )


_LOST = {"memory": "what was in memory", "tail": "its last records", "all": "all of its data"}


def _versions(found: ClusterDescription) -> Iterator[Finding]:
    """Check that alive nodes are of one version, and that the cluster has its level."""
    alike: dict[tuple[int, str], list[int]] = {}
    for node in found["nodes"]:
        if node["levels"]:
            alike.setdefault((node["levels"][-1], node["version"]), []).append(node["node"])
    least = min(alike, default=(0, ""))[0]
    if len(alike) > 1:
        parts = [
            f"{_names('node', nodes)}: {version} (level {level})"
            for (level, version), nodes in sorted(alike.items(), reverse=True)
        ]
        text = f"nodes run different versions of linn; the cluster has level {found['level']}; {'; '.join(parts)}"
        yield Finding("versions", "warning", text, f"restart all of them in the newest version; {_GUIDE} says how")
    elif found["level"] is not None and least > found["level"]:
        text = f"the cluster has level {found['level']}, and all nodes know level {least}"
        yield Finding("versions", "ok", text, "linn cluster upgrade, when no node goes back to an earlier version")


def _clocks(nodes: Iterable[NodeDescription], own: int) -> Iterator[Finding]:
    compared = [(node["clock_ahead_s"], node["node"]) for node in nodes if node["clock_ahead_s"] is not None]
    wrong = [(ahead_s, node) for ahead_s, node in compared if abs(ahead_s) > CLOCK_AHEAD_S_MAX]
    for ahead_s, node in wrong:
        way = "ahead of" if ahead_s > 0 else "behind"
        text = f"the clock of node {node} is {abs(ahead_s):,.1f} s {way} that of node {own}"
        yield Finding("clocks", "warning", text, "keep all clocks with NTP: retention and delays go by the leader's")
    if compared and not wrong:
        text = f"{counted(len(compared), 'other clock')} within {CLOCK_AHEAD_S_MAX:g} s of that of node {own}"
        yield Finding("clocks", "ok", text)


def _places(nodes: list[NodeDescription]) -> Iterator[Finding]:
    """Check hosts, racks and addresses of the nodes that hold topics or are alive."""
    used = [node for node in nodes if node["state"] == "alive" or node["holds"]]
    hosts, racks = {node["host"] for node in used}, {node["rack"] for node in used}
    if len(used) > 1 and len(hosts) == 1:
        text = f"all {len(used)} nodes are on {used[0]['host']}: its loss takes all replicas"
        yield Finding("hosts", "warning", text, "run them on machines of their own")
    if len(racks) > 1 and "" in racks:
        without = _names("node", [node["node"] for node in used if not node["rack"]])
        text = f"{without} without a rack: replicas may be in the same one"
        yield Finding("racks", "warning", text, "rack in the [cluster] table of each node, or of none")
    if len(hosts) > 1:
        for node in used:
            hidden = [f"{name} {address}" for name, address in node["addresses"].items() if _is_own(address)]
            if hidden:
                text = f"node {node['node']} tells others the address {', '.join(hidden)}, which only its host reaches"
                yield Finding("addresses", "warning", text, "advertise in the table of the listener")


def _is_own(address: str) -> bool:
    host = urlsplit(f"//{address}").hostname or ""
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.startswith("127.")  # noqa: S104  Nothing is bound.


def _topics(found: ClusterDescription) -> Iterator[Finding]:
    topics, alive = found["topics"], {node["node"] for node in found["nodes"] if node["state"] == "alive"}
    names = _Named(found, alive)
    if topics["leaderless"]:
        text = names.text("leaderless", topics["leaderless"], "has no leader", "have no leader")
        advice = (
            f"start {names.down('leaderless')}: one that was in sync leads then; linn cluster elect if all are lost"
        )
        yield Finding("leaderless", "error", text, advice)
    if topics["below_minimum"]:
        what = "below min_in_sync, and refuses acks = all", "below min_in_sync, and refuse acks = all"
        text = names.text("below minimum", topics["below_minimum"], f"is {what[0]}", f"are {what[1]}")
        advice = f"start {names.down('below minimum')}, or linn topics alter NAME min_in_sync=1"
        yield Finding("below minimum", "error", text, advice)
    if topics["unfit"]:
        text = names.text("unfit", topics["unfit"], "has an unfit replica", "have unfit replicas")
        unfit = _names("node", {node for topic in names.of("unfit") for node in topic["unfit"]})
        yield Finding(
            "unfit", "error", text, f"make room on the disk of {unfit}; a damaged log is copied anew by itself"
        )
    if topics["out_of_sync"]:
        text = names.text(
            "out of sync", topics["out_of_sync"], "has a replica out of sync", "have replicas out of sync"
        )
        advice = "linn topics show NAME says how far they are behind"
        if names.has_down("out of sync"):
            advice = f"start {names.down('out of sync')}; {advice}"
        yield Finding("out of sync", "warning", text, advice)
    if topics["too_few_replicas"]:
        text = names.text("too few replicas", topics["too_few_replicas"], "lacks replicas", "lack replicas")
        wanted = max((topic["replicas"] for topic in names.of("too few replicas")), default=0)
        nodes = counted(len(alive), "node")
        advice = f"replicas = {wanted} with {nodes} alive: start more, or linn topics alter NAME replicas={len(alive)}"
        yield Finding("too few replicas", "warning", text, advice)
    if topics["moving"]:
        text = f"{counted(topics['moving'], 'topic')} on the way to other nodes"
        yield Finding("moves", "ok", text, "linn cluster moves shows them, linn cluster cancel NAME calls one off")
    if topics["away"]:
        text = f"{counted(topics['away'], 'topic')} away from the preferred leader, the first of the replicas"
        yield Finding("preferred leaders", "ok", text, "they go back five minutes after it is in sync again")
    if topics["topics"] and not found["troubled"] and not found["troubled_more"]:
        yield Finding("replicas", "ok", f"{counted(topics['topics'], 'topic')}, all led and in sync")


class _Named:
    """The topics in trouble that the broker has listed."""

    def __init__(self, found: ClusterDescription, alive: set[int]) -> None:
        self._troubled = found["troubled"]
        self._alive = alive

    def of(self, trouble: Trouble) -> list[TopicTrouble]:
        """Return the listed topics with one trouble."""
        return [topic for topic in self._troubled if trouble in topic["troubles"]]

    def text(self, trouble: Trouble, count: int, one: str, many: str) -> str:
        """Say how many topics have a trouble, and name some of them."""
        named = [topic["topic"] for topic in self.of(trouble)[:NAMED_MAX]]
        such = f": {', '.join(named)}" if len(named) == count else f", such as {', '.join(named)}" if named else ""
        return f"{counted(count, 'topic')} {one if count == 1 else many}{such}"

    def has_down(self, trouble: Trouble) -> bool:
        """Whether replicas of these topics are down."""
        return bool(self._down(trouble))

    def down(self, trouble: Trouble) -> str:
        """Name the nodes that are down and hold these topics."""
        return _names("node", self._down(trouble)) if self._down(trouble) else "more nodes"

    def _down(self, trouble: Trouble) -> set[int]:
        return {node for topic in self.of(trouble) for node in topic["nodes"]} - self._alive


def _names(noun: str, numbers: Iterable[int]) -> str:
    """Name things by their numbers: "node 3", "nodes 1, 2"."""
    known = sorted(numbers)
    return f"{noun}{'s' if len(known) > 1 else ''} {', '.join(map(str, known))}"
