"""Keys of an identity provider, and the tokens that it signs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

KEY, OTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
ISSUER, AUDIENCE = "https://id.example", "linn"


def write_keys(path: Path, *keys: ec.EllipticCurvePrivateKey) -> None:
    """Write a JSON Web Key Set of public keys."""
    algorithm: Any = jwt.algorithms.ECAlgorithm
    path.write_text(json.dumps({"keys": [json.loads(algorithm.to_jwk(key.public_key())) for key in keys]}))


def token(user: str, key: ec.EllipticCurvePrivateKey = KEY, **claims: object) -> str:
    """Return a token that ends in an hour, with further claims."""
    ends = datetime.now(UTC) + timedelta(hours=1)
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "exp": ends, **claims}
    return jwt.encode(claims, key, algorithm="ES256")
