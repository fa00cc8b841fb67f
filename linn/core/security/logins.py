"""Logins: which users the connections of a broker belong to.

A listener that requires logins knows some clients by their connection: by the certificate in TLS, or by the user id at
the other end of a Unix socket. Others log in with a mechanism of SASL.

Laws: a failure has one text, whatever the reason, which only the broker's log has. From the fifth failure of a user's
name from one address on, answers to both wait, up to `WAIT_MAX_S`, whether they are right or wrong; nothing is locked.
A connection gets one attempt. Memory is bounded, whatever names clients make up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, NoReturn, Protocol

from linn.core.errors.auth import AuthFailed
from linn.core.errors.texts import one_line
from linn.core.errors.tree import ConfigError
from linn.core.security.authenticators import BoundAuthenticator, Credentials
from linn.core.security.machine import machine_of
from linn.core.security.policy import ADMINISTRATOR
from linn.core.security.sasl.mechanism import SaslError, Step
from linn.core.security.sasl.plain import PLAIN, PlainPasswords, parse_plain
from linn.core.security.sasl.scram import NONCE_BYTES, SCRAM, SCRAM_PLUS, ScramServer, Verifier
from linn.core.security.sasl.tokens import BEARER, TokenKeys, parse_bearer
from linn.core.security.users import ANONYMOUS, SERVICE, Users

logger = logging.getLogger("linn.logins")

MESSAGES_MAX = 8
"""Messages of one login; SCRAM has two."""
FAILURES_FREE = 5
"""Failures of one name from one address after which answers wait."""
FAILURES_FORGOTTEN_S = 60.0
WAIT_MAX_S = 3.0
"""Longest wait of an answer. Clients wait 5 seconds for a connection: their users should see that the login has failed,
and not a timeout."""
COUNTED_MAX = 10_000
"""Pairs of address and name whose failures are counted, each in 300 bytes; the oldest is forgotten first."""
REFUSED = "the login failed"
"""The text of every failure."""


LOGIN_METHODS = ("peer", "certificate", "scram", "token", "plain")
"""All ways to log in."""


class LoginRules(NamedTuple):
    """A listener's settings."""

    is_required: bool = False
    methods: Collection[str] = ("peer", "certificate", "scram", "token")
    """Ways to log in that it takes, of `LOGIN_METHODS`, and names of authenticators. The first that takes what a client
    shows lets it in."""


NO_LOGIN = LoginRules()
"""The rules of a listener that requires no login."""


class Peer(NamedTuple):
    """Facts about the other end of a connection."""

    address: str
    is_private: bool = False
    """Whether others can't read the traffic: in TLS, and on a Unix socket."""
    uid: int | None = None
    """The process's user id, on a Unix socket."""
    names: Collection[str] = ()
    """URIs and DNS names in its certificate, which was checked."""
    binding: bytes = b""
    """Hash of the certificate that the broker showed on this connection; b"" without TLS."""


class Identity(NamedTuple):
    """The outcome of a login."""

    user: str
    how: str
    """ "peer", "certificate", the name of a mechanism, or "none" where no login is required."""
    ends_s: float = math.inf
    """Unix time at which it ends, as a token does."""
    roles: Collection[str] = ()
    """Roles that the login gives, besides the user's own."""


class LoginClock(Protocol):
    """The clock that logins go by."""

    def now_ms(self) -> int: ...
    def monotonic(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class Logins:
    """The logins of all connections of a broker."""

    def __init__(
        self,
        users: Users,
        clock: LoginClock,
        random_bytes: Callable[[int], bytes],
        in_thread: Callable[[Callable[[], bool]], Awaitable[bool]],
        own_uid: int | None,
    ) -> None:
        """
        Args:
            in_thread: runs a computation in a thread, in order.
            own_uid: the user id of the broker's process.
        """
        self.users = users
        self.clock = clock
        self.random_bytes = random_bytes
        self.own_uid = own_uid
        self.secret = random_bytes(32)
        """Makes the answers to unknown users, which tell them apart if it changes; replaced by a stored one."""
        self.tokens: TokenKeys | None = None
        """The keys of tokens; None: there are none."""
        self.authenticators: Mapping[str, BoundAuthenticator] = {}
        """The plugins that check credentials, by their names in `methods`."""
        self.on_end: Callable[[str, str, str, str], None] = lambda *_: None
        """Called with address, user, way and outcome of each login: "done" or an error's code."""
        self.failures = Failures(clock.monotonic)
        self.passwords = PlainPasswords(self.verifier, random_bytes(32), clock.monotonic, in_thread)

    def begin(self, rules: LoginRules, peer: Peer, *, asks: bool = False) -> Login:
        """Begin the login of a new connection. `asks`: the client has a login, which counts in place of what the
        connection says about it.
        """
        return Login(self, rules, peer, asks=asks)

    def verifier(self, name: str) -> Verifier | None:
        """Return the verifier of a user's password; None: there is no such user, or no password."""
        service = self.users.services.get(name)
        if service is not None:
            return service.verifier
        user = self.users.find(name)
        try:
            return Verifier.parse(user.scram) if user is not None and user.scram else None
        except ConfigError:  # A file is checked when it is read, so that this is an entry that was damaged.
            return None


class Login:
    """The login of one connection."""

    def __init__(self, logins: Logins, rules: LoginRules, peer: Peer, *, asks: bool = False) -> None:
        self._logins = logins
        self._peer = peer
        self._methods = rules.methods
        self._mechanism = ""
        self._scram: ScramServer | None = None
        self._claimed = ""
        """The name that the client has given."""
        self._password: str | None = None
        """The verifier that the user had then; None: there was no such user."""
        self._messages = 0
        self._is_over = False
        self.identity: Identity | None = None if asks and rules.is_required else self._known(rules)
        """The client's user; None: it has to log in."""
        self.mechanisms: list[str] = self._offered(rules)
        """Names of the mechanisms that the client may choose from."""
        if self.identity is not None and rules.is_required:
            logins.on_end(peer.address, self.identity.user, self.identity.how, "done")

    async def step(self, mechanism: str, data: bytes) -> bytes:
        """Take the client's next message and return the answer; after the last one there is an `identity`.

        Raises AuthFailed: the connection is to be closed. Cancellation: likewise.
        """
        try:
            answer = await self._advance(mechanism, data)
        except SaslError as error:
            await self._refuse(str(error))
        if self.identity is not None:
            self._is_over = True
            await self._wait()
            if self._password_of(self._claimed) != self._password:
                self.identity = None
                await self._refuse("the user, or the password, was changed meanwhile")
            self._logins.on_end(self._peer.address, self.identity.user, self.identity.how, "done")
        return answer

    def _known(self, rules: LoginRules) -> Identity | None:
        """Tell who the client is without asking it."""
        logins, peer = self._logins, self._peer
        if not rules.is_required:
            return Identity(ANONYMOUS, "none")
        if "peer" in rules.methods and peer.uid is not None:
            if peer.uid == logins.own_uid:  # It could read all files and all memory anyway.
                return Identity(ADMINISTRATOR, "peer")
            user = logins.users.of_uid(peer.uid)
            if user is not None:
                return Identity(user.name, "peer")
        if "certificate" in rules.methods and peer.names:
            user = logins.users.of_certificate(peer.names)
            if user is not None:
                return Identity(user.name, "certificate")
        return None

    def _offered(self, rules: LoginRules) -> list[str]:
        offered: list[str] = []
        if "scram" in rules.methods:
            offered += [SCRAM_PLUS, SCRAM] if self._peer.binding else [SCRAM]
        if self._peer.is_private:
            taken = [mechanism for method in rules.methods for mechanism in self._taken_by(method)]
            offered += [mechanism for mechanism in (BEARER, PLAIN) if mechanism in taken]
        return offered

    def _taken_by(self, method: str) -> Collection[str]:
        """The mechanisms with secrets in them that one of the listener's methods takes."""
        if method == "plain":
            return (PLAIN,)
        if method == "token":
            return (BEARER,) if self._logins.tokens is not None else ()
        authenticator = self._logins.authenticators.get(method)
        return authenticator.mechanisms if authenticator is not None else ()

    async def _advance(self, mechanism: str, data: bytes) -> bytes:
        """Take a message. Raises SaslError."""
        self._messages += 1
        if self._is_over or self._messages > MESSAGES_MAX:
            raise SaslError("more messages than a login has")
        if mechanism not in self.mechanisms or self._mechanism not in ("", mechanism):
            raise SaslError("a mechanism that was not offered, or another one than before")
        self._mechanism = mechanism
        if mechanism == PLAIN:
            name, password = parse_plain(data)
            self._claim(name)
            self.identity = await self._checked(Credentials(PLAIN, name, password, self._peer.address))
            return b""
        if mechanism == BEARER:
            self.identity = await self._checked(Credentials(BEARER, "", parse_bearer(data), self._peer.address))
            return b""
        step = self._scram_step(data)
        if step.user:
            self.identity = Identity(step.user, mechanism)
        return step.data

    async def _checked(self, credentials: Credentials) -> Identity:
        """Ask the listener's methods that take such credentials, in order, until one accepts them.

        Raises SaslError: none does.
        """
        problems: list[str] = []
        for method in self._methods:
            if credentials.mechanism in self._taken_by(method):
                try:
                    return await self._checked_by(method, credentials)
                except SaslError as error:
                    problems.append(str(error))
        raise SaslError("; ".join(problems))

    async def _checked_by(self, method: str, credentials: Credentials) -> Identity:
        """Ask one method. Raises SaslError."""
        logins, mechanism = self._logins, credentials.mechanism
        if method == "plain":
            await logins.passwords.check(credentials.user, credentials.secret)
            return Identity(credentials.user, PLAIN)
        if method == "token":
            return self._bearer(credentials.secret)
        found = await logins.authenticators[method].check(credentials)
        self._claim(found.user)
        if found.ends_s <= logins.clock.now_ms() / 1000:
            raise SaslError(f"{method} knows a login that has ended")
        self._check_name(found.user)
        return Identity(found.user, mechanism, found.ends_s, tuple(found.roles))

    def _bearer(self, token: str) -> Identity:
        logins = self._logins
        assert logins.tokens is not None, "offered only with keys"
        bearer = logins.tokens.check(token, logins.clock.now_ms() / 1000)
        self._claim(bearer.name)
        if bearer.roles is None and logins.users.find(bearer.name) is None:
            raise SaslError("a token of an unknown user")
        self._check_name(bearer.name)
        # An identity provider has roles of this name for its own ends.
        roles = tuple(role for role in bearer.roles or () if role != ADMINISTRATOR)
        return Identity(bearer.name, BEARER, bearer.ends_s, roles)

    def _check_name(self, user: str) -> None:
        """Refuse a name that means something to the broker, unless it is a user's. Raises SaslError."""
        is_ours = user in (ADMINISTRATOR, ANONYMOUS) or user.startswith(SERVICE)
        if is_ours and self._logins.users.find(user) is None:
            raise SaslError("the name of a user that only the broker makes")

    def _scram_step(self, data: bytes) -> Step:
        if self._scram is None:
            logins, plus = self._logins, self._mechanism == SCRAM_PLUS
            binding, nonce = self._peer.binding, logins.random_bytes(NONCE_BYTES)
            self._scram = ScramServer(logins.verifier, logins.secret, nonce, binding=binding, plus=plus)
        try:
            return self._scram.step(data)
        finally:
            self._claim(self._scram.user)

    async def _refuse(self, reason: str) -> NoReturn:
        """Count a failure, and wait if there were several. Raises AuthFailed."""
        self._is_over = True
        self._logins.failures.count(self._key)
        self._logins.on_end(self._peer.address, self._claimed, self._mechanism, AuthFailed.code)
        about = {"connection": self._peer.address, "user": one_line(self._claimed), "reason": reason}
        logger.warning('%(connection)s: login as "%(user)s" refused: %(reason)s', about)
        await self._wait()
        raise AuthFailed(REFUSED)

    def _claim(self, name: str) -> None:
        if name != self._claimed:
            self._claimed, self._password = name, self._password_of(name)

    def _password_of(self, name: str) -> str | None:
        user = self._logins.users.find(name)
        return user.scram if user is not None else None

    async def _wait(self) -> None:
        wait_s = self._logins.failures.wait_s(self._key)
        if wait_s:
            await self._logins.clock.sleep(wait_s)

    @property
    def _key(self) -> tuple[str, str]:
        return machine_of(self._peer.address), self._claimed


class Failures:
    """Failed logins by address and name."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}
        """Count, and the time of the last one; the oldest first."""

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: tuple[str, str]) -> None:
        """Count a failure."""
        count = self._recent(key) + 1
        self._counts.pop(key, None)
        self._counts[key] = count, self._monotonic()
        if len(self._counts) > COUNTED_MAX:
            del self._counts[next(iter(self._counts))]

    def wait_s(self, key: tuple[str, str]) -> float:
        """Return how long an answer has to wait."""
        beyond = self._recent(key) - FAILURES_FREE
        return min(WAIT_MAX_S, 2.0**beyond) if beyond >= 0 else 0.0

    def _recent(self, key: tuple[str, str]) -> int:
        count, last_s = self._counts.get(key, (0, 0.0))
        return count if self._monotonic() - last_s < FAILURES_FORGOTTEN_S else 0
