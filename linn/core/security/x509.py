"""Two facts of an X.509 certificate that Python's ssl does not tell: its end, and the channel binding of RFC 5929.

The certificate has been checked by OpenSSL. Only the fields before those facts are walked over, so that no library for
certificates is needed, neither in the broker nor in clients.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

_VERSION, _UTC_TIME = 0xA0, 0x17

_HASHES = {
    "2a864886f70d010104": "sha256",  # md5WithRSAEncryption
    "2a864886f70d010105": "sha256",  # sha1WithRSAEncryption
    "2a864886f70d01010e": "sha224",
    "2a864886f70d01010b": "sha256",
    "2a864886f70d01010c": "sha384",
    "2a864886f70d01010d": "sha512",
    "2a8648ce3d0401": "sha256",  # ecdsa-with-SHA1
    "2a8648ce3d040301": "sha224",
    "2a8648ce3d040302": "sha256",
    "2a8648ce3d040303": "sha384",
    "2a8648ce3d040304": "sha512",
}
"""The hash of the binding by the object identifier of a signature, in hexadecimal (RFC 4055, 5758). RFC 5929, 4.1:
SHA-256 stands in for MD5 and SHA-1."""
_PSS = "2a864886f70d01010a"
_PSS_HASHES = {
    "608648016503040204": "sha224",
    "608648016503040201": "sha256",
    "608648016503040202": "sha384",
    "608648016503040203": "sha512",
}


def server_end_point(der: bytes) -> bytes | None:
    """Return the channel binding `tls-server-end-point` (RFC 5929, 4.1) of a server's certificate.

    None if its signature names no hash, as Ed25519: the binding is not defined then.

    Raises ValueError: not a certificate.
    """
    algorithm = _signature_algorithm(der)
    object_id, parameters = _next(algorithm)[1:]
    name = _HASHES.get(object_id.hex())
    if object_id.hex() == _PSS:
        name = _pss_hash(parameters)
    return hashlib.new(name, der).digest() if name is not None else None


def not_after_ms(der: bytes) -> int:
    """Return the end of a certificate's validity, in milliseconds since 1970. Raises ValueError: not a certificate."""
    rest = _next(_next(der)[1])[1]
    if rest[:1] == bytes([_VERSION]):
        rest = _next(rest)[2]
    for _ in ("serial number", "signature", "issuer"):
        rest = _next(rest)[2]
    tag, text, _ = _next(_next(_next(rest)[1])[2])
    # RFC 5280, 4.1.2.5: a year of two digits from 50 on is of the twentieth century; Python's limit is 69.
    written = text.decode("ascii")
    if tag == _UTC_TIME:
        written = ("19" if written[:2] >= "50" else "20") + written
    return int(datetime.strptime(written, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def _signature_algorithm(der: bytes) -> bytes:
    """The content of a certificate's AlgorithmIdentifier."""
    after_body = _next(_next(der)[1])[2]
    return _next(after_body)[1]


def _pss_hash(parameters: bytes) -> str | None:
    """The hash that the parameters of RSASSA-PSS name (RFC 4055, 3.1); SHA-1, the default, counts as SHA-256."""
    content = _next(parameters)[1] if parameters else b""
    if content[:1] != b"\xa0":
        return "sha256"
    object_id = _next(_next(_next(content)[1])[1])[1]
    return _PSS_HASHES.get(object_id.hex())


def _next(der: bytes) -> tuple[int, bytes, bytes]:
    """Split the first value off: its tag, its content, and the rest. Raises ValueError."""
    if len(der) < 2:
        raise ValueError("a certificate ends too early")
    size, start = der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start])
    if len(der) < start + size:
        raise ValueError("a certificate ends too early")
    return der[0], der[start : start + size], der[start + size :]
