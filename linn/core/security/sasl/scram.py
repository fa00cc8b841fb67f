"""SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677): both sides of a login, as state machines.

Neither side learns enough to log in as the other: the server stores a verifier, not the password, and the client is
told whether the server knows it. In PLUS the proof covers the certificate of the TLS connection (`tls-server-end-point`
of RFC 5929), so that it is worthless to a proxy in between.

Laws: each message is taken once, and in order; after a refusal nothing is. Nonces are compared in full
(CVE-2024-56128). An unknown user gets the same answers, for the same work, as a known one with a wrong password.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from enum import Enum, auto
from hashlib import pbkdf2_hmac, sha256
from typing import NamedTuple

from linn.core.errors.tree import ConfigError
from linn.core.security.sasl.mechanism import SaslError, Step
from linn.core.security.sasl.prepare import check_name, prepared_password

SCRAM = "SCRAM-SHA-256"
SCRAM_PLUS = "SCRAM-SHA-256-PLUS"
ITERATIONS = 32_768
"""Iterations of new verifiers: 11 ms of a client, and as much for each guess at a stolen verifier."""
ITERATIONS_MIN = 4_096
"""The least that RFC 7677 allows; a server that asks for fewer wants the password to be guessed."""
ITERATIONS_MAX = 10_000_000
"""Most that a client computes: 3 s. A server could keep it busy with more."""
SALT_BYTES = 16
NONCE_BYTES = 18
"""Random bytes of each side's nonce."""
MESSAGE_BYTES_MAX = 4 << 10
"""Limit of a message: the longest name, nonces and a binding have less than a KiB."""
_NONCE_CHARACTERS_MAX = 256
_HASH_BYTES = 32
_BINDING = "tls-server-end-point"


class Verifier(NamedTuple):
    """A stored password, which tells whether a proof is right but can't make one."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @staticmethod
    def parse(text: str) -> Verifier:
        """Read a verifier in PostgreSQL's format, `SCRAM-SHA-256$ITERATIONS:SALT$STORED:SERVER`. Raises ConfigError."""
        try:
            scheme, parameters, keys = text.split("$")
            iterations, salt = parameters.split(":")
            stored, server = keys.split(":")
            verifier = Verifier(_number(iterations), _from_base64(salt), _from_base64(stored), _from_base64(server))
        except ValueError:
            raise ConfigError(f"a password is stored as {SCRAM}$ITERATIONS:SALT$STORED:SERVER") from None
        if scheme != SCRAM or not ITERATIONS_MIN <= verifier.iterations <= ITERATIONS_MAX:
            raise ConfigError(
                f"a password is stored as {SCRAM}, with {ITERATIONS_MIN:,} to {ITERATIONS_MAX:,} iterations"
            )
        if not verifier.salt or {len(verifier.stored_key), len(verifier.server_key)} != {_HASH_BYTES}:
            raise ConfigError(f"a stored password has a salt, and keys of {_HASH_BYTES} bytes")
        return verifier

    def __repr__(self) -> str:
        return "Verifier(***)"

    def text(self) -> str:
        """The verifier in PostgreSQL's format."""
        salt, stored, server = (b64encode(part).decode() for part in self[1:])
        return f"{SCRAM}${self.iterations}:{salt}${stored}:{server}"

    def accepts(self, password: str) -> bool:
        """Tell whether this is the password. Takes as long as a client's login: call it in a thread."""
        salted = salt_password(password, self.salt, self.iterations)
        return hmac.compare_digest(_stored_key(salted), self.stored_key)


def make_verifier(password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """Make the verifier of a password, with `SALT_BYTES` random bytes. Takes 11 ms: call it in a thread."""
    salted = salt_password(password, salt, iterations)
    return Verifier(iterations, salt, _stored_key(salted), _hmac(salted, b"Server Key"))


def salt_password(password: str, salt: bytes, iterations: int) -> bytes:
    """Compute the salted password, which lets its owner log in as the password does. Takes long: `ITERATIONS`."""
    return pbkdf2_hmac("sha256", prepared_password(password), salt, iterations)


def unknown_user(name: str, secret: bytes) -> Verifier:
    """Make the verifier of a user who does not exist: always the same one, and no password fits."""
    keyed = _hmac(secret, name.encode(errors="surrogatepass"))
    return Verifier(ITERATIONS, keyed[:SALT_BYTES], _hmac(secret, b"stored" + keyed), _hmac(secret, b"server" + keyed))


class _Expects(Enum):
    FIRST = auto()
    FINAL = auto()
    NOTHING = auto()


class ScramServer:
    """The server's side of one login."""

    def __init__(
        self, find: Callable[[str], Verifier | None], secret: bytes, nonce: bytes, *, binding: bytes = b"", plus: bool
    ) -> None:
        """
        Args:
            find: returns the verifier of the user with a name.
            secret: makes the answers to unknown users; to be kept over restarts, which otherwise change them.
            nonce: `NONCE_BYTES` random bytes.
            binding: hash of the certificate that this connection was given; b"" without TLS. The server then offers
                PLUS as well.
            plus: whether the client has chosen PLUS.
        """
        self._find = find
        self._secret = secret
        self._nonce = b64encode(nonce).decode()
        self._binding = binding
        self._plus = plus
        self._expects = _Expects.FIRST
        self._header = b""
        self.user = ""
        """The name in the client's first message."""
        self._bare = self._server_first = self._whole_nonce = ""
        self._verifier: Verifier | None = None

    def step(self, data: bytes) -> Step:
        """Take the client's next message. Raises SaslError."""
        expects, self._expects = self._expects, _Expects.NOTHING
        text = _text(data)
        if expects is _Expects.FIRST:
            answer = Step(self._first(text))
            self._expects = _Expects.FINAL
            return answer
        if expects is _Expects.FINAL:
            return Step(self._final(text), self.user)
        raise SaslError("a message after the end of the login")

    def _first(self, text: str) -> bytes:
        flag, comma, rest = text.partition(",")
        authorize, another, self._bare = rest.partition(",")
        if not (comma and another):
            raise SaslError("not a first message of SCRAM")
        if authorize:
            raise SaslError("a login in another user's name")
        self._check_flag(flag)
        self._header = f"{flag},,".encode()
        attributes = self._bare.split(",")
        if len(attributes) < 2 or attributes[0][:2] != "n=" or attributes[1][:2] != "r=":
            raise SaslError("not a first message of SCRAM")
        self.user = _name_of(attributes[0][2:])
        nonce = attributes[1][2:]
        if not 0 < len(nonce) <= _NONCE_CHARACTERS_MAX or not nonce.isascii() or not nonce.isprintable():
            raise SaslError("an invalid nonce")
        found, otherwise = self._find(self.user), unknown_user(self.user, self._secret)
        self._verifier = found or otherwise
        self._whole_nonce = nonce + self._nonce
        salt = b64encode(self._verifier.salt).decode()
        self._server_first = f"r={self._whole_nonce},s={salt},i={self._verifier.iterations}"
        return self._server_first.encode()

    def _check_flag(self, flag: str) -> None:
        """Check the client's flag of channel binding. Raises SaslError."""
        if self._plus:
            if flag != f"p={_BINDING}" or not self._binding:
                raise SaslError("another channel binding than tls-server-end-point")
        elif flag == "y":
            if self._binding:
                raise SaslError("a client that was not offered PLUS, although it was: a proxy has changed the list")
        elif flag != "n":
            raise SaslError("channel binding without PLUS")

    def _final(self, text: str) -> bytes:
        without_proof, _, proof_text = text.rpartition(",p=")
        attributes = without_proof.split(",")
        if len(attributes) < 2 or attributes[0][:2] != "c=" or attributes[1][:2] != "r=":
            raise SaslError("not a final message of SCRAM")
        header = self._header + (self._binding if self._plus else b"")
        is_bound = hmac.compare_digest(_decoded(attributes[0][2:]), header)
        is_same = hmac.compare_digest(attributes[1][2:].encode(), self._whole_nonce.encode())
        proof = _decoded(proof_text)
        if len(proof) != _HASH_BYTES:
            raise SaslError("not a final message of SCRAM")
        verifier = self._verifier
        assert verifier is not None, "the first message has set it"
        signed = f"{self._bare},{self._server_first},{without_proof}".encode()
        client_key = _xor(proof, _hmac(verifier.stored_key, signed))
        is_right = hmac.compare_digest(sha256(client_key).digest(), verifier.stored_key)
        if not (is_bound and is_same and is_right):
            raise SaslError("a wrong password, channel binding or nonce, or an unknown user")
        return b"v=" + b64encode(_hmac(verifier.server_key, signed))


class Salting(NamedTuple):
    """Arguments of `salt_password`, which the client has to call."""

    salt: bytes
    iterations: int


class ScramClient:
    """The client's side of one login: `first`, `salting`, `final`, `check`, in this order."""

    def __init__(self, user: str, nonce: bytes, offered: Sequence[str], binding: bytes = b"") -> None:
        """
        Args:
            nonce: `NONCE_BYTES` random bytes.
            offered: the server's mechanisms.
            binding: hash of the server's certificate; b"" without TLS.

        Raises SaslError: the server offers no SCRAM.
        """
        plus = bool(binding) and SCRAM_PLUS in offered
        if not plus and SCRAM not in offered:
            raise SaslError("the broker takes no passwords")
        self.mechanism = SCRAM_PLUS if plus else SCRAM
        self._header = (f"p={_BINDING}" if plus else "y" if binding else "n") + ",,"
        self._binding = binding if plus else b""
        self._nonce = b64encode(nonce).decode()
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._server_first = self._whole_nonce = ""
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """Return the first message."""
        return (self._header + self._bare).encode(errors="surrogatepass")

    def salting(self, server_first: bytes) -> Salting:
        """Read the server's answer; return what to compute. Raises SaslError: the server is not to be trusted."""
        if self._server_first:
            raise SaslError("the broker sent its first message twice")
        text = _text(server_first)
        attributes = text.split(",")
        if [attribute[:2] for attribute in attributes[:3]] != ["r=", "s=", "i="]:
            raise SaslError("the broker's answer is not SCRAM")
        nonce, salt, iterations = (attribute[2:] for attribute in attributes[:3])
        if not nonce.startswith(self._nonce) or len(nonce) <= len(self._nonce):
            raise SaslError("the broker answered another login")
        try:
            salting = Salting(_decoded(salt), _number(iterations))
        except ValueError:
            raise SaslError("the broker's answer is not SCRAM") from None
        if not salting.salt or not ITERATIONS_MIN <= salting.iterations <= ITERATIONS_MAX:
            allowed = f"{ITERATIONS_MIN:,} to {ITERATIONS_MAX:,} iterations"
            raise SaslError(f"the broker asks for {salting.iterations:,} iterations, and a client computes {allowed}")
        self._server_first, self._whole_nonce = text, nonce
        return salting

    def final(self, salted: bytes) -> bytes:
        """Return the final message, with the proof made from the salted password."""
        channel = b64encode(self._header.encode() + self._binding).decode()
        without_proof = f"c={channel},r={self._whole_nonce}"
        signed = f"{self._bare},{self._server_first},{without_proof}".encode(errors="surrogatepass")
        client_key = _hmac(salted, b"Client Key")
        proof = _xor(client_key, _hmac(sha256(client_key).digest(), signed))
        self._signature = _hmac(_hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Check that the server knows the verifier. Raises SaslError."""
        text = _text(server_final)
        if self._signature is None or text[:2] != "v=":
            raise SaslError("the broker has not proved that it knows this user")
        if not hmac.compare_digest(_decoded(text[2:].split(",")[0]), self._signature):
            raise SaslError("the broker has not proved that it knows this user")


def _text(data: bytes) -> str:
    if len(data) > MESSAGE_BYTES_MAX:
        raise SaslError(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SaslError("a message that is not UTF-8") from None
    if "\0" in text:
        raise SaslError("a message with NUL")
    return text


def _name_of(escaped: str) -> str:
    """Return a user's name without its escapes `=2C` and `=3D`. Raises SaslError."""
    if "=" in escaped.replace("=2C", "").replace("=3D", ""):
        raise SaslError("a name with an unknown escape")
    name = escaped.replace("=2C", ",").replace("=3D", "=")
    try:
        check_name(name)
    except ValueError as error:
        raise SaslError(str(error)) from None
    return name


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise ValueError("not a number")
    return int(text)


def _from_base64(text: str) -> bytes:
    """Decode Base64 in its one spelling. Raises ValueError."""
    try:
        decoded = b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if b64encode(decoded).decode() != text:
        raise ValueError("not the one spelling in Base64")
    return decoded


def _decoded(text: str) -> bytes:
    try:
        return _from_base64(text)
    except ValueError:
        raise SaslError("not Base64") from None


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")


def _stored_key(salted: bytes) -> bytes:
    return sha256(_hmac(salted, b"Client Key")).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(_HASH_BYTES, "big")
