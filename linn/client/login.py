"""Logins of clients: a user's password, or a token."""

from __future__ import annotations

import inspect
import json
import math
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import anyio.to_thread

from linn.client.arguments import checked_text, shown
from linn.core.errors.auth import AuthFailed
from linn.core.errors.tree import MessageInvalid
from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.plain import PLAIN
from linn.core.security.sasl.scram import ITERATIONS, NONCE_BYTES, Salting, ScramClient, salt_password
from linn.core.security.sasl.tokens import BEARER, bearer_message

SALTED_MAX = 4
"""Salted passwords that are kept: one for each broker of a cluster that has its own."""


class Channel(NamedTuple):
    """Facts about a connection that its login goes by."""

    random_bytes: Callable[[int], bytes]
    binding: bytes = b""
    """The hash of the broker's certificate; b"" without TLS."""
    is_private: bool = False
    """Whether others can't read the traffic: in TLS, and over a Unix socket."""


class Exchange(Protocol):
    """One login on one connection."""

    mechanism: str
    ends_s: float
    """Unix time at which the login ends, as its first message says; `math.inf`: unknown."""

    async def begin(self) -> bytes:
        """Return the first message."""

    async def answer(self, data: bytes) -> bytes:
        """Return the answer to the broker's message. Raises SaslError."""

    def end(self, data: bytes) -> None:
        """Check the broker's last message. Raises SaslError."""


class Password:
    """A user's name and password. The password is not sent: both sides prove that they know it (SCRAM-SHA-256).

    Example:
        login = linn.Password("ann", "opensesame")
        print(login)  # linn.connect("linn://127.0.0.1:5466", login=login) logs in with it
    """

    def __init__(self, user: str, secret: str, *, plain: bool = False) -> None:
        """
        Args:
            plain: send the password itself (PLAIN), for a broker whose authenticator has it checked elsewhere, such as
                in a directory. Only over TLS or a Unix socket.

        Raises MessageInvalid.
        """
        self.user = checked_text(user, "a login's user")
        if not user or not isinstance(secret, str) or not secret:
            raise MessageInvalid("a login needs a user and a password")
        self._secret = secret
        self._plain = plain
        self._salted: dict[Salting, bytes] = {}

    def __repr__(self) -> str:
        return f"Password({self.user!r}, ***)"

    def _exchange(self, offered: Sequence[str], channel: Channel) -> Exchange:
        """Begin a login. Raises SaslError: the broker takes no passwords."""
        if self._plain:
            if not channel.is_private or PLAIN not in offered:
                raise SaslError("the broker takes no plain passwords on this connection")
            return _OneMessage(PLAIN, self._plain_message, lambda data: math.inf)
        client = ScramClient(self.user, channel.random_bytes(NONCE_BYTES), offered, channel.binding)
        return _ScramExchange(client, self)

    async def _plain_message(self) -> bytes:
        return f"\0{self.user}\0{self._secret}".encode()

    async def _salt(self, salting: Salting) -> bytes:
        """Compute the salted password, or take it from the last login, so that a new connection takes no time."""
        salted = self._salted.get(salting)
        if salted is None:
            salted = self._salted[salting] = await _computed(self._secret, salting)
            if len(self._salted) > SALTED_MAX:
                del self._salted[next(iter(self._salted))]
        return salted


class Token:
    """A token of an identity provider: its text, or a function that returns the present one.

    The function is called at each connection, and shortly before the end of a token: with a later one, the client logs
    in again on the same connection.

    Example:
        login = linn.Token(lambda: Path("/run/linn.token").read_text().strip())
        print(login)  # linn.connect("linns://broker.example", login=login) logs in with it
    """

    def __init__(self, token: str | Callable[[], str | Awaitable[str]]) -> None:
        """Raises MessageInvalid."""
        if not callable(token) and (not isinstance(token, str) or not token):
            raise MessageInvalid("a token is text, or a function that returns it")
        self._token = token

    def __repr__(self) -> str:
        return "Token(***)"

    def _exchange(self, offered: Sequence[str], channel: Channel) -> Exchange:
        """Begin a login. Raises SaslError: the broker takes no tokens, or others could read this one."""
        if BEARER not in offered:
            raise SaslError("the broker takes no tokens on this connection")
        if not channel.is_private:
            raise SaslError("a token is sent only in TLS, and over Unix sockets")
        return _OneMessage(BEARER, self._message, _end_of)

    async def _message(self) -> bytes:
        found = self._token() if callable(self._token) else self._token
        text = await found if inspect.isawaitable(found) else found
        if not isinstance(text, str) or not text.isascii() or not text.isprintable():
            raise MessageInvalid("a token is printable ASCII")
        return bearer_message(text)


Login = Password | Token


def checked_login(login: object) -> Login | None:
    """Check the option of a client. Raises MessageInvalid."""
    if login is not None and not isinstance(login, Password | Token):
        raise MessageInvalid(f"login must be linn.Password, linn.Token or None, not {shown(type(login).__name__)}")
    return login


def begin_login(login: Login | None, offered: Sequence[str], channel: Channel) -> Exchange:
    """Begin the login that a broker asks for. Raises AuthFailed: there is no login, or the broker does not take it."""
    if login is None:
        raise AuthFailed("the broker requires a login: login=linn.Password(...) or linn.Token(...)")
    try:
        return login._exchange(offered, channel)
    except SaslError as error:
        raise AuthFailed(f"{error}; it takes {', '.join(offered) or 'nothing'}") from None


class _ScramExchange:
    def __init__(self, scram: ScramClient, password: Password) -> None:
        self.mechanism = scram.mechanism
        self.ends_s = math.inf
        self._scram = scram
        self._password = password

    async def begin(self) -> bytes:
        return self._scram.first()

    async def answer(self, data: bytes) -> bytes:
        return self._scram.final(await self._password._salt(self._scram.salting(data)))

    def end(self, data: bytes) -> None:
        self._scram.check(data)


def _end_of(message: bytes) -> float:
    """Return the end of a message's token, `exp` of a JSON Web Token (RFC 7519, 4.1.4); `math.inf`: it has none.

    The broker checks tokens; here it only says when to ask for the next one.
    """
    try:
        payload = message.split(b".")[1]
        ends_s: object = json.loads(urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))["exp"]
    except (LookupError, ValueError, TypeError, RecursionError):
        return math.inf
    return float(ends_s) if isinstance(ends_s, int | float) and abs(ends_s) < 1e12 else math.inf


class _OneMessage:
    """A login that ends with its first message."""

    def __init__(
        self, mechanism: str, message: Callable[[], Awaitable[bytes]], end_of: Callable[[bytes], float]
    ) -> None:
        self.mechanism = mechanism
        self.ends_s = math.inf
        self._message = message
        self._end_of = end_of

    async def begin(self) -> bytes:
        data = await self._message()
        self.ends_s = self._end_of(data)
        return data

    async def answer(self, data: bytes) -> bytes:
        raise SaslError(f"{self.mechanism} has one message")

    def end(self, data: bytes) -> None:
        pass


async def _computed(secret: str, salting: Salting) -> bytes:
    """Compute a salted password: the usual 11 ms here, and what a broker may ask for beyond them in a thread."""
    if salting.iterations <= 2 * ITERATIONS:
        return salt_password(secret, *salting)
    return await anyio.to_thread.run_sync(lambda: salt_password(secret, *salting), abandon_on_cancel=True)
