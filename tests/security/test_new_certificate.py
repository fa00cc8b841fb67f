"""The certificate of `linn init --secure`, before a verifier that insists on RFC 5280; and sessions without tickets."""

from __future__ import annotations

import contextlib
import ssl

import pytest

from linn.cli.new_certificate import new_certificate
from linn.core.env.tls import TlsFiles, server_tls


def _shake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> ssl.SSLObject:
    """Put both ends into TLS, in memory. Raises SSLError; returns the client's end."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_strict_client_takes_the_certificate_for_its_names_alone(name: str) -> None:
    made = new_certificate(["localhost", "127.0.0.1"])
    server = server_tls(TlsFiles(made.certificate.encode(), made.key.encode()), 0).context
    client = ssl.create_default_context(cadata=made.authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert _shake(client, server, name).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for .broker\.example."):
        _shake(client, server, "broker.example")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed certificate|unable to get"):
        _shake(ssl.create_default_context(), server, name)


def test_a_session_of_1_2_has_no_ticket() -> None:
    made = new_certificate(["localhost"])
    server = server_tls(TlsFiles(made.certificate.encode(), made.key.encode()), 0, lowest="1.2").context
    client = ssl.create_default_context(cadata=made.authority)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    session = _shake(client, server, "localhost").session
    assert session is not None
    assert not session.has_ticket
