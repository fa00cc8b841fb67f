"""Certificates of an authority made for tests, and pairs of streams inside TLS."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path

import trio
import trustme

from linn.core.env.env import Env, Stream
from linn.core.env.tls import TlsFiles, client_context, server_tls, trust, use_pair
from linn.core.env.tls_stream import TlsStream

HOST = "127.0.0.1"
OURS = "tests"
"""The authority of brokers and clients, unless they are meant to be strangers."""


@cache
def authority(name: str) -> trustme.CA:
    """Return an authority, the same for each name."""
    return trustme.CA(organization_name=name)


@cache
def pair(*names: str, by: str = OURS, not_after: datetime | None = None) -> tuple[bytes, bytes]:
    """Return a certificate with its chain and its key, in PEM."""
    issued = authority(by).issue_cert(*names, not_after=not_after)
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems), issued.private_key_pem.bytes()


SIGNATURES: dict[str, tuple[list[str], str | None]] = {
    "rsa with sha256": (["-newkey", "rsa:2048", "-sha256"], "sha256"),
    "rsa with sha1": (["-newkey", "rsa:2048", "-sha1"], "sha256"),
    "rsa with sha512": (["-newkey", "rsa:2048", "-sha512"], "sha512"),
    "rsa-pss with sha384": (["-newkey", "rsa:2048", "-sha384", "-sigopt", "rsa_padding_mode:pss"], "sha384"),
    "p-256 with sha256": (["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-sha256"], "sha256"),
    "p-384 with sha384": (["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-sha384"], "sha384"),
    "ed25519": (["-newkey", "ed25519"], None),
}
"""Kinds of signatures: the options of `openssl req`, and the hash of the channel binding, if there is one."""


def self_signed(folder: Path, kind: str) -> bytes:
    """Write a certificate (`cert.pem`) that is signed in one of the `SIGNATURES`; return it in DER."""
    files = ["-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "36500", "-subj", "/CN=x"]
    files += ["-addext", f"subjectAltName=IP:{HOST}"]
    command = ["openssl", "req", "-x509", *SIGNATURES[kind][0], *files]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return ssl.PEM_cert_to_DER_cert((folder / "cert.pem").read_text())


def write_pair(folder: Path, certificate: bytes, key: bytes) -> None:
    """Write a pair as an operator does: the key first, whole files put in place."""
    for name, content in (("key.pem", key), ("cert.pem", certificate)):
        new = folder / f"new-{name}"
        new.touch(0o600)
        new.write_bytes(content)
        new.rename(folder / name)


def tls_table(folder: Path, more: str = "") -> str:
    """Write the pair of a broker at 127.0.0.1, and its authority; return the table `[tls.edge]`."""
    write_pair(folder, *pair(HOST, "localhost"))
    (folder / "ca.pem").write_bytes(authority(OURS).cert_pem.bytes())
    return f'[tls.edge]\ncertificate = "{folder}/cert.pem"\nkey = "{folder}/key.pem"\n{more}\n'


def context_of_client(by: str | None = OURS, shown: tuple[bytes, bytes] | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts an authority, and may show a certificate."""
    context = client_context()
    if by is not None:
        trust(context, authority(by).cert_pem.bytes(), "ca")
    if shown is not None:
        use_pair(context, *shown)
    return context


async def inline(work: Callable[[], None]) -> None:
    work()


async def shaken(env: Env, client: Stream, server: Stream) -> tuple[TlsStream, TlsStream]:
    """Put both ends of a connection into TLS."""
    certificate, key = pair(HOST, "localhost")
    tls = server_tls(TlsFiles(certificate, key), 0)
    ours = TlsStream(client, context_of_client(), server_name=HOST)
    theirs = TlsStream(server, tls.context, is_server=True, server_end_point=tls.server_end_point)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.handshake, inline)
        nursery.start_soon(theirs.handshake, env.threads.run)
    return ours, theirs
