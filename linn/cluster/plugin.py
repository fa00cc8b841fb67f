"""The protocol between the brokers of a cluster as a plugin: `protocol = "peers"`."""

from __future__ import annotations

import msgspec

from linn.cluster.links import Links
from linn.cluster.server import PeerServer
from linn.core.errors.tree import LinnError
from linn.core.gateway.protocol import ProtocolKind
from linn.core.plugins.hookspecs import hookimpl
from linn.wire.connection import frames_of
from linn.wire.failure import failed_by


class PeerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the listener for brokers: none of its own."""


def _make(settings: PeerSettings) -> PeerServer:
    return PeerServer()


def _refusal(error: LinnError) -> bytes:
    return b"".join(frames_of(failed_by(error)))


@hookimpl
def linn_register_protocol() -> ProtocolKind:
    """Register the protocol between brokers."""
    return ProtocolKind("peers", PeerSettings, _make, refusal=_refusal, links=Links)
