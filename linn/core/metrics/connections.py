"""The metrics of listeners, of each connection while it is open, and of replies."""

from __future__ import annotations

from collections.abc import Callable

from linn.core.connections.listener_traffic import ListenerTraffic, Traffic
from linn.core.metrics.metric import Metric, MetricKind, Sample
from linn.core.metrics.source import MetricSource

_LISTENER = ("listener", "protocol")
_CONNECTION = ("connection", "peer", "listener", "protocol")
"""`connection` is a number assigned by the broker: peers reconnect, and Unix sockets have no peer name."""


def _listener(name: str, kind: MetricKind, help: str, value: Callable[[ListenerTraffic], int]) -> Metric:
    def read(broker: MetricSource) -> list[Sample]:
        listeners = broker.connections.traffic.values()
        return [((traffic.listener, traffic.protocol), value(traffic)) for traffic in listeners]

    return Metric(name, kind, _LISTENER, help, read)


def _connection(name: str, kind: MetricKind, help: str, value: Callable[[Traffic], int]) -> Metric:
    def read(broker: MetricSource) -> list[Sample]:
        return [
            ((str(connection.number), connection.peer, traffic.listener, traffic.protocol), value(connection.read()))
            for traffic in broker.connections.traffic.values()
            for connection in traffic.open.values()
        ]

    return Metric(name, kind, _CONNECTION, help, read, per_connection=True)


def _failed(broker: MetricSource) -> list[Sample]:
    return [
        ((traffic.listener, traffic.protocol, code), count)
        for traffic in broker.connections.traffic.values()
        for code, count in traffic.failed.items()
    ]


CONNECTION_METRICS: tuple[Metric, ...] = (
    _listener("linn_listener_connections", "gauge", "Connections that are open.", lambda traffic: len(traffic.open)),
    _listener(
        "linn_listener_connections_opened_total",
        "counter",
        "Connections that were accepted.",
        lambda traffic: traffic.opened,
    ),
    _listener(
        "linn_listener_connections_refused_total",
        "counter",
        "Connections that were closed at once because of a limit.",
        lambda traffic: traffic.refused,
    ),
    Metric(
        "linn_listener_connections_failed_total",
        "counter",
        (*_LISTENER, "code"),
        "Connections that ended with an error, by its code.",
        _failed,
    ),
    _listener(
        "linn_listener_received_bytes_total",
        "counter",
        "Bytes received, as the protocol counts them.",
        lambda traffic: traffic.total().received_bytes,
    ),
    _listener(
        "linn_listener_sent_bytes_total",
        "counter",
        "Bytes sent, as the protocol counts them.",
        lambda traffic: traffic.total().sent_bytes,
    ),
    _listener(
        "linn_listener_inflight_requests",
        "gauge",
        "Requests that are not answered yet.",
        lambda traffic: traffic.total().inflight_requests,
    ),
    _listener(
        "linn_listener_unsent_bytes",
        "gauge",
        "Output that clients have not taken yet.",
        lambda traffic: traffic.total().unsent_bytes,
    ),
    _listener(
        "linn_listener_held_bytes",
        "gauge",
        "Publishes that wait for room in a topic.",
        lambda traffic: traffic.total().held_bytes,
    ),
    Metric(
        "linn_tls_certificate_left_days",
        "gauge",
        ("tls",),
        "Days until the certificate of a TLS table ends, for new connections; negative afterwards.",
        lambda broker: [((name,), days) for name, days in broker.certificates.days_left.items()],
    ),
    _connection(
        "linn_connection_received_bytes_total",
        "counter",
        "Bytes received on the connection.",
        lambda traffic: traffic.received_bytes,
    ),
    _connection(
        "linn_connection_sent_bytes_total",
        "counter",
        "Bytes sent on the connection.",
        lambda traffic: traffic.sent_bytes,
    ),
    _connection(
        "linn_connection_inflight_requests",
        "gauge",
        "Requests of the connection that are not answered yet.",
        lambda traffic: traffic.inflight_requests,
    ),
    _connection(
        "linn_connection_unsent_bytes",
        "gauge",
        "Output that the client has not taken yet.",
        lambda traffic: traffic.unsent_bytes,
    ),
    _connection(
        "linn_connection_held_bytes",
        "gauge",
        "Publishes of the connection that wait for room in a topic.",
        lambda traffic: traffic.held_bytes,
    ),
    Metric(
        "linn_inboxes",
        "gauge",
        (),
        "Connections that have opened an inbox for replies to their requests.",
        lambda broker: [((), len(broker.connections.inboxes))],
    ),
    Metric(
        "linn_replies_total",
        "counter",
        (),
        "Replies that were passed to the connections of their requesters.",
        lambda broker: [((), broker.connections.inboxes.delivered)],
    ),
    Metric(
        "linn_replies_dropped_total",
        "counter",
        (),
        "Replies that were refused, as the requester was gone or did not read.",
        lambda broker: [((), broker.connections.inboxes.dropped)],
    ),
)
