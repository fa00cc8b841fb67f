"""The metrics of the cluster, as one node knows it. A broker that is alone has none of their samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from linn.core.cluster.health import NO_TOPICS
from linn.core.cluster.node import ClusterNode
from linn.core.cluster.peers import Forwarded
from linn.core.log.replication.events import Lag
from linn.core.metrics.metric import Metric, Sample, Value
from linn.core.metrics.source import MetricSource
from linn.core.replicas.replication_counts import ReplicationCounts


def _gauge(name: str, help: str, value: Callable[[ClusterNode], Value]) -> Metric:
    def read(broker: MetricSource) -> list[Sample]:
        return [] if broker.cluster is None else [((), value(broker.cluster))]

    return Metric(name, "gauge", (), help, read)


def _counter(name: str, help: str, value: Callable[[ReplicationCounts], int]) -> Metric:
    """Make a counter of this broker's replicas."""

    def read(broker: MetricSource) -> list[Sample]:
        replication = broker.replication()
        return [] if replication is None else [((), value(replication.counts))]

    return Metric(name, "counter", (), help, read)


def _forwarded(name: str, help: str, value: Callable[[Forwarded], int]) -> Metric:
    def read(broker: MetricSource) -> list[Sample]:
        links = broker.links()
        return [] if links is None else [((), value(links.forwarded))]

    return Metric(name, "counter", (), help, read)


def _roles(broker: MetricSource) -> list[Sample]:
    replication = broker.replication()
    if replication is None:
        return []
    leading = sum([replica.leader is not None for replica in replication.replicas.values()])
    return [(("leader",), leading), (("follower",), len(replication.replicas) - leading)]


def _in_sync_changes(broker: MetricSource) -> list[Sample]:
    replication = broker.replication()
    if replication is None:
        return []
    return [(("expand",), replication.counts.expansions), (("shrink",), replication.counts.shrinkages)]


def _followers(name: str, help: str, value: Callable[[Sequence[Lag]], Value]) -> Metric:
    """Make a gauge of each live node with a replica of topics that this one leads, from the lags of these topics."""

    def read(broker: MetricSource) -> list[Sample]:
        found: dict[int, list[Lag]] = {}
        if broker.cluster is not None and (replication := broker.replication()) is not None:
            for replica in replication.replicas.values():
                for node, lag in replica.lags().items():
                    found.setdefault(node, []).append(lag)
            alive = broker.cluster.view.state.sessions
            found = {node: lags for node, lags in sorted(found.items()) if node in alive}
        return [((str(node),), value(lags)) for node, lags in found.items()]

    return Metric(name, "gauge", ("node",), help, read)


CLUSTER_METRICS: tuple[Metric, ...] = (
    _gauge(
        "linn_cluster_nodes",
        "Nodes that the cluster knows, alive or not.",
        lambda cluster: len({*cluster.view.state.nodes, *cluster.view.state.sessions}),
    ),
    _gauge(
        "linn_cluster_nodes_alive",
        "Nodes that have a session, as far as this one knows.",
        lambda cluster: len(cluster.view.state.sessions),
    ),
    _gauge(
        "linn_cluster_nodes_draining",
        "Nodes that are drained: they lead nothing that another node can lead.",
        lambda cluster: sum([entry.draining for entry in cluster.view.state.nodes.values()]),
    ),
    _gauge(
        "linn_cluster_is_controller",
        "1 if this node is the controller, as far as it knows.",
        lambda cluster: int(cluster.is_controller),
    ),
    _gauge(
        "linn_cluster_is_registered",
        "1 while this node has a session that can't have ended.",
        lambda cluster: int(cluster.is_registered),
    ),
    _gauge(
        "linn_cluster_store_latency_seconds",
        "How long the last renewal of the node's session took, an answer of the metadata store included.",
        lambda cluster: cluster.store_latency_s,
    ),
    _gauge(
        "linn_cluster_view_age_seconds",
        "Time since the node knew that it missed no change in the metadata store: 0 while it does.",
        lambda cluster: cluster.view.age_s(),
    ),
    Metric(
        "linn_cluster_clock_ahead_seconds",
        "gauge",
        ("node",),
        "Lead of the clock of another node over this node's, negative where it is behind. Of nodes that are linked.",
        lambda broker: (
            []
            if broker.cluster is None
            else [((str(node),), ahead_s) for node, ahead_s in broker.cluster.clocks.ahead_s().items()]
        ),
    ),
    Metric(
        "linn_cluster_replicas",
        "gauge",
        ("role",),
        "Topics of which this node has a replica, by its role: `leader` or `follower`.",
        _roles,
    ),
    _gauge(
        "linn_cluster_replicas_out_of_sync",
        "Topics of which this node is a replica that is out of sync, by the metadata.",
        lambda cluster: cluster.health.nodes.get(cluster.number, NO_TOPICS).out_of_sync,
    ),
    _gauge(
        "linn_cluster_replicas_failing",
        "Topics of which the disk of this node has not taken the last records.",
        lambda cluster: cluster.failing_count(),
    ),
    _gauge(
        "linn_cluster_topics",
        "Topics of the whole cluster, by the metadata. This metric and the next ones are the same at all nodes.",
        lambda cluster: cluster.health.topics,
    ),
    _gauge(
        "linn_cluster_topics_leaderless",
        "Topics that no live node leads.",
        lambda cluster: cluster.health.counts["leaderless"],
    ),
    _gauge(
        "linn_cluster_topics_below_minimum",
        "Topics with fewer live in-sync replicas than `min_in_sync`: `acks = all` is refused.",
        lambda cluster: cluster.health.counts["below minimum"],
    ),
    _gauge(
        "linn_cluster_topics_out_of_sync",
        "Topics with a replica that is out of sync, or down.",
        lambda cluster: cluster.health.counts["out of sync"],
    ),
    _gauge(
        "linn_cluster_topics_unfit",
        "Topics with a replica whose disk is full, or whose log was damaged.",
        lambda cluster: cluster.health.counts["unfit"],
    ),
    _gauge(
        "linn_cluster_topics_few_replicas",
        "Topics with fewer replicas than `replicas`, because there are too few nodes.",
        lambda cluster: cluster.health.counts["too few replicas"],
    ),
    _gauge(
        "linn_cluster_topics_moving",
        "Topics whose replicas are being moved to other nodes.",
        lambda cluster: cluster.health.moving,
    ),
    _gauge(
        "linn_cluster_topics_away",
        "Topics that another node leads than their preferred one, the first of their replicas.",
        lambda cluster: cluster.health.away,
    ),
    _gauge(
        "linn_cluster_members_out_of_sync",
        "Replicas that are out of sync or down, over all topics.",
        lambda cluster: cluster.health.out_of_sync_members,
    ),
    _counter(
        "linn_cluster_elections_total",
        "Times that this node began to lead a topic, in a new epoch.",
        lambda counts: counts.elections,
    ),
    Metric(
        "linn_cluster_in_sync_changes_total",
        "counter",
        ("change",),
        "In-sync sets that this node has changed as the leader: `expand` or `shrink`.",
        _in_sync_changes,
    ),
    _followers(
        "linn_cluster_follower_lag_seconds",
        "Longest time since a live node had everything of a topic that this one leads, and it has a replica of.",
        lambda lags: max([lag.seconds for lag in lags]),
    ),
    _followers(
        "linn_cluster_follower_lag_records",
        "Records that a live node has not confirmed yet, of topics that this one leads, and has a replica of. Topics "
        "that it has not followed since their leader was elected don't count.",
        lambda lags: sum([lag.records or 0 for lag in lags]),
    ),
    _counter(
        "linn_cluster_replicated_sent_bytes_total",
        "Bytes of batches that this node has sent to followers.",
        lambda counts: counts.sent_bytes,
    ),
    _counter(
        "linn_cluster_replicated_received_bytes_total",
        "Bytes of batches that this node has received as a follower.",
        lambda counts: counts.received_bytes,
    ),
    _forwarded(
        "linn_cluster_forwarded_publishes_total",
        "Publish requests of clients of this node that it passed on to the leaders of their topics.",
        lambda forwarded: forwarded.publishes,
    ),
    _forwarded(
        "linn_cluster_forwarded_published_bytes_total",
        "Bytes of the batches in these requests.",
        lambda forwarded: forwarded.published_bytes,
    ),
    _forwarded(
        "linn_cluster_forwarded_delivered_bytes_total",
        "Bytes of batches from leaders that this node passed on to its clients.",
        lambda forwarded: forwarded.delivered_bytes,
    ),
)
