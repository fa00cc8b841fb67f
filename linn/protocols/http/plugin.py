"""Metrics over HTTP as a plugin: `protocol = "metrics"`. Its dependencies are loaded when a listener uses it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from linn.api import PluginError, ProtocolKind, ProtocolServer, hookimpl


class MetricsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a listener that serves metrics."""

    per_connection: Annotated[
        bool,
        msgspec.Meta(description="Whether each connection has samples of its own: many, if there are many clients."),
    ] = False
    idle_timeout_s: Annotated[
        float, msgspec.Meta(gt=0, description="How long a connection may be open without a complete request.")
    ] = msgspec.field(default=5.0, name="idle_timeout")
    connection_age_max_s: Annotated[
        float,
        msgspec.Meta(
            gt=0,
            description="Longest life of a connection, so that stuck ones do not accumulate. A scraper reconnects.",
        ),
    ] = msgspec.field(default=60.0, name="connection_age_max")


def _make(settings: MetricsSettings) -> ProtocolServer:
    try:
        from linn.protocols.http.server import MetricsServer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("linn"):
            raise
        text = f'the protocol "metrics" needs {error.name}, which is not installed: pip install "linn[metrics]"'
        raise PluginError(text) from error
    return MetricsServer(
        per_connection=settings.per_connection,
        idle_timeout_s=settings.idle_timeout_s,
        connection_age_max_s=settings.connection_age_max_s,
    )


@hookimpl
def linn_register_protocol() -> ProtocolKind:
    """Register metrics for Prometheus, with health and readiness."""
    methods = ("peer", "certificate", "token", "plain")
    return ProtocolKind("metrics", MetricsSettings, _make, watches=True, url_scheme="http", login_methods=methods)
