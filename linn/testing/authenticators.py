"""The conformance suite of authenticators: `AuthenticatorConformance`, to subclass.

    class TestDirectory(AuthenticatorConformance):
        @pytest.fixture
        def harness(self) -> AuthenticatorHarness:
            return AuthenticatorHarness(
                make=lambda: Directory(DirectorySettings(), RealEnv()),
                accepts={"ann": Credentials("PLAIN", "ann", "opensesame")},
                denies=[Credentials("PLAIN", "ann", "wrong")],
            )

Law: a test does not know how the authenticator decides; it checks the promises on which logins rely.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import trio

from linn.core.ports.authenticator import Authenticated, Authenticator, Credentials
from linn.core.security.authenticators import CHECKS_AT_ONCE, BoundAuthenticator
from linn.core.security.sasl.plain import PLAIN
from linn.core.security.sasl.prepare import NAME_BYTES_MAX, PASSWORD_BYTES_MAX
from linn.core.security.sasl.tokens import TOKEN_BYTES_MAX

LOOP_S_MAX = 0.02
"""Processor time that one check may take in the broker's loop: a password hash belongs in a thread."""
_NAMES = ("nobody", "\u00fcnicode", "x" * NAME_BYTES_MAX, "a b", "*", "../ann", "ann)(uid=*", "' or 1=1 --")
_SECRETS = ("x", "x" * PASSWORD_BYTES_MAX, "\u00fcnicode", "\x7f\x01", "*", "%s%n", "' or 1=1 --")
_TOKENS = ("x", "x" * TOKEN_BYTES_MAX, "a.b.c", "..", "~!*'()")


@dataclass(frozen=True)
class AuthenticatorHarness:
    """Authenticator, and credentials for it."""

    make: Callable[[], Authenticator]
    """Make an authenticator."""
    accepts: Mapping[str, Credentials]
    """Credentials that it accepts, by the user's name in the answer."""
    denies: Sequence[Credentials]
    """Credentials that it denies, besides made-up ones."""

    def bound(self) -> BoundAuthenticator:
        """Return a new authenticator as the broker uses it."""
        return BoundAuthenticator("tested", (), self.make().authenticate, repr)

    def strange(self) -> list[Credentials]:
        """Return made-up credentials, of each mechanism of the given ones."""
        mechanisms = {credentials.mechanism for credentials in (*self.accepts.values(), *self.denies)}
        shown = [(name, secret) for name in _NAMES for secret in _SECRETS] if PLAIN in mechanisms else []
        tokens = _TOKENS if mechanisms - {PLAIN} else ()
        return [Credentials(PLAIN, *pair, "10.0.0.1:1") for pair in shown] + [
            Credentials("OAUTHBEARER", "", token, "unix:/run/linn.sock") for token in tokens
        ]


class AuthenticatorConformance:
    """The promises of `linn.core.ports.authenticator`. A subclass gives the fixture `harness`."""

    async def test_it_says_whose_the_credentials_are(self, harness: AuthenticatorHarness) -> None:
        checker = harness.bound()
        for user, credentials in harness.accepts.items():
            assert (await checker.check(credentials)).user == user

    async def test_it_denies_with_none(self, harness: AuthenticatorHarness) -> None:
        authenticator = harness.make()
        for credentials in harness.denies:
            assert await authenticator.authenticate(credentials) is None

    async def test_it_denies_whatever_somebody_makes_up(self, harness: AuthenticatorHarness) -> None:
        authenticator = harness.make()
        for credentials in harness.strange():
            assert await authenticator.authenticate(credentials) is None, credentials

    async def test_nobody_gets_in_with_another_users_secret(self, harness: AuthenticatorHarness) -> None:
        authenticator = harness.make()
        for user, credentials in harness.accepts.items():
            for name in [*[other.user for other in harness.accepts.values()], "nobody"]:
                if credentials.mechanism == PLAIN and name != credentials.user:
                    found = await authenticator.authenticate(Credentials(PLAIN, name, credentials.secret))
                    assert found is None, f"{name} with the password of {user}"

    async def test_checks_at_the_same_time_are_kept_apart(self, harness: AuthenticatorHarness) -> None:
        authenticator = harness.make()
        found: dict[int, Authenticated | None] = {}

        async def check(number: int, credentials: Credentials) -> None:
            found[number] = await authenticator.authenticate(credentials)

        asked = [*((user, it) for user, it in harness.accepts.items()), *((None, it) for it in harness.denies)]
        asked = (asked * CHECKS_AT_ONCE)[:CHECKS_AT_ONCE]
        async with trio.open_nursery() as nursery:
            for number, (_, credentials) in enumerate(asked):
                nursery.start_soon(check, number, credentials)
        for number, (user, _) in enumerate(asked):
            answer = found[number]
            assert (answer.user if answer is not None else None) == user

    async def test_it_works_after_a_check_was_cancelled(self, harness: AuthenticatorHarness) -> None:
        authenticator = harness.make()
        for user, credentials in harness.accepts.items():
            with trio.CancelScope() as scope:
                scope.cancel()
                await authenticator.authenticate(credentials)
            answer = await authenticator.authenticate(credentials)
            assert answer is not None
            assert answer.user == user

    async def test_it_computes_elsewhere(self, harness: AuthenticatorHarness) -> None:
        authenticator = harness.make()
        for credentials in (*harness.accepts.values(), *harness.denies):
            await authenticator.authenticate(credentials)  # Imports, connections.
            before_s = time.thread_time()
            await authenticator.authenticate(credentials)
            assert time.thread_time() - before_s < LOOP_S_MAX, "it holds up the broker's loop, and all connections"
