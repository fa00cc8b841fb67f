"""Logins of connections: what is offered, who is known without a login, and what failures cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from linn.core.errors.auth import AuthFailed
from linn.core.errors.tree import ConfigError
from linn.core.security.logins import (
    COUNTED_MAX,
    FAILURES_FORGOTTEN_S,
    MESSAGES_MAX,
    REFUSED,
    WAIT_MAX_S,
    Failures,
    Identity,
    Login,
    LoginRules,
    Logins,
    Peer,
)
from linn.core.security.sasl.plain import PLAIN
from linn.core.security.sasl.scram import SCRAM, SCRAM_PLUS, ScramClient, make_verifier, salt_password
from linn.core.security.sasl.tokens import BEARER, TokenUser, bearer_message
from linn.core.security.users import ServiceUser, User, Users, check_user_name

pytestmark = pytest.mark.quick

SCRAM_TEXT = make_verifier("opensesame", b"salt of 16 bytes", 4_096).text()
REQUIRED = LoginRules(is_required=True)
ALL = LoginRules(is_required=True, methods=("peer", "certificate", "scram", "token", "plain"))
FAR = Peer("10.0.0.1:4711")
TLS = Peer("10.0.0.1:4711", is_private=True, binding=b"h" * 32)


class Clock:
    """A clock that goes on only in sleeps, which it keeps."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return int(self.now_s * 1000)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Keys:
    """Keys that know one token."""

    def __init__(self, roles: tuple[str, ...] | None = None) -> None:
        self.roles = roles

    def check(self, token: str, now_s: float) -> TokenUser:
        return TokenUser(token, self.roles, now_s + 60)


async def here(work: Callable[[], bool]) -> bool:
    return work()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logins(clock: Clock) -> Logins:
    ann = User(name="ann", scram=SCRAM_TEXT, uid=7, certificate="urn:ann")
    users = Users([ann, User(name="bob", uid=8), User(name="eve", scram="nonsense")])
    return Logins(users, clock, bytes, here, own_uid=1)


async def scram(login: Login, user: str = "ann", password: str = "opensesame", binding: bytes = b"") -> None:
    client = ScramClient(user, b"c" * 18, login.mechanisms, binding)
    salting = client.salting(await login.step(client.mechanism, client.first()))
    client.check(await login.step(client.mechanism, client.final(salt_password(password, *salting))))


@pytest.mark.parametrize(
    ("rules", "peer", "identity"),
    [
        (LoginRules(), FAR, Identity("anonymous", "none")),
        (LoginRules(), Peer("unix:x", uid=7), Identity("anonymous", "none")),
        (REQUIRED, FAR, None),
        (REQUIRED, Peer("unix:x", uid=1), Identity("administrator", "peer")),
        (REQUIRED, Peer("unix:x", uid=8), Identity("bob", "peer")),
        (REQUIRED, Peer("unix:x", uid=9), None),
        (LoginRules(is_required=True, methods=("scram",)), Peer("unix:x", uid=1), None),
        (REQUIRED, Peer("10.0.0.1:1", names=("urn:ann", "ann.example")), Identity("ann", "certificate")),
        (REQUIRED, Peer("10.0.0.1:1", names=("urn:another",)), None),
        (LoginRules(is_required=True, methods=("scram",)), Peer("10.0.0.1:1", names=("urn:ann",)), None),
    ],
)
def test_some_are_known_by_their_connection(
    logins: Logins, rules: LoginRules, peer: Peer, identity: Identity | None
) -> None:
    assert logins.begin(rules, peer).identity == identity


@pytest.mark.parametrize("peer", [Peer("unix:x", uid=1), Peer("10.0.0.1:1", is_private=True, names=("urn:ann",))])
async def test_a_login_counts_in_place_of_what_a_connection_says(logins: Logins, peer: Peer) -> None:
    logins.users.put(User(name="eva", scram=SCRAM_TEXT))
    login = logins.begin(REQUIRED, peer, asks=True)
    assert login.identity is None
    await scram(login, "eva")
    assert login.identity == Identity("eva", SCRAM)
    assert logins.begin(LoginRules(), peer, asks=True).identity == Identity("anonymous", "none")


async def test_a_program_of_a_service_logs_in_by_its_password_alone(logins: Logins) -> None:
    verifier = make_verifier("opensesame", b"salt of 16 bytes", 4_096)
    logins.users.services["service:x"] = ServiceUser("service:x", verifier, ())
    login = logins.begin(ALL, TLS)
    await scram(login, "service:x", binding=b"h" * 32)
    assert login.identity == Identity("service:x", SCRAM_PLUS)
    for roles in (None, ("job",)):
        logins.tokens = Keys(roles)  # type: ignore[assignment]
        with pytest.raises(AuthFailed):
            await logins.begin(ALL, TLS).step(BEARER, bearer_message("service:x"))


def test_a_process_without_a_user_id_is_no_administrator(clock: Clock) -> None:
    """In a simulation, and on other sockets, there is none: no two of them are the same process."""
    assert Logins(Users(), clock, bytes, here, own_uid=None).begin(REQUIRED, FAR).identity is None


def test_what_is_offered_depends_on_the_listener_and_the_connection(logins: Logins) -> None:
    assert logins.begin(ALL, FAR).mechanisms == [SCRAM]
    assert logins.begin(ALL, TLS).mechanisms == [SCRAM_PLUS, SCRAM, PLAIN]
    assert logins.begin(REQUIRED, TLS).mechanisms == [SCRAM_PLUS, SCRAM]
    logins.tokens = Keys()  # type: ignore[assignment]
    assert logins.begin(ALL, FAR).mechanisms == [SCRAM]
    assert logins.begin(ALL, TLS).mechanisms == [SCRAM_PLUS, SCRAM, BEARER, PLAIN]
    assert logins.begin(LoginRules(is_required=True, methods=("token",)), TLS).mechanisms == [BEARER]


@pytest.mark.parametrize(("peer", "how"), [(FAR, SCRAM), (TLS, SCRAM_PLUS)])
async def test_a_password_logs_in(logins: Logins, peer: Peer, how: str) -> None:
    login = logins.begin(ALL, peer)
    await scram(login, binding=peer.binding)
    assert login.identity == Identity("ann", how)


async def test_plain_and_tokens_log_in(logins: Logins) -> None:
    logins.tokens = Keys()  # type: ignore[assignment]
    login = logins.begin(ALL, TLS)
    assert await login.step(PLAIN, b"\0ann\0opensesame") == b""
    assert login.identity == Identity("ann", PLAIN)
    login = logins.begin(ALL, TLS)
    assert await login.step(BEARER, bearer_message("bob")) == b""
    assert login.identity == Identity("bob", BEARER, 1_060.0)


async def refused(login: Login, mechanism: str, data: bytes) -> None:
    with pytest.raises(AuthFailed) as caught:
        await login.step(mechanism, data)
    assert caught.value.text == REFUSED
    assert login.identity is None


async def test_every_failure_has_one_text(logins: Logins) -> None:
    logins.tokens = Keys()  # type: ignore[assignment]
    for user, password in (("ann", "wrong"), ("bob", "x"), ("nobody", "x"), ("eve", "x")):
        login = logins.begin(ALL, FAR)
        with pytest.raises(AuthFailed) as caught:
            await scram(login, user, password)
        assert caught.value.text == REFUSED
        await refused(logins.begin(ALL, TLS), PLAIN, f"\0{user}\0{password}".encode())
    await refused(logins.begin(ALL, TLS), BEARER, bearer_message("nobody"))
    await refused(logins.begin(ALL, FAR), SCRAM, b"nonsense")


async def test_what_is_not_offered_is_refused(logins: Logins) -> None:
    for mechanism in (PLAIN, BEARER, SCRAM_PLUS, "", "scram-sha-256", "ANONYMOUS", "EXTERNAL"):
        await refused(logins.begin(ALL, FAR), mechanism, b"\0ann\0opensesame")


async def test_a_login_keeps_its_mechanism_and_has_one_attempt(logins: Logins) -> None:
    login = logins.begin(ALL, TLS)
    await login.step(SCRAM_PLUS, ScramClient("ann", b"c", [SCRAM_PLUS], TLS.binding).first())
    await refused(login, PLAIN, b"\0ann\0opensesame")
    for _ in range(MESSAGES_MAX):
        await refused(login, PLAIN, b"\0ann\0opensesame")
    done = logins.begin(ALL, TLS)
    await done.step(PLAIN, b"\0ann\0opensesame")
    with pytest.raises(AuthFailed):
        await done.step(PLAIN, b"\0ann\0opensesame")


async def test_from_the_fifth_failure_on_answers_wait(logins: Logins, clock: Clock) -> None:
    for _ in range(12):
        with pytest.raises(AuthFailed):
            await scram(logins.begin(ALL, FAR), "ann", "wrong")
    assert clock.slept == [1, 2, 3, 3, 3, 3, 3, 3]
    await scram(logins.begin(ALL, FAR))
    assert clock.slept[-2:] == [3, 3], "the right password waits too, or it would be told apart by its speed"
    clock.slept.clear()
    await scram(logins.begin(ALL, Peer("10.0.0.2:4711")))
    with pytest.raises(AuthFailed):
        await scram(logins.begin(ALL, FAR), "bob", "wrong")
    assert clock.slept == [], "other addresses and other names do not wait"
    clock.now_s += FAILURES_FORGOTTEN_S
    await scram(logins.begin(ALL, FAR))
    assert clock.slept == [], "nothing is locked"


async def test_failures_count_for_the_whole_network_of_an_ipv6_address(logins: Logins, clock: Clock) -> None:
    for number in range(6):
        with pytest.raises(AuthFailed):
            await scram(logins.begin(ALL, Peer(f"[2001:db8:0:1::{number}]:4711")), "ann", "wrong")
    assert clock.slept == [1, 2]


def test_the_count_of_failures_is_bounded() -> None:
    failures = Failures(lambda: 0.0)
    for number in range(COUNTED_MAX + 10):
        failures.count(("10.0.0.1", f"user {number}"))
    assert len(failures) == COUNTED_MAX
    for _ in range(200):
        failures.count(("10.0.0.1", "ann"))
    assert failures.wait_s(("10.0.0.1", "ann")) == WAIT_MAX_S


async def test_the_log_has_the_reason_in_one_line(logins: Logins, caplog: pytest.LogCaptureFixture) -> None:
    await refused(logins.begin(ALL, TLS), PLAIN, b"\0ann\0wrong")
    assert 'login as "ann" refused: a wrong password, or an unknown user' in caplog.text
    assert "wrong\0" not in caplog.text


@pytest.mark.parametrize("name", ["\uff41nn", "a\u00adnn", "ann\u200b", " ann", "ann\0", "", "a" * 256, "\ud800"])
def test_a_user_has_a_name_that_can_log_in(name: str) -> None:
    """One with a second form would be made, and could never log in; or be taken for another one."""
    with pytest.raises(ConfigError, match="not a user's name"):
        check_user_name(name)


async def test_each_login_is_told_once_with_its_way_and_its_outcome(logins: Logins) -> None:
    told: list[tuple[str, str, str, str]] = []
    logins.on_end = lambda *end: told.append(end)
    await scram(logins.begin(REQUIRED, FAR))
    with pytest.raises(AuthFailed):
        await scram(logins.begin(REQUIRED, FAR), password="wrong")
    logins.begin(REQUIRED, Peer("unix:x", uid=1))
    logins.begin(LoginRules(), FAR)
    assert told == [
        (FAR.address, "ann", SCRAM, "done"),
        (FAR.address, "ann", SCRAM, AuthFailed.code),
        ("unix:x", "administrator", "peer", "done"),
    ]
