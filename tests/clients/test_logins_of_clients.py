"""Logins of clients in every language that has them: who they are to the broker, and what they say when it fails."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import CPP_BUILD, TYPESCRIPT, AgentProcess, Commands, Refused
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from programs import Programs
from tls_world import SIGNATURES, pair, self_signed, tls_table
from token_world import AUDIENCE, ISSUER, KEY, OTHER, token, write_keys

from linn.core.security.sasl.prepare import prepared_password, saslprep
from linn.core.security.sasl.scram import make_verifier
from linn.core.security.x509 import server_end_point
from linn.testing.process import BrokerProcess

pytestmark = pytest.mark.timeout(1_200)  # A first build of a client is a part of it.

PASSWORD = "corre\u0301ct\u00a0horse"
"""A password that SASLprep changes: it composes the accent, and makes the space a common one."""
VERIFIER = make_verifier("corr\u00e9ct horse", b"salt of 16 bytes", 4_096).text()


def config(folder: Path, port: int = 0) -> str:
    """Listeners that require a login, in this order: in plain, with TLS, and a Unix socket that knows its peer."""
    write_keys(folder / "keys.json", KEY)
    ask = f'client_ca = "{folder}/ca.pem"\nclient_certificate = "optional"'
    return f"""
{tls_table(folder, ask)}
[listeners.plain]
address = "127.0.0.1:0"
login = "required"
[listeners.secure]
address = "127.0.0.1:{port}"
tls = "edge"
login = "required"
[listeners.local]
address = "unix:{folder}/socket"
login = "required"
[tokens]
keys = "{folder}/keys.json"
issuer = "{ISSUER}"
audience = "{AUDIENCE}"
[users.ann]
roles = ["administrator"]
scram = "{VERIFIER}"
certificate = "ann.example"
[topics.jobs]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logins")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(folder, config(folder), listen=()) as running:
        yield running


# --- every client ----------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(language: str, agent: AgentProcess) -> str:
    """The password as a user types it; the C++ client takes only what is prepared."""
    if language == "cpp" and not (CPP_BUILD / "tests" / "linn-test-tls").is_file():
        pytest.skip("the C++ client is built without OpenSSL")
    return saslprep(PASSWORD) if language == "cpp" else PASSWORD


def test_a_login_lets_a_client_work(agent: AgentProcess, broker: BrokerProcess, folder: Path, secret: str) -> None:
    plain, secure, local = broker.urls
    password, tls = {"user": "ann", "password": secret}, {"url": secure, "ca": str(folder / "ca.pem")}
    for login in (
        {"url": plain, **password},
        {**tls, **password},
        {**tls, "token": token("ann")},
        {"url": local},
        {"url": local, **password},
    ):
        agent.ask("connect", **login)
        assert agent.ask("publish", topic="jobs", records=[{"value": "aGVsbG8="}])["placements"]
        agent.ask("close")


def test_every_login_that_fails_has_the_same_code(
    agent: AgentProcess, broker: BrokerProcess, folder: Path, secret: str
) -> None:
    plain, secure, _ = broker.urls
    tls = {"url": secure, "ca": str(folder / "ca.pem")}
    for login in (
        {"url": plain},
        {"url": plain, "user": "ann", "password": "wrong"},
        {"url": plain, "user": "nobody", "password": secret},
        {"url": plain, "token": token("ann")},
        {**tls, "user": "ann", "password": "wrong"},
        {**tls, "token": token("ann", OTHER)},
        {**tls, "token": token("nobody")},
    ):
        with pytest.raises(Refused) as refused:
            agent.ask("connect", **login)
        assert refused.value.code == "auth.failed", login
        assert not any(text in str(refused.value) for text in (secret, "wrong", token("ann")[:20]))


# --- the TypeScript client -------------------------------------------------------------------------------------------

WHO = """
import { connect, Password, Token } from "linn-client";

const { url, user, password, token, ...tls } = JSON.parse(process.argv[2]);
const login = user ? new Password(user, password) : token ? new Token(async () => token) : undefined;
const client = await connect(url, { ...(login ? { login } : {}), ...(tls.ca ? { tls } : {}) });
const said = await client.administer("user.whoami");
console.log(`${client.user} ${said.user} ${said.login}`);
await client.close();
"""
WORKER = """
import { connect, Password, Token } from "linn-client";

const { url, tls, user, password, token } = JSON.parse(process.argv[2]);
let asked = 0;
const login = user ? new Password(user, password) : new Token(() => (console.log(`token ${++asked}`), token));
const client = await connect(url, { tls, login });
const consumer = await client.consumer("jobs");
const producer = client.producer({ topic: "jobs" });
for (const job of ["first", "second"]) {
  await producer.publish({ value: job });
  const message = await consumer.next();
  await message.ack();
  console.log(`${Buffer.from(message.value)} of ${client.user}`);
  if (job === "first") await new Promise((resolve) => process.stdin.once("data", resolve));
}
process.exit();
"""
RENEWER = """
import { sign } from "node:crypto";
import { connect, Token } from "linn-client";

const { url, ca, key, claims } = JSON.parse(process.argv[2]);
const encoded = (value) => Buffer.from(value).toString("base64url");
let asked = 0;
const token = () => {
  console.log(`token ${++asked}`);
  const payload = JSON.stringify({ ...claims, exp: Date.now() / 1000 + 2 });
  const signed = `${encoded('{"alg":"ES256"}')}.${encoded(payload)}`;
  return `${signed}.${encoded(sign("sha256", signed, { key, dsaEncoding: "ieee-p1363" }))}`;
};
const client = await connect(url, { tls: { ca }, login: new Token(token) });
const producer = client.producer({ topic: "jobs" });
await producer.publish({ value: "a long job" });
const consumer = await client.consumer("jobs");
const message = await consumer.next();
console.log("begins");
await new Promise((resolve) => process.stdin.once("data", resolve));
await message.ack();
await producer.publish({ value: "the next one" });
console.log(`then ${Buffer.from((await consumer.next()).value)}`);
process.exit();
"""
DERIVE = """
import { readFileSync } from "node:fs";
import { preparedPassword } from "./src/saslprep.js";
import { serverEndPoint } from "./src/x509.js";

const [what, path] = process.argv.slice(2);
const given = JSON.parse(readFileSync(path, "utf8"));
const derive = {
  passwords: (text) => Buffer.from(preparedPassword(text)).toString("base64"),
  certificates: (der) => serverEndPoint(Buffer.from(der, "base64"))?.toString("base64") ?? null,
};
console.log(JSON.stringify(given.map(derive[what])));
"""


@pytest.fixture
def script(command: Commands) -> Callable[[str, str], Path]:
    """A function that writes a program beside the client's modules."""
    command("typescript")

    def write(name: str, source: str) -> Path:
        path = TYPESCRIPT / "dist" / f"{name}.mjs"
        path.write_text(source, encoding="utf-8")
        return path

    return write


def said_by(program: Path, *arguments: str) -> str:
    command = ["node", str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.strip()


def test_the_client_says_who_it_is_and_the_broker_how_it_knows(
    script: Callable[[str, str], Path], broker: BrokerProcess, folder: Path
) -> None:
    plain, secure, local = broker.urls
    password, tls = {"user": "ann", "password": PASSWORD}, {"url": secure, "ca": str(folder / "ca.pem")}
    certificate, key = pair("ann.example")
    (folder / "ann.pem").write_bytes(certificate + key)
    program = script("who", WHO)
    for options, who, how in (
        ({"url": plain, **password}, "ann", "SCRAM-SHA-256"),
        ({**tls, **password}, "ann", "SCRAM-SHA-256-PLUS"),
        ({**tls, "token": token("ann")}, "ann", "OAUTHBEARER"),
        ({**tls, "certificate": str(folder / "ann.pem")}, "ann", "certificate"),
        ({"url": local}, "administrator", "peer"),
        ({"url": local, **password}, "ann", "SCRAM-SHA-256"),
    ):
        assert said_by(program, json.dumps(options)) == f"{who} {who} {how}"


@pytest.mark.parametrize(
    "login", [{"user": "ann", "password": PASSWORD}, {"token": token("ann")}], ids=["password", "token"]
)
def test_a_client_that_comes_back_logs_in_again(
    script: Callable[[str, str], Path], programs: Programs, tmp_path: Path, login: dict[str, str]
) -> None:
    with BrokerProcess(tmp_path, config(tmp_path), listen=()) as broker:
        url = broker.urls[1]
        options = {"url": url, "tls": {"ca": str(tmp_path / "ca.pem")}, **login}
        worker = programs.start("worker", "node", script("worker", WORKER), json.dumps(options))
        seen = programs.until("first of ann")
        broker.kill()
        broker.configure(config(tmp_path, int(url.rpartition(":")[2])))
        broker.start()
        worker.write("go on")
        seen += programs.until("second of ann")
    asked = [line for _, line in seen if line.startswith("token")]
    assert asked == (["token 1", "token 2"] if "token" in login else [])


def test_work_on_a_message_outlives_tokens(
    script: Callable[[str, str], Path], programs: Programs, tmp_path: Path
) -> None:
    key = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann"}
    with BrokerProcess(tmp_path, config(tmp_path), listen=()) as broker:
        options = {"url": broker.urls[1], "ca": str(tmp_path / "ca.pem"), "key": key, "claims": claims}
        worker = programs.start("worker", "node", script("renewer", RENEWER), json.dumps(options))
        programs.until("begins")
        programs.until("token 5")  # Each lasts two seconds, and is used for one.
        worker.write("go on")
        programs.until("then the next one")
        assert worker.log.read_text() == "", "the connection was not lost"


def derived(script: Callable[[str, str], Path], folder: Path, what: str, given: list[str]) -> list[Any]:
    (folder / "given.json").write_text(json.dumps(given))
    found: list[Any] = json.loads(said_by(script("derive", DERIVE), what, str(folder / "given.json")))
    return found


def test_the_channel_binding_is_that_of_the_broker(script: Callable[[str, str], Path], tmp_path: Path) -> None:
    certificates = [self_signed(tmp_path, kind) for kind in SIGNATURES]
    found = derived(script, tmp_path, "certificates", [encoded(der) for der in certificates])
    assert found == [None if (hash := server_end_point(der)) is None else encoded(hash) for der in certificates]


IDEOGRAPHS = range(0x3400, 0xD7A4)
"""With the syllables of Hangul: of these, few are tried."""
PLANES_END = 0x30000
"""Behind it there are tags, and what nobody has assigned."""


def texts() -> list[str]:
    """Every character alone, and texts of several that may compose, or be of different directions."""
    codes = [*range(0x80, PLANES_END), *range(0xE0000, 0xE0200), 0xF0000, 0x10FFFF]
    surrogates = range(0xD800, 0xE000)
    every = [chr(code) for code in codes if code not in surrogates and (code not in IDEOGRAPHS or code % 97 == 0)]
    chance = random.Random(4013)
    mixed = ["a", "1", " ", *(character for character in every if len(character.encode()) == 2), *every[::50]]
    several = ["".join(chance.choices(mixed, k=chance.randint(2, 4))) for _ in range(20_000)]
    return [*every, *several]


def test_passwords_are_prepared_as_by_the_broker(script: Callable[[str, str], Path], tmp_path: Path) -> None:
    given = texts()
    found = derived(script, tmp_path, "passwords", given)
    expected = [encoded(prepared_password(text)) for text in given]
    differ = [text for text, ours, theirs in zip(given, expected, found, strict=True) if ours != theirs]
    assert differ == []
    assert sum(encoded(text.encode()) != prepared for text, prepared in zip(given, expected, strict=True)) > 4_000


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
