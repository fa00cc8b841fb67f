"""The metrics of the cluster, as one node knows it. A broker that is alone has none of their samples."""

from __future__ import annotations

from collections.abc import Callable

from linn.core.cluster.node import ClusterNode
from linn.core.metrics.metric import Metric, Sample, Value
from linn.core.metrics.source import MetricSource


def _gauge(name: str, help: str, value: Callable[[ClusterNode], Value]) -> Metric:
    def read(broker: MetricSource) -> list[Sample]:
        return [] if broker.cluster is None else [((), value(broker.cluster))]

    return Metric(name, "gauge", (), help, read)


CLUSTER_METRICS: tuple[Metric, ...] = (
    _gauge(
        "linn_cluster_nodes_alive",
        "Nodes that have a session, as far as this one knows.",
        lambda cluster: len(cluster.view.state.sessions),
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
)
