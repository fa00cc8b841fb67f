"""SCRAM: the vectors of RFC 7677, another library on each side, and every order of messages that is no login."""

from __future__ import annotations

import contextlib
import re
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from linn.core.errors.tree import ConfigError
from linn.core.security.sasl.mechanism import SaslError
from linn.core.security.sasl.scram import (
    ITERATIONS,
    MESSAGE_BYTES_MAX,
    SCRAM,
    SCRAM_PLUS,
    Salting,
    ScramClient,
    ScramServer,
    Verifier,
    make_verifier,
    salt_password,
    unknown_user,
)

pytestmark = pytest.mark.quick

SALT = b"sixteen of bytes"
SECRET = b"a secret of the broker's"
FEW = 4_096
"""Iterations of most tests: the least allowed."""
ANN = make_verifier("opensesame", SALT, FEW)
HASH = bytes(range(32))


def server(*, binding: bytes = b"", plus: bool = False, nonce: bytes = b"N" * 18) -> ScramServer:
    return ScramServer({"ann": ANN}.get, SECRET, nonce, binding=binding, plus=plus)


def client(user: str = "ann", binding: bytes = b"", offered: tuple[str, ...] = (SCRAM,)) -> ScramClient:
    return ScramClient(user, b"c" * 18, offered, binding)


def log_in(one: ScramClient, other: ScramServer, password: str = "opensesame") -> str:
    salting = one.salting(other.step(one.first()).data)
    step = other.step(one.final(salt_password(password, *salting)))
    one.check(step.data)
    return step.user


def test_the_vector_of_rfc_7677() -> None:
    """Section 3 of the RFC: user "user", password "pencil"."""
    salt, nonce = b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    stored = make_verifier("pencil", salt, 4_096)
    broker = ScramServer({"user": stored}.get, SECRET, b"", plus=False)
    broker._nonce = nonce[len("rOprNGfwEbeRWgbNEkqO") :]
    first = broker.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").data
    assert first == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    final = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    assert broker.step(final) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")
    asking = ScramClient("user", b"", [SCRAM])
    asking._nonce, asking._bare = "rOprNGfwEbeRWgbNEkqO", "n=user,r=rOprNGfwEbeRWgbNEkqO"
    salting = asking.salting(first)
    assert asking.final(salt_password("pencil", *salting)) == final
    asking.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("plus", [False, True], ids=["scram", "plus"])
def test_a_client_of_another_library_logs_in(plus: bool) -> None:
    binding = ("tls-server-end-point", HASH) if plus else None
    name = SCRAM_PLUS if plus else SCRAM
    other = scramp.ScramClient([name], "ann", "opensesame", channel_binding=binding)
    broker = server(binding=HASH if plus else b"", plus=plus)
    other.set_server_first(broker.step(other.get_client_first().encode()).data.decode())
    step = broker.step(other.get_client_final().encode())
    other.set_server_final(step.data.decode())
    assert step.user == "ann"


@pytest.mark.parametrize("plus", [False, True], ids=["scram", "plus"])
def test_a_server_of_another_library_takes_the_client(plus: bool) -> None:
    binding = ("tls-server-end-point", HASH) if plus else None
    mechanism = scramp.ScramMechanism(SCRAM_PLUS if plus else SCRAM)
    stored = mechanism.make_auth_info("opensesame", iteration_count=FEW, salt=SALT)
    other = mechanism.make_server(lambda _: stored, channel_binding=binding)
    one = client(binding=HASH if plus else b"", offered=(SCRAM, SCRAM_PLUS) if plus else (SCRAM,))
    other.set_client_first(one.first().decode())
    salting = one.salting(other.get_server_first().encode())
    other.set_client_final(one.final(salt_password("opensesame", *salting)).decode())
    one.check(other.get_server_final().encode())


def test_a_wrong_password_and_an_unknown_user_get_the_same_answers() -> None:
    for user, password in (("ann", "wrong"), ("bob", "opensesame")):
        with pytest.raises(SaslError, match="a wrong password, channel binding or nonce, or an unknown user"):
            log_in(client(user), server(), password)


def test_the_salt_of_an_unknown_user_is_always_the_same_and_depends_on_the_secret() -> None:
    first = server().step(client("bob").first()).data
    assert first == server().step(client("bob").first()).data
    assert f"i={ITERATIONS}".encode() in first
    assert unknown_user("bob", SECRET).salt != unknown_user("bob", b"another").salt != unknown_user("rob", SECRET).salt


@pytest.mark.parametrize(("length", "more"), [(1, ""), (24, ""), (47, ""), (48, "A")])
def test_a_nonce_is_compared_in_full(length: int, more: str) -> None:
    """CVE-2024-56128: Kafka compared less, and a message of one login could be sent in another."""
    one, broker = client(), server()
    salting = one.salting(broker.step(one.first()).data)
    one._whole_nonce = one._whole_nonce[:length] + more
    with pytest.raises(SaslError):
        broker.step(one.final(salt_password("opensesame", *salting)))


def test_the_final_message_of_another_login_is_refused() -> None:
    one, broker = client(), server()
    salting = one.salting(broker.step(one.first()).data)
    final = one.final(salt_password("opensesame", *salting))
    another = server(nonce=b"M" * 18)
    another.step(one.first())
    with pytest.raises(SaslError):
        another.step(final)
    assert broker.step(final).user == "ann"


def test_a_client_that_was_not_offered_plus_is_refused_where_it_was() -> None:
    """Flag "y": the client could bind, and was told that the server can't. Somebody has changed the list."""
    with pytest.raises(SaslError, match="not offered PLUS"):
        server(binding=HASH).step(client(binding=HASH).first())
    assert log_in(client(binding=HASH), server()) == "ann"
    assert log_in(client(), server(binding=HASH)) == "ann"


def test_plus_is_bound_to_the_certificate() -> None:
    offered = (SCRAM, SCRAM_PLUS)
    assert log_in(client(binding=HASH, offered=offered), server(binding=HASH, plus=True)) == "ann"
    with pytest.raises(SaslError):
        log_in(client(binding=bytes(32), offered=offered), server(binding=HASH, plus=True))
    with pytest.raises(SaslError, match="another channel binding"):
        server(binding=b"", plus=True).step(client(binding=HASH, offered=offered).first())


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=ann",
        b"n,,r=abc,n=ann",
        b"n,,n=ann,r=",
        b"n,,n=,r=abc",
        b"n,,n=ann\0,r=abc",
        b"n,,n=ann,r=\x7f",
        b"n,,n=ann,r=" + b"r" * 257,
        b"n,a=bob,n=ann,r=abc",
        b"n,a=ann,n=ann,r=abc",
        b"n,,m=ext,n=ann,r=abc",
        b"n,,n=a=nn,r=abc",
        b"n,,n=a=2Dnn,r=abc",
        b"p=tls-unique,,n=ann,r=abc",
        b"p=tls-server-end-point,,n=ann,r=abc",
        b"x,,n=ann,r=abc",
        b"\xff,,n=ann,r=abc",
        "n,,n=\uff41nn,r=abc".encode(),
        "n,,n=a\u00adnn,r=abc".encode(),
        "n,,n=ann\u200b,r=abc".encode(),
        "n,,n=\u202eann,r=abc".encode(),
        b"n,,n= ann,r=abc",
        b"n,,n=" + b"a" * 256 + b",r=abc",
        b"n,,n=" + b"a" * (64 << 10) + b",r=abc",
    ],
)
def test_a_wrong_first_message_is_refused(first: bytes) -> None:
    broker = server()
    with pytest.raises(SaslError):
        broker.step(first)
    with pytest.raises(SaslError, match="after the end"):
        broker.step(client().first())


@pytest.mark.parametrize(
    "iterations", ["0", "1", "4095", "10000001", "2147483648", "-1", "", "4e9", "9" * 5_000, "٤٠٩٦"]
)
def test_a_client_computes_no_useless_and_no_endless_iterations(iterations: str) -> None:
    one = client()
    first = server().step(one.first()).data.decode()
    asked = first.rpartition("i=")[0] + "i=" + iterations
    with pytest.raises(SaslError):
        one.salting(asked.encode())


@pytest.mark.parametrize(
    "first",
    [b"", b"r=other,s=c2FsdA==,i=4096", b"e=unknown-user", b"m=x,r=1,s=1,i=1", b"r=Y2NjY2Nj,s=,i=4096", b"\xff"],
)
def test_a_client_takes_no_answer_to_another_login(first: bytes) -> None:
    with pytest.raises(SaslError):
        client().salting(first)


def test_a_client_wants_more_than_its_own_nonce_back() -> None:
    one = client()
    with pytest.raises(SaslError, match="another login"):
        one.salting(f"r={b64encode(b'c' * 18).decode()},s=c2FsdA==,i=4096".encode())


def test_a_server_that_does_not_know_the_verifier_is_found_out() -> None:
    one = client()
    one.salting(server().step(one.first()).data)
    with pytest.raises(SaslError, match="has not proved"):
        one.check(b"v=" + b64encode(bytes(32)))
    one.final(bytes(32))
    for final in (b"", b"v=", b"v=" + b64encode(bytes(32)), b"e=other-error", b"v=" + b64encode(b"short")):
        with pytest.raises(SaslError):
            one.check(final)


def test_a_client_without_an_offer_of_scram_says_so() -> None:
    with pytest.raises(SaslError, match="takes no passwords"):
        client(offered=("PLAIN",))


def test_names_are_escaped() -> None:
    stored = make_verifier("x", SALT, FEW)
    broker = ScramServer({"a,b=c=2C": stored}.get, SECRET, b"n" * 18, plus=False)
    assert log_in(client("a,b=c=2C"), broker, "x") == "a,b=c=2C"


@pytest.mark.parametrize(
    ("typed", "stored"),
    [("I\u00adX", "IX"), ("\u00aa", "a"), ("\u2168", "IX"), ("a\u00a0b", "a b"), ("\u0627\u0031", "\u06271")],
)
def test_passwords_are_prepared(typed: str, stored: str) -> None:
    """Examples of RFC 4013; the last one is prohibited, and taken as it is."""
    assert salt_password(typed, SALT, FEW) == salt_password(stored, SALT, FEW)


def test_a_verifier_is_text_as_in_postgresql() -> None:
    text = ANN.text()
    assert text.startswith("SCRAM-SHA-256$4096:")
    assert Verifier.parse(text) == ANN
    assert "***" in repr(ANN)
    assert "opensesame" not in repr(ANN)
    assert ANN.accepts("opensesame")
    assert not ANN.accepts("opensesam")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[1:],
        lambda text: text[:-2],
        lambda text: text + "$",
        lambda text: text.replace("4096", "0"),
        lambda text: text.replace("4096", "4095"),
        lambda text: text.replace("4096", "9" * 5_000),
        lambda text: text.replace("4096", "-4096"),
        lambda text: text.replace("SHA-256", "SHA-1"),
        lambda text: text.replace(b64encode(SALT).decode(), ""),
        lambda text: "md5" + "0" * 32,
    ],
)
def test_another_text_is_no_verifier(change: object) -> None:
    with pytest.raises(ConfigError):
        Verifier.parse(change(ANN.text()))  # type: ignore[operator]


_PIECES = st.sampled_from(["first", "final", "old final", "empty", "answer", "signature"])
_RIGHT = b"opensesame"
_SALTED = salt_password("opensesame", SALT, FEW)


@given(
    order=st.lists(_PIECES, max_size=6),
    place=st.integers(0, 400),
    changed=st.sampled_from([b"", b",", b"=", b"n", b"\0", b"A", b"AA", b"c=biws,"]),
    cut=st.integers(0, 2),
    mutated=st.sampled_from(["first", "final"]),
)
def test_no_other_order_or_bytes_log_in(order: list[str], place: int, changed: bytes, cut: int, mutated: str) -> None:
    """Whatever is sent, a login needs the first message, then its own final one, and nothing else in between."""
    old = server(nonce=b"O" * 18)
    earlier = client()
    earlier_answer = old.step(earlier.first()).data
    earlier.salting(earlier_answer)
    broker, one = server(), client()
    said = {"empty": b"", "answer": earlier_answer, "signature": b"v=" + b64encode(bytes(32)), "first": one.first()}
    said["old final"] = said["final"] = earlier.final(_SALTED)
    user = ""
    sent: list[bytes] = []
    for piece in order:
        message = said[piece]
        if piece == mutated:
            message = message[:place] + changed + message[place + cut :]
        sent.append(message)
        try:
            step = broker.step(message)
        except SaslError:
            continue
        user = user or step.user
        if message == one.first():
            one.salting(step.data)
            said["final"] = one.final(_SALTED)
    if user:
        assert sent[:2] == [one.first(), said["final"]]


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_bytes_are_refused_and_nothing_else_happens(first: bytes, final: bytes) -> None:
    broker = server()
    for message in (first, final):
        with contextlib.suppress(SaslError):
            assert not broker.step(message).user


def test_no_message_is_taken_twice() -> None:
    one, broker = client(), server()
    answer = broker.step(one.first()).data
    final = one.final(salt_password("opensesame", *one.salting(answer)))
    with pytest.raises(SaslError, match="twice"):
        one.salting(answer)
    assert broker.step(final).user == "ann"
    for message in (final, one.first()):
        with pytest.raises(SaslError, match="after the end"):
            broker.step(message)


def test_the_verifier_on_the_page_about_logins_is_that_of_its_password() -> None:
    page = Path(__file__).parents[2] / "docs/how-to/log-in.md"
    (text,) = re.findall(r'^scram = "(.*)"$', page.read_text(encoding="utf-8"), re.MULTILINE)
    (password,) = re.findall(r'linn.Password\("ann", "(.*)"\)', page.read_text(encoding="utf-8"))
    assert Verifier.parse(text).accepts(password)


def test_messages_have_a_limit() -> None:
    with pytest.raises(SaslError, match="more than"):
        client().salting(bytes(MESSAGE_BYTES_MAX + 1))
    assert Salting(b"x", 1) == (b"x", 1)
