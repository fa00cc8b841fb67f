"""Authenticators: plugins that say who a client is, in time and in the right type, or nobody gets in."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from test_logins import FAR, TLS, Clock, Keys, here

import linn
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import load_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.errors.auth import AuthFailed, Forbidden
from linn.core.errors.tree import ConfigError, LinnError, PluginError
from linn.core.plugins.hookspecs import hookimpl
from linn.core.plugins.manager import PluginManager, installed
from linn.core.ports.authenticator import Authenticated, AuthenticatorKind, Credentials
from linn.core.security.authenticators import (
    ANSWER_S,
    CHECKS_AT_ONCE,
    MECHANISMS,
    WAITING_MAX,
    BoundAuthenticator,
)
from linn.core.security.logins import REFUSED, Identity, LoginRules, Logins
from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.plain import PLAIN
from linn.core.security.sasl.scram import SCRAM, make_verifier
from linn.core.security.sasl.tokens import BEARER, bearer_message
from linn.core.security.users import User, Users

VERIFIER = make_verifier("opensesame", b"salt of 16 bytes", 4_096).text()
SECRET = Credentials(PLAIN, "ann", "opensesame", "10.0.0.1:4711")


def bound(answer: Callable[[Credentials], Any], mechanisms: tuple[str, ...] = MECHANISMS) -> BoundAuthenticator:
    async def authenticate(credentials: Credentials) -> object:
        return answer(credentials)

    return BoundAuthenticator("ldap", mechanisms, authenticate, lambda error: 'plugin "ldap"')


def logins_with(clock: Clock, **authenticators: BoundAuthenticator) -> Logins:
    logins = Logins(Users([User(name="ann", scram=VERIFIER)]), clock, bytes, here, own_uid=1)
    logins.authenticators = authenticators
    return logins


def rules(*methods: str) -> LoginRules:
    return LoginRules(is_required=True, methods=methods)


# --- answers ---


async def test_an_answer_says_who_the_client_is() -> None:
    seen: list[Credentials] = []

    def answer(credentials: Credentials) -> Authenticated:
        seen.append(credentials)
        return Authenticated("ann@example.org", ["reader"], 2_000.0)

    logins = logins_with(Clock(), ldap=bound(answer))
    login = logins.begin(rules("ldap"), TLS)
    assert login.mechanisms == [BEARER, PLAIN]
    await login.step(PLAIN, b"\0ann\0opensesame")
    assert login.identity == Identity("ann@example.org", PLAIN, 2_000.0, ("reader",))
    login = logins.begin(rules("ldap"), TLS)
    await login.step(BEARER, bearer_message("opaque"))
    shown = [(it.mechanism, it.user, it.secret, it.address) for it in seen]
    assert shown == [(PLAIN, "ann", "opensesame", TLS.address), (BEARER, "", "opaque", TLS.address)]
    assert "opensesame" not in repr(seen)


def test_an_authenticator_is_offered_where_nobody_reads_along() -> None:
    logins = logins_with(Clock(), ldap=bound(lambda _: None, (PLAIN,)))
    assert logins.begin(rules("ldap", "scram"), FAR).mechanisms == [SCRAM]
    assert logins.begin(rules("ldap"), TLS).mechanisms == [PLAIN]
    assert logins.begin(rules("token"), TLS).mechanisms == []


async def test_methods_are_asked_in_their_order_until_one_accepts() -> None:
    asked: list[str] = []

    def answer(name: str, accepts: bool) -> Callable[[Credentials], Authenticated | None]:
        def found(credentials: Credentials) -> Authenticated | None:
            asked.append(name)
            return Authenticated(f"{credentials.user} of {name}") if accepts else None

        return found

    logins = logins_with(Clock(), one=bound(answer("one", False)), two=bound(answer("two", True)))
    login = logins.begin(rules("one", "plain", "two"), TLS)
    await login.step(PLAIN, b"\0ann\0opensesame")
    assert (login.identity, asked) == (Identity("ann", PLAIN), ["one"])
    login = logins.begin(rules("one", "plain", "two"), TLS)
    await login.step(PLAIN, b"\0ann\0another")
    assert login.identity is not None
    assert (login.identity.user, asked) == ("ann of two", ["one", "one", "two"])


async def test_a_token_that_the_keys_refuse_is_for_the_next() -> None:
    logins = logins_with(Clock(), opaque=bound(lambda it: Authenticated(it.secret)))
    logins.tokens = Keys()  # type: ignore[assignment]
    login = logins.begin(rules("token", "opaque"), TLS)
    await login.step(BEARER, bearer_message("bob"))
    assert login.identity == Identity("bob", BEARER), "the keys know no user bob"


@pytest.mark.parametrize("user", ["administrator", "anonymous"])
async def test_a_name_that_means_something_to_the_broker_is_refused(user: str) -> None:
    login = logins_with(Clock(), ldap=bound(lambda _: Authenticated(user))).begin(rules("ldap"), TLS)
    with pytest.raises(AuthFailed, match=REFUSED):
        await login.step(PLAIN, b"\0ann\0opensesame")


async def test_a_login_that_has_ended_is_refused() -> None:
    clock = Clock()
    login = logins_with(clock, ldap=bound(lambda _: Authenticated("ann", ends_s=clock.now_s))).begin(rules("ldap"), TLS)
    with pytest.raises(AuthFailed, match=REFUSED):
        await login.step(PLAIN, b"\0ann\0opensesame")


# --- failures ---


def _raise(credentials: Credentials) -> object:
    raise ValueError(f"wrong: {credentials.secret}")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _: None, "ldap denies it"),
        (_raise, 'ldap failed: ValueError in plugin "ldap"'),
        (lambda _: "ann", "answered with a str"),
        (lambda _: ("ann", (), math.inf), "answered with a tuple"),
        (lambda _: Authenticated(""), "without a user's name"),
        (lambda _: Authenticated(b"ann"), "without a user's name"),  # type: ignore[arg-type]
        (lambda _: Authenticated("a" * 256), "without a user's name"),
        (lambda _: Authenticated("ann", "reader"), "no list"),
        (lambda _: Authenticated("ann", ["r"] * 101), "no list"),
        (lambda _: Authenticated("ann", [1]), "no text"),  # type: ignore[list-item]
        (lambda _: Authenticated("ann", (), math.nan), "without a time"),
        (lambda _: Authenticated("ann", (), True), "without a time"),
    ],
)
async def test_anything_else_refuses_the_login_and_is_logged_once_without_secrets(
    answer: Callable[[Credentials], Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[tuple[str, ...]] = []
    logins = logins_with(Clock(), ldap=bound(answer))
    logins.on_end = lambda *told: ends.append(told)
    login = logins.begin(rules("ldap"), TLS)
    with caplog.at_level(logging.DEBUG), pytest.raises(AuthFailed, match=REFUSED) as caught:
        await login.step(PLAIN, b"\0ann\0opensesame")
    (told,) = [record.getMessage() for record in caplog.records]
    assert says in told
    assert "opensesame" not in told + str(caught.value)
    assert caught.value.__cause__ is None
    assert ends == [(TLS.address, "ann", PLAIN, "auth.failed")]


async def test_a_late_answer_is_a_denial(autojump_clock: trio.testing.MockClock) -> None:
    async def slow(credentials: Credentials) -> Authenticated:
        await trio.sleep(ANSWER_S + 0.1)
        return Authenticated("ann")

    async def stubborn(credentials: Credentials) -> Authenticated:
        with trio.CancelScope(shield=True):
            return await slow(credentials)

    async def blocking(credentials: Credentials) -> Authenticated:
        autojump_clock.jump(ANSWER_S + 0.1)
        return Authenticated("ann")

    for authenticate in (slow, stubborn, blocking):
        with pytest.raises(SaslError, match="no answer within 5 s"):
            await BoundAuthenticator("ldap", (PLAIN,), authenticate, str).check(SECRET)


async def test_logins_wait_for_a_turn_and_a_crowd_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    inside = most = 0
    results: list[str] = []

    async def authenticate(credentials: Credentials) -> Authenticated:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await trio.sleep(1.0)
        inside -= 1
        return Authenticated("ann")

    checker = BoundAuthenticator("ldap", (PLAIN,), authenticate, str)

    async def one() -> None:
        try:
            results.append((await checker.check(SECRET)).user)
        except SaslError as error:
            results.append(str(error))

    async with trio.open_nursery() as nursery:
        for _ in range(WAITING_MAX + 1):
            nursery.start_soon(one)
    assert most == CHECKS_AT_ONCE
    assert results[0] == f"{WAITING_MAX} other logins wait for ldap"
    in_time = int(ANSWER_S) * CHECKS_AT_ONCE
    assert in_time - CHECKS_AT_ONCE <= results.count("ann") <= in_time
    assert results.count("ldap gave no answer within 5 s") == WAITING_MAX - results.count("ann")
    assert (await checker.check(SECRET)).user == "ann"


# --- a broker ---


class Directory:
    """A plugin whose authenticator knows one password."""

    name, value, dist = "directory", "tests:directory", None

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.gate.set()
        self.done = trio.Event()

    def load(self) -> object:
        return self

    @hookimpl
    def linn_register_authenticator(self) -> AuthenticatorKind:
        return AuthenticatorKind("directory", None, lambda settings, env: self)

    async def authenticate(self, credentials: Credentials) -> Authenticated | None:
        await self.gate.wait()
        self.done.set()
        return Authenticated(credentials.user, ["reader", "none"]) if credentials.secret == "opensesame" else None


@asynccontextmanager
async def broker_with(folder: Path, directory: Directory, more: str = "") -> AsyncIterator[Broker]:
    text = f"""
[broker]
data_dir = "{folder}/data"
default_storage = "dram"
[listeners.native]
address = "unix:{folder}/linn.sock"
login = "required"
methods = ["directory"]
[roles.reader]
"topic:news" = ["see"]
[topics.news]
{more}
"""
    source = TomlSource(text, "test.toml")
    ours: list[Any] = [entry for entry in installed() if entry.dist is not None and entry.dist.name == "linn"]
    plugins = PluginManager(plugin_settings(source), [*ours, directory])
    async with running_broker(load_config(source, plugins), RealEnv(), plugins) as broker:
        yield broker


async def test_a_user_of_a_directory_has_the_roles_that_it_names(tmp_path: Path) -> None:
    more = '[roles.writer]\n"topic:news" = ["publish"]\n[users.bob]\nroles = ["writer"]\n'
    async with broker_with(tmp_path, Directory(), more):
        url = f"linn+unix://{tmp_path}/linn.sock"
        async with linn.connect(url, login=linn.Password("ann", "opensesame", plain=True)) as client:
            said = await client.admin.whoami()
            assert (said["user"], said["login"], said["roles"]) == ("ann", "PLAIN", ["reader"])
            assert [topic["name"] for topic in await client.admin.topics()] == ["news"]
            with pytest.raises(Forbidden):
                async with client.producer("news") as producer:
                    await producer.publish(b"a")
        async with linn.connect(url, login=linn.Password("bob", "opensesame", plain=True)) as client:
            assert (await client.admin.whoami())["roles"] == ["writer", "reader"]
            async with client.producer("news") as producer:
                await producer.publish(b"a")
        with pytest.raises(AuthFailed):
            async with linn.connect(url, login=linn.Password("ann", "wrong", plain=True)):
                pass
        with pytest.raises(AuthFailed, match="it takes PLAIN"):
            async with linn.connect(url, login=linn.Password("ann", "opensesame")):
                pass


async def test_a_client_may_leave_before_the_answer(tmp_path: Path) -> None:
    directory = Directory()
    directory.gate = trio.Event()
    async with broker_with(tmp_path, directory) as broker:
        url = f"linn+unix://{tmp_path}/linn.sock"
        login = linn.Password("ann", "opensesame", plain=True)
        with trio.move_on_after(0.2):
            async with linn.connect(url, login=login):
                pass
        directory.gate.set()
        with trio.fail_after(10):
            await directory.done.wait()
            while broker.client_count:
                await trio.lowlevel.checkpoint()
        async with linn.connect(url, login=login) as client:
            assert client.user == "ann"


# --- plugins and configuration ---


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (AuthenticatorKind("scram", None, lambda settings, env: Directory()), "the name of another way to log in"),
        (AuthenticatorKind("x", None, lambda settings, env: Directory(), ("SCRAM",)), "checks"),
        (AuthenticatorKind("x", None, lambda settings, env: Directory(), ()), "checks"),
        (AuthenticatorKind("x", None, lambda settings, env: Directory(), "PLAIN"), "checks"),  # type: ignore[arg-type]
    ],
)
def test_a_kind_that_can_not_be_used_stops_the_start(kind: AuthenticatorKind, says: str) -> None:
    class Wrong(Directory):
        @hookimpl
        def linn_register_authenticator(self) -> AuthenticatorKind:
            return kind

    with pytest.raises(PluginError, match=says):
        PluginManager(plugin_settings(TomlSource("", "test.toml")), [Wrong()])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[listeners.native]\nlogin = "required"\nmethods = ["directry"]\n', 'way to log in "directry"; did you mean'),
        ('[authenticators.scram]\nauthenticator = "directory"\n', '"scram" is a way to log in already'),
        ('[authenticators.x]\nauthenticator = "directory"\nurl = "y"\n', "url"),
        ("[authenticators.x]\n", 'no plugin provides the authenticator "x"'),
    ],
)
def test_a_file_names_authenticators_that_exist(text: str, says: str) -> None:
    source = TomlSource(text, "test.toml")
    ours: list[Any] = [entry for entry in installed() if entry.dist is not None and entry.dist.name == "linn"]
    plugins = PluginManager(plugin_settings(source), [*ours, Directory()])
    with pytest.raises((ConfigError, LinnError), match=says):
        load_config(source, plugins)
