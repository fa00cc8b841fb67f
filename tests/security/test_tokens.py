"""Tokens made by another library: the valid ones, and each way of forging one."""

from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from linn.core.errors.tree import ConfigError
from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.tokens import TokenKeys, TokenRules, TokenUser, bearer_message, parse_bearer

pytestmark = pytest.mark.quick

NOW_S = 2_000_000_000.0
RULES = TokenRules(issuer="https://id.example", audience="linn")
CLAIMS: dict[str, Any] = {"iss": "https://id.example", "aud": "linn", "sub": "ann", "exp": int(NOW_S) + 60}
EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
ED_KEY = ed25519.Ed25519PrivateKey.generate()
STRANGE = ec.generate_private_key(ec.SECP256R1())


def public(key: Any, kid: str) -> dict[str, Any]:
    algorithm: dict[str, Any] = {
        "e": jwt.algorithms.ECAlgorithm,
        "r": jwt.algorithms.RSAAlgorithm,
        "d": jwt.algorithms.OKPAlgorithm,
    }
    return {**json.loads(algorithm[kid[0]].to_jwk(key.public_key())), "kid": kid}


KEYS = json.dumps({"keys": [public(EC_KEY, "ec"), public(RSA_KEY, "rsa"), public(ED_KEY, "d")]}).encode()
TOKENS = TokenKeys(KEYS, RULES)


def token(claims: dict[str, Any] = CLAIMS, *, key: Any = EC_KEY, alg: str = "ES256", **header: Any) -> str:
    return jwt.encode(claims, key, algorithm=alg, headers={"kid": "ec", **header})


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CLAIMS.items() if key != name}


def by_hand(header: object, payload: object, signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(payload).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


@pytest.mark.parametrize(("key", "alg", "kid"), [(EC_KEY, "ES256", "ec"), (RSA_KEY, "RS256", "rsa")])
def test_a_token_says_who_its_bearer_is(key: Any, alg: str, kid: str) -> None:
    assert TOKENS.check(token(key=key, alg=alg, kid=kid), NOW_S) == TokenUser("ann", None, NOW_S + 60)


def test_a_token_is_signed_with_ed25519() -> None:
    """By hand: the other library has only the name before RFC 9864, "EdDSA", which stands for two algorithms."""
    header = {"alg": "Ed25519", "kid": "d"}
    signed = by_hand(header, CLAIMS).rpartition(".")[0]
    assert TOKENS.check(by_hand(header, CLAIMS, ED_KEY.sign(signed.encode())), NOW_S).name == "ann"


def test_one_key_needs_no_name() -> None:
    alone = TokenKeys(json.dumps({"keys": [public(EC_KEY, "ec")]}).encode(), RULES)
    unnamed = jwt.encode(CLAIMS, EC_KEY, algorithm="ES256")
    assert alone.check(unnamed, NOW_S).name == "ann"
    with pytest.raises(SaslError, match="unknown key"):
        TOKENS.check(unnamed, NOW_S)


def test_claims_have_configured_names() -> None:
    keys = TokenKeys(KEYS, RULES._replace(user_claim="email", roles_claim="groups"))
    claims = CLAIMS | {"email": "ann@example.org", "groups": ["reader"], "aud": ["other", "linn"]}
    assert keys.check(token(claims), NOW_S) == TokenUser("ann@example.org", ("reader",), NOW_S + 60)
    for groups in (None, "reader", [1], ["r"] * 101):
        with pytest.raises(SaslError, match="list of roles"):
            keys.check(token(claims | {"groups": groups}), NOW_S)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        (CLAIMS | {"iss": "https://other.example"}, "issuer"),
        (without("iss"), "issuer"),
        (CLAIMS | {"aud": "other"}, "audience"),
        (CLAIMS | {"aud": []}, "audience"),
        (without("aud"), "audience"),
        (without("exp"), "without an end"),
        (CLAIMS | {"exp": int(NOW_S)}, "has ended"),
        (CLAIMS | {"exp": int(NOW_S) - 60}, "has ended"),
        (CLAIMS | {"exp": 10**400}, "without an end"),
        (CLAIMS | {"exp": True}, "without an end"),
        (CLAIMS | {"nbf": int(NOW_S) + 1}, "has not begun"),
        (without("sub"), "user's name"),
        (CLAIMS | {"sub": ""}, "user's name"),
        (CLAIMS | {"sub": "\uff41nn"}, "user's name"),
        (CLAIMS | {"sub": "ann\0"}, "user's name"),
    ],
)
def test_claims_that_are_missing_or_wrong_are_refused(claims: dict[str, Any], says: str) -> None:
    payload = jwt.api_jws.encode(json.dumps(claims).encode(), EC_KEY, "ES256", headers={"kid": "ec"})
    with pytest.raises(SaslError, match=says):
        TOKENS.check(payload, NOW_S)


def test_no_signature_is_no_token() -> None:
    """`none`, in each spelling; and a signature that was cut off."""
    for alg in ("none", "None", "NONE", "nOnE", "", None):
        with pytest.raises(SaslError):
            TOKENS.check(by_hand({"alg": alg, "kid": "ec"}, CLAIMS), NOW_S)
    with pytest.raises(SaslError, match="not signed"):
        TOKENS.check(token().rpartition(".")[0] + ".", NOW_S)


def test_a_public_key_is_no_secret_for_hmac() -> None:
    """CVE-2021-22160 and its like: the "secret" is the file's own public key, which everybody may know."""
    pem = RSA_KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "kid": "rsa"}
    signed = by_hand(header, CLAIMS).rpartition(".")[0]
    forged = by_hand(header, CLAIMS, hmac.digest(pem, signed.encode(), "sha256"))
    with pytest.raises(SaslError, match="another algorithm"):
        TOKENS.check(forged, NOW_S)
    with pytest.raises(ConfigError, match="signed by one of"):
        TokenKeys(KEYS, RULES._replace(algorithms=("HS256",)))


@pytest.mark.parametrize("name", ["jku", "x5u", "jwk", "x5c", "crit", "zip", "enc"])
def test_a_token_does_not_choose_its_key(name: str) -> None:
    value: Any = ["b64"] if name == "crit" else {"kty": "EC"} if name == "jwk" else "https://attacker.example/keys"
    with pytest.raises(SaslError, match="chooses its key"):
        TOKENS.check(by_hand({"alg": "ES256", "kid": "ec", name: value}, CLAIMS, bytes(64)), NOW_S)


@pytest.mark.parametrize("kid", ["../../dev/null", "/etc/passwd", "rsa\0", "", None, 1, ["ec"], {"a": 1}, "x" * 4_000])
def test_the_name_of_a_key_is_one_of_the_file(kid: object) -> None:
    with pytest.raises(SaslError, match="unknown key"):
        TOKENS.check(by_hand({"alg": "ES256", "kid": kid}, CLAIMS, bytes(64)), NOW_S)


def test_another_key_signs_nothing() -> None:
    with pytest.raises(SaslError, match="not signed"):
        TOKENS.check(token(key=STRANGE), NOW_S)
    with pytest.raises(SaslError, match="not signed"):
        TOKENS.check(token(kid="d"), NOW_S)
    head, _, signature = token().split(".")
    changed = by_hand({}, CLAIMS | {"sub": "root"}).split(".")[1]
    with pytest.raises(SaslError, match="not signed"):
        TOKENS.check(f"{head}.{changed}.{signature}", NOW_S)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "a.b.c.d.e",
        "\u00e9.b.c",
        "x" * (1 << 20),
        "e30." * 2 + "x" * (1 << 20),
        by_hand([], CLAIMS),
        by_hand("alg", CLAIMS),
        base64.urlsafe_b64encode(b"[" * 5_000).decode() + ".e30.x",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(SaslError):
        TOKENS.check(text, NOW_S)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys": []}',
        b'{"keys": [1]}',
        b'{"keys": [{"kty": "EC"}]}',
        KEYS[: len(KEYS) // 2],
        KEYS.replace(b'"kid": "rsa"', b'"kid": "ec"'),
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}).encode(),
    ],
)
def test_other_files_hold_no_keys(text: bytes) -> None:
    with pytest.raises(ConfigError):
        TokenKeys(text, RULES)


def test_a_file_of_keys_has_no_secret_ones() -> None:
    secret = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY))
    with pytest.raises(ConfigError, match="secret key"):
        TokenKeys(json.dumps({"keys": [secret]}).encode(), RULES)
    for rules in (RULES._replace(issuer=""), RULES._replace(audience=""), RULES._replace(algorithms=())):
        with pytest.raises(ConfigError):
            TokenKeys(KEYS, rules)


def test_the_message_of_sasl_holds_a_token() -> None:
    assert parse_bearer(bearer_message("a.b.c")) == "a.b.c"
    assert parse_bearer(b"n,,\1host=example.org\1port=1\1auth=bearer a.b.c\1\1") == "a.b.c"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"n,,",
        b"n,a=root,\1auth=Bearer x\1\1",
        b"y,,\1auth=Bearer x\1\1",
        b"n,,\1auth=Basic x\1\1",
        b"n,,\1auth=Bearer x\1",
        b"n,,\1auth\1\1",
        b"n,,\1auth=Bearer \xff\1\1",
        b"n,,\1auth=Bearer " + b"x" * (1 << 20) + b"\1\1",
    ],
)
def test_other_messages_hold_none(data: bytes) -> None:
    with pytest.raises(SaslError):
        parse_bearer(data)
