"""The certificate of a test's broker, by an authority of its own. Needs trustme, of the extra `testing`."""

from __future__ import annotations

from pathlib import Path

AUTHORITY = "ca.pem"


def tls_table(folder: Path, *names: str) -> dict[str, str]:
    """Write a certificate for the names, its key and its authority into `folder`; return the table `[tls.NAME]`."""
    import trustme

    authority = trustme.CA()
    issued = authority.issue_cert(*names)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    authority.cert_pem.write_to_path(str(folder / AUTHORITY))
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.touch(0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    return {"certificate": str(certificate), "key": str(key)}
