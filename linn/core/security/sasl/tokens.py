"""Tokens: JSON Web Tokens (RFC 7519) signed by keys that a local file holds, as SASL's OAUTHBEARER (RFC 7628).

Laws: only keys of the file count, and only public ones are taken: no token chooses its key by address (`jku`, `x5u`,
`jwk`, `x5c`), and a public key is no secret of HMAC (CVE-2021-22160). The algorithm must be on the list,
which has no `none` and no HMAC. Issuer, audience and end are required. Encrypted tokens are refused (CVE-2026-29000).
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from linn.core.errors.tree import ConfigError, PluginError
from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.prepare import check_name

BEARER = "OAUTHBEARER"
TOKEN_BYTES_MAX = 8 << 10
"""Limit of a token. Identity providers stay below it, because HTTP servers take no longer headers."""
KEYS_BYTES_MAX = 256 << 10
"""Limit of the file of keys: a hundred of them."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Algorithms with a public key."""
_CHOOSING = ("jku", "x5u", "jwk", "x5c", "crit", "zip", "enc")
ROLES_MAX = 100


class TokenRules(NamedTuple):
    """Requirements on a token, and the names of its claims."""

    issuer: str
    audience: str
    algorithms: Sequence[str] = ("RS256", "ES256", "Ed25519")
    user_claim: str = "sub"
    roles_claim: str = ""
    """The claim with a list of roles; "": the user's own roles count."""


class TokenUser(NamedTuple):
    """The bearer of a valid token."""

    name: str
    roles: tuple[str, ...] | None
    """None: as configured for the user."""
    ends_s: float
    """Unix time at which the token ends."""


class TokenKeys:
    """The keys of one file, and the check of tokens by them."""

    def __init__(self, text: bytes, rules: TokenRules) -> None:
        """`text`: a JSON Web Key Set (RFC 7517). Raises ConfigError; PluginError: `linn[tokens]` is not installed."""
        try:
            from joserfc import jwk
            from joserfc.errors import JoseError
        except ImportError:
            raise PluginError("tokens need joserfc: install linn[tokens]") from None
        self._rules = rules
        if not set(rules.algorithms) <= set(ALGORITHMS) or not rules.algorithms:
            raise ConfigError(f"tokens are signed by one of {', '.join(ALGORITHMS)}")
        if not rules.issuer or not rules.audience:
            raise ConfigError("tokens need an issuer and an audience")
        try:
            keys = json.loads(text)["keys"]
            if any(key["kty"] not in ("RSA", "EC", "OKP") or "d" in key for key in keys):
                raise ConfigError("the file of keys holds a secret key: tokens are checked by public keys")
            self._keys: dict[str, Any] = {str(key.get("kid", "")): jwk.import_key(key) for key in keys}
        except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"not a JSON Web Key Set: {type(error).__name__}") from None
        if not keys or len(self._keys) != len(keys):
            raise ConfigError("a JSON Web Key Set holds keys, and several have a `kid` each")

    def check(self, token: str, now_s: float) -> TokenUser:
        """Check a token at this Unix time, and return who its bearer is. Takes 0.1 ms. Raises SaslError."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        header = _header_of(token)
        key = self._key_of(header)
        if header.get("alg") not in self._rules.algorithms:
            raise SaslError("a token with another algorithm")
        try:
            claims: Mapping[str, Any] = jwt.decode(token, key, algorithms=list(self._rules.algorithms)).claims
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise SaslError(f"a token that is not signed by a key of the file: {type(error).__name__}") from None
        return self._user_of(claims, now_s)

    def _key_of(self, header: Mapping[str, Any]) -> Any:
        kid = header.get("kid", "")
        if "kid" not in header and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if not isinstance(kid, str) or kid not in self._keys:
            raise SaslError("a token by an unknown key")
        return self._keys[kid]

    def _user_of(self, claims: Mapping[str, Any], now_s: float) -> TokenUser:
        rules = self._rules
        audiences = claims.get("aud")
        if claims.get("iss") != rules.issuer:
            raise SaslError("a token of another issuer")
        if rules.audience not in (audiences if isinstance(audiences, list) else [audiences]):
            raise SaslError("a token for another audience")
        ends, begins = _time_of(claims.get("exp")), _time_of(claims.get("nbf", 0))
        if not begins <= now_s < ends:
            raise SaslError("a token that has ended, or has not begun")
        name = claims.get(rules.user_claim)
        try:
            if not isinstance(name, str):
                raise ValueError("no text")
            check_name(name)
        except ValueError as error:
            raise SaslError(f"a token without a user's name in {rules.user_claim}: {error}") from None
        return TokenUser(name, self._roles_of(claims), ends)

    def _roles_of(self, claims: Mapping[str, Any]) -> tuple[str, ...] | None:
        if not self._rules.roles_claim:
            return None
        roles = claims.get(self._rules.roles_claim, [])  # Providers leave an empty list out.
        if not isinstance(roles, list) or len(roles) > ROLES_MAX or not all(isinstance(role, str) for role in roles):
            raise SaslError(f"a token without a list of roles in {self._rules.roles_claim}")
        return tuple(roles)


def parse_bearer(data: bytes) -> str:
    """Read the token in a message of OAUTHBEARER: `n,,^Aauth=Bearer TOKEN^A^A`. Raises SaslError."""
    if len(data) > 2 * TOKEN_BYTES_MAX:
        raise SaslError("a message that is too long")
    try:
        header, *pairs, last, end = data.decode("ascii").split("\1")
        values = dict(pair.split("=", 1) for pair in pairs)
    except ValueError:
        raise SaslError("not a message of OAUTHBEARER") from None
    flag, _, rest = header.partition(",")
    scheme, _, token = values.get("auth", "").partition(" ")
    if last or end or flag != "n" or rest != "," or scheme.lower() != "bearer":
        raise SaslError("not a message of OAUTHBEARER")
    return token


def bearer_message(token: str) -> bytes:
    """Return the client's message with a token."""
    return f"n,,\1auth=Bearer {token}\1\1".encode()


def _header_of(token: str) -> Mapping[str, Any]:
    """Return the header of a signed token. Raises SaslError."""
    if len(token) > TOKEN_BYTES_MAX or not token.isascii() or token.count(".") != 2:
        raise SaslError("not a signed token, or one that is too long")
    try:
        first = token.partition(".")[0]
        header = json.loads(urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (ValueError, RecursionError):
        raise SaslError("a token without a header") from None
    if not isinstance(header, dict) or any(name in header for name in _CHOOSING):
        raise SaslError("a token that chooses its key or its meaning")
    return header


def _time_of(claim: object) -> float:
    """Return a Unix time. Raises SaslError."""
    if not isinstance(claim, int | float) or isinstance(claim, bool) or not abs(claim) < 1e12:
        raise SaslError("a token without an end")
    return float(claim)
