"""Logins of the C++ client: by which mechanism, again after an outage, and no more when the broker has refused one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agents import CPP_BUILD, Commands
from programs import Programs
from tls_world import SIGNATURES, pair, self_signed, tls_table
from token_world import AUDIENCE, ISSUER, KEY, OTHER, token, write_keys

import linn
from linn.core.security.sasl.prepare import saslprep
from linn.core.security.sasl.scram import make_verifier
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of the client is a part of it.

LETTERS = "".join(
    character
    for first, last in ((0xA1, 0xA7), (0xBF, 0x17E), (0x388, 0x3CE), (0x400, 0x45F), (0x20AC, 0x20AC))
    for character in map(chr, range(first, last + 1))
    if character.isprintable() and saslprep(character) == character and ord(character) not in (0x390, 0x3B0)
)
"""Characters beyond ASCII that the client takes: those of these alphabets that SASLprep leaves as they are."""
PASSWORDS = {"ann": "opensesame", "bob": f"a password with {LETTERS}, = and ,", "eve, =": "!"}
TEXT = """
[listeners.plain]
address = "127.0.0.1:0"
login = "required"
[listeners.secure]
address = "127.0.0.1:{secure}"
tls = "edge"
login = "required"
[listeners.local]
address = "unix:{folder}/socket"
login = "required"
[tokens]
keys = "{folder}/keys.json"
issuer = "{issuer}"
audience = "{audience}"
[users.ann]
roles = ["administrator"]
certificate = "ann.example"
scram = "{ann}"
[topics.jobs]
"""


def verifier(password: str) -> str:
    return make_verifier(password, b"salt of 16 bytes", 4_096).text()


def config(folder: Path, secure: int = 0) -> str:
    write_keys(folder / "keys.json", KEY)
    listeners = TEXT.format(
        secure=secure, folder=folder, issuer=ISSUER, audience=AUDIENCE, ann=verifier(PASSWORDS["ann"])
    )
    return tls_table(folder, f'client_ca = "{folder}/ca.pem"\nclient_certificate = "optional"') + listeners


@pytest.fixture(autouse=True)
def built(command: Commands) -> None:
    command("cpp")
    if not (CPP_BUILD / "tests" / "linn-test-tls").is_file():
        pytest.skip("the C++ client is built without OpenSSL")


@contextmanager
def broker_in(folder: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(folder, config(folder), listen=()) as running:
        with linn.sync.connect(running.urls[2]) as client:
            for user in ("bob", "eve, ="):
                client.admin.create_user(user, ["administrator"], scram=verifier(PASSWORDS[user]))
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    with broker_in(folder) as running:
        yield running


def who_is(folder: Path, url: str, user: str = "", *, password: str = "", bearer: str = "", ca: bool = False) -> str:
    """Run the example; return the user and how it logged in, or its error."""
    environment = dict(os.environ)
    for name, value, content in (("PASSWORD", user, password or PASSWORDS.get(user, "")), ("TOKEN", bearer, bearer)):
        (folder / name).write_text(f"{content}\n", encoding="utf-8")
        if value:
            environment[f"LINN_{name}_FILE"] = str(folder / name)
    environment["LINN_USER"] = user
    command: list[str | Path] = [CPP_BUILD / "linn-whoami", url, *([folder / "ca.pem"] if ca else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return done.stderr
    shown, said = done.stdout.splitlines()
    assert json.loads(said)["user"] == shown
    return f"{shown} by {json.loads(said)['login']}"


def test_passwords_tokens_and_peers_say_who_the_client_is(broker: BrokerProcess, folder: Path) -> None:
    plain, secure, local = broker.urls
    for user in PASSWORDS:
        assert who_is(folder, plain, user) == f"{user} by SCRAM-SHA-256"
        assert who_is(folder, secure, user, ca=True) == f"{user} by SCRAM-SHA-256-PLUS"
    assert who_is(folder, secure, bearer=token("bob"), ca=True) == "bob by OAUTHBEARER"
    assert who_is(folder, local) == "administrator by peer"


def test_wrong_passwords_and_unknown_users_and_tokens_are_refused_alike(broker: BrokerProcess, folder: Path) -> None:
    plain, secure, _ = broker.urls
    tried = [
        who_is(folder, plain, "ann", password="wrong"),
        who_is(folder, plain, "nobody", password="opensesame"),
        who_is(folder, secure, "ann", password="wrong", ca=True),
        who_is(folder, secure, bearer=token("nobody"), ca=True),
    ]
    assert len(set(tried)) == 1
    assert tried[0].startswith("linn-whoami: ")
    assert tried[0].endswith(" [auth.failed]\n")
    assert not any(secret in tried[0] for secret in ("wrong", "opensesame", token("nobody")[:20]))
    assert "requires a login" in who_is(folder, plain)
    assert "takes no tokens" in who_is(folder, plain, bearer=token("ann"))


@pytest.mark.parametrize("password", ["e\N{COMBINING ACUTE ACCENT}", "\N{LATIN SMALL LIGATURE FI}", "\N{SOFT HYPHEN}x"])
def test_a_password_that_has_to_be_prepared_is_refused(broker: BrokerProcess, folder: Path, password: str) -> None:
    refused = who_is(folder, broker.urls[0], "ann", password=password)
    assert refused.endswith("[message.invalid]\n")
    assert password not in refused


def test_a_certificate_says_who_the_client_is(broker: BrokerProcess, folder: Path) -> None:
    certificate, key = pair("ann.example")
    (folder / "ann.pem").write_bytes(certificate + key)
    environment = {**os.environ, "TLS_CA": str(folder / "ca.pem"), "TLS_CERTIFICATE": str(folder / "ann.pem")}
    program: list[str | Path] = [CPP_BUILD / "tests" / "linn-test-tls", broker.urls[1]]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "received 20\n"


def test_the_binding_is_that_of_the_certificate_whatever_has_signed_it(tmp_path: Path) -> None:
    tables = [f'[users.ann]\nscram = "{verifier(PASSWORDS["ann"])}"']
    for number, kind in enumerate(SIGNATURES):
        place = tmp_path / str(number)
        place.mkdir()
        self_signed(place, kind)
        (place / "cert.pem").rename(place / "ca.pem")
        tables += [
            f'[tls.t{number}]\ncertificate = "{place}/ca.pem"\nkey = "{place}/key.pem"',
            f'[listeners.t{number}]\naddress = "127.0.0.1:0"\ntls = "t{number}"\nlogin = "required"',
        ]
    with BrokerProcess(tmp_path, "\n".join(tables), listen=()) as broker:
        for number, (kind, (_, digest)) in enumerate(SIGNATURES.items()):
            found = who_is(tmp_path / str(number), broker.urls[number], "ann", ca=True)
            assert found == f"ann by SCRAM-SHA-256{'' if digest is None else '-PLUS'}", kind


@pytest.mark.parametrize("way", ["password", "token"])
def test_a_client_that_comes_back_logs_in_again(
    programs: Programs, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is asked for each time. When the login is refused, the program hears of it, and nothing tries again."""
    (tmp_path / "token").write_text(token("bob"))
    login = {"LOGIN_USER": "bob", "LOGIN_PASSWORD": PASSWORDS["bob"]}
    for name, value in (login if way == "password" else {"LOGIN_TOKEN_FILE": str(tmp_path / "token")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TLS_CA", str(tmp_path / "ca.pem"))
    with broker_in(tmp_path) as broker:
        url, local = broker.urls[1:]
        programs.start("worker", CPP_BUILD / "tests" / "linn-test-worker", url, "read", "jobs")
        publish(local, "first")
        seen = programs.until("read first")
        broker.kill()
        broker.configure(config(tmp_path, secure=int(url.rpartition(":")[2])))
        broker.start()
        publish(local, "second")
        seen += programs.until("read second")
        with linn.sync.connect(local) as client:
            if way == "password":  # The connections that have logged in with the old one end.
                client.admin.alter_user("bob", scram=verifier("another password"))
            else:
                (tmp_path / "token").write_text(token("bob", OTHER))
                (connection,) = [it for it in client.admin.connections() if it["listener"] == "secure"]
                client.admin.close_connection(connection["number"])
        seen += programs.until("refused")
    assert seen[-1] == ("worker", "refused auth.failed")
    assert [line for _, line in seen if line == "token"] == (["token"] * 3 if way == "token" else [])


def publish(url: str, value: str) -> None:
    with linn.sync.connect(url) as client, client.producer("jobs") as producer:
        producer.publish(value.encode())
