"""The contexts of TLS: certificates and keys, read from files, and the rules for connections.

Laws: TLS 1.2 is the lowest version of either side, without renegotiation and compression, and with ciphers that have
forward secrecy and authenticated encryption (RFC 9325). No data is taken before the handshake is over.
"""

from __future__ import annotations

import os
import re
import ssl
from typing import Literal, NoReturn

import msgspec

from linn.core.env.env import Disk
from linn.core.env.tls_stream import why
from linn.core.errors.tls import TlsInvalid
from linn.core.errors.tree import StorageError
from linn.core.security.x509 import not_after_ms, server_end_point

PEM_BYTES_MAX = 1 << 20
"""Limit of a file in PEM. A chain has some KiB; a bundle of all public certificate authorities 250 KiB."""
_CIPHERS_OF_1_2 = "ECDHE+AESGCM:ECDHE+CHACHA20"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
Version = Literal["1.2", "1.3"]
ClientCertificate = Literal["none", "optional", "required"]


class TlsFiles(msgspec.Struct, frozen=True):
    """The contents of the files of one side."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None


class ServerTls(msgspec.Struct, frozen=True):
    """The TLS of a listener, for its next connections."""

    context: ssl.SSLContext
    files: TlsFiles
    not_after_ms: int
    """The end of the certificate's validity, in milliseconds since 1970."""
    server_end_point: bytes | None
    """The channel binding of the certificate (RFC 5929); None if there is none for its signature."""


def read_files(disk: Disk, certificate: str, key: str, client_ca: str | None) -> TlsFiles:
    """Read the files of a listener. Raises TlsInvalid, which names the setting."""

    def read(path: str, setting: str, *, private: bool = False) -> bytes:
        try:
            return disk.read_named(path, PEM_BYTES_MAX, private=private)
        except StorageError as error:
            raise TlsInvalid(error.text, setting) from error

    authorities = read(client_ca, "client_ca") if client_ca is not None else None
    return TlsFiles(read(certificate, "certificate"), read(key, "key", private=True), authorities)


def server_tls(
    files: TlsFiles, now_ms: int, *, client_certificate: ClientCertificate = "none", lowest: Version = "1.3"
) -> ServerTls:
    """Make the TLS of a listener.

    Args:
        client_certificate: whether clients are asked for a certificate, and refused without one; one that `client_ca`
            has not signed is always refused.

    Raises TlsInvalid: a file is damaged, the key does not belong to the certificate, or the certificate has expired.
    """
    der = _first_certificate(files.certificate)
    end_ms = _end_ms(der)
    if end_ms <= now_ms:
        raise TlsInvalid("the certificate has expired", "certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, lowest)
    use_pair(context, files.certificate, files.key)
    if files.client_ca is not None:
        trust(context, files.client_ca, "client_ca")
    context.verify_mode = _VERIFY[client_certificate]
    # Tickets would lie unread at a client that only sends, and its close would then reset the connection, which loses
    # its last messages. The number is that of TLS 1.3, the option that of 1.2.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return ServerTls(context, files, end_ms, server_end_point(der))


def client_context() -> ssl.SSLContext:
    """Make the context of a client without authorities, which always checks the broker's name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False  # RFC 9525, 2: only the alternative names count.
    _limit(context, "1.2")
    return context


def _limit(context: ssl.SSLContext, lowest: Version) -> None:
    context.minimum_version = _VERSIONS[lowest]
    context.set_ciphers(_CIPHERS_OF_1_2)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def trust(context: ssl.SSLContext, authorities: bytes, setting: str) -> None:
    """Trust certificates in PEM. Raises TlsInvalid."""
    text = authorities.decode("ascii", "replace")
    if not _CERTIFICATE.search(text):
        raise TlsInvalid("the file has no certificate in PEM", setting)
    try:
        context.load_verify_locations(cadata="\n".join(_CERTIFICATE.findall(text)))
    except (ssl.SSLError, ValueError) as error:
        raise TlsInvalid("the file has a damaged certificate", setting) from error


def use_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Show a certificate, with its chain, and prove it by its key; both in PEM. Raises TlsInvalid."""
    try:
        # OpenSSL takes a path. This one is a file in memory, so that what is loaded is what was checked.
        file = os.memfd_create("linn-tls", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(file), "wb") as memory:
                memory.write(certificate + b"\n" + key)
            context.load_cert_chain(f"/proc/self/fd/{file}", password=_no_password)
        finally:
            os.close(file)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsInvalid("the key does not belong to the certificate", "key") from error
        if (error.reason or "").endswith(("TOO_SMALL", "TOO_WEAK")):
            raise TlsInvalid(f"OpenSSL does not accept the certificate: {why(error)}", "certificate") from error
        raise TlsInvalid("the file has no private key in PEM, or a damaged one", "key") from error
    except _Encrypted:
        raise TlsInvalid("the key is encrypted; linn has no password for it", "key") from None


class _Encrypted(Exception):
    """OpenSSL asks for the password of a key."""


def _no_password() -> NoReturn:
    raise _Encrypted


def _first_certificate(pem: bytes) -> bytes:
    """The DER of the first certificate, which is the listener's own. Raises TlsInvalid."""
    found = _CERTIFICATE.search(pem.decode("ascii", "replace"))
    if found is None:
        raise TlsInvalid("the file has no certificate in PEM", "certificate")
    try:
        return ssl.PEM_cert_to_DER_cert(found[0])
    except ValueError as error:
        raise TlsInvalid("the certificate is damaged", "certificate") from error


def _end_ms(der: bytes) -> int:
    try:
        return not_after_ms(der)
    except ValueError as error:
        raise TlsInvalid("the certificate is damaged", "certificate") from error
