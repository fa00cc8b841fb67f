"""A new certificate authority with one certificate, for a broker's own TLS."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import NamedTuple

from linn.core.errors.tree import ConfigError

VALID_DAYS = 365
"""The certificate's life. The authority's key is thrown away, so that the next one is from a new authority."""
_EARLY = datetime.timedelta(minutes=5)
"""Clocks of clients may be behind."""


class NewCertificate(NamedTuple):
    """PEM texts."""

    authority: str
    """The authority's certificate, which clients trust."""
    certificate: str
    key: str


def new_certificate(hosts: Sequence[str]) -> NewCertificate:
    """Make a certificate for hosts: names or IP addresses. Raises ConfigError: `cryptography` is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise ConfigError("a certificate is made with the library cryptography: pip install 'linn[secure]'") from error

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def begun(subject: str, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(named(subject)).issuer_name(named("linn: own authority"))
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - _EARLY).not_valid_after(now + datetime.timedelta(VALID_DAYS))
        builder = builder.add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        return builder.add_extension(used_for(signatures=not is_authority, certificates=is_authority), critical=True)

    def used_for(*, signatures: bool, certificates: bool) -> x509.KeyUsage:
        # RFC 5280, 4.2.1.3: strict verifiers, such as Python's from 3.13 on, ask an authority for it.
        return x509.KeyUsage(
            digital_signature=signatures,
            key_cert_sign=certificates,
            crl_sign=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )

    def general(host: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            return x509.DNSName(host)

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    signing = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = begun("linn: own authority", authority_key, is_authority=True).add_extension(signing, critical=False)
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signing)
    names = x509.SubjectAlternativeName([general(host) for host in hosts])
    broker = begun(hosts[0], key, is_authority=False).add_extension(names, critical=False)
    broker = broker.add_extension(by, critical=False)
    broker = broker.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return NewCertificate(
        authority.sign(authority_key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(),
        broker.sign(authority_key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    )
