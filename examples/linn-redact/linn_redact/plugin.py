"""What linn finds by the entry point `redact`."""

from __future__ import annotations

from linn.core.plugins.hookspecs import hookimpl
from linn.core.ports.interceptor import InterceptorKind
from linn_redact.redact import Redact
from linn_redact.settings import RedactSettings


@hookimpl
def linn_register_interceptor() -> InterceptorKind:
    """`interceptors = ["redact"]` in a topic."""
    return InterceptorKind("redact", RedactSettings, Redact)
