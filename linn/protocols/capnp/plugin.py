"""The native protocol as a plugin: `protocol = "capnp"`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from linn.api import LOGIN_METHODS, LinnError, ProtocolKind, hookimpl
from linn.protocols.capnp.server import CapnpServer
from linn.wire.connection import frames_of
from linn.wire.failure import failed_by


class CapnpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a listener that speaks the native protocol."""

    keepalive_s: Annotated[
        float,
        msgspec.Meta(gt=0, description="Longest silence of a client; after three times this it is disconnected."),
    ] = msgspec.field(default=20.0, name="keepalive")
    hello_timeout_s: Annotated[
        float, msgspec.Meta(gt=0, description="How long a new client may take to say hello and to log in.")
    ] = msgspec.field(default=10.0, name="hello_timeout")


def _make(settings: CapnpSettings) -> CapnpServer:
    return CapnpServer(settings.keepalive_s, settings.hello_timeout_s)


def _refusal(error: LinnError) -> bytes:
    return b"".join(frames_of(failed_by(error)))


@hookimpl
def linn_register_protocol() -> ProtocolKind:
    """Register the native protocol."""
    return ProtocolKind("capnp", CapnpSettings, _make, refusal=_refusal, login_methods=LOGIN_METHODS)
