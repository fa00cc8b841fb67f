"""TLS of a client's connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import anyio.lowlevel
from trio.lowlevel import in_trio_run

from linn.client.options import Tls
from linn.core.env.env import Stream
from linn.core.env.tls import client_context, trust, use_pair
from linn.core.env.tls_stream import TlsStream
from linn.core.errors.tls import TlsInvalid
from linn.core.errors.tree import AddressInvalid, MessageInvalid


class AnyTlsStream(TlsStream):
    """TLS under another loop than trio's."""

    __slots__ = ()

    async def _checkpoint(self) -> None:
        await anyio.lowlevel.checkpoint()


async def secured(stream: Stream, host: str, tls: Tls) -> TlsStream:
    """Put a connection to the broker at `host` into TLS, and shake hands. Closes the stream if that fails.

    Raises TlsFailed: the broker's certificate is not accepted, or the client's is not; ConnectionLost; MessageInvalid;
    AddressInvalid: no certificate can have this name.
    """
    try:
        context = tls_context(tls)
        kind = TlsStream if in_trio_run() else AnyTlsStream
        try:
            secure = kind(stream, context, server_name=host)
        except ValueError as error:
            raise AddressInvalid(f"{host!r} can't be the name in a certificate: {error}") from error
        await secure.handshake(_run)
        return secure
    except BaseException:
        await stream.aclose()
        raise


async def _run(work: Callable[[], None]) -> None:
    """Run a step of a handshake here: it takes a millisecond or two, and a client has one connection."""
    work()


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Read the files of the options, at each connection, so that renewed ones are found. Raises MessageInvalid."""
    context = client_context()
    try:
        if tls.ca is None:
            context.load_default_certs()
        else:
            trust(context, _read(tls.ca, "ca"), "ca")
        if tls.certificate is not None:
            use_pair(context, _read(tls.certificate, "certificate"), _read(tls.key or tls.certificate, "key"))
    except TlsInvalid as error:
        path = getattr(tls, error.key) or tls.certificate
        raise MessageInvalid(f"tls: {error.key}: {path}: {error.text}") from error
    return context


def _read(path: str | Path, option: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise MessageInvalid(f"tls: {option}: can't read {path}: {error.strerror}") from error
