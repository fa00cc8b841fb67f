"""Secrets of the configuration: read where others can't read them, and in nothing that the broker shows."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import trio
from raw_client import RawClient, Refused, broker_on, configured, connected, simulated

from linn.cli.definitions.export import tables_of, toml_text
from linn.cli.definitions.file import DefinitionFile
from linn.cli.render.config_report import print_report
from linn.cli.session import secret_in
from linn.core.broker.broker import Broker, running_broker
from linn.core.config.config import check_config
from linn.core.config.decoder import decode_settings, encode_settings
from linn.core.config.problem import Problems, dotted
from linn.core.config.tables import PluginSettings
from linn.core.config.toml_source import TomlSource
from linn.core.env.real.env import RealEnv
from linn.core.env.secret import MASK, SECRET_BYTES_MAX, Secret, masked, secrets_in
from linn.core.env.tls import read_files
from linn.core.errors.tls import TlsInvalid
from linn.core.errors.tree import SecretUnusable
from linn.core.plugins.manager import PluginManager, installed
from linn.core.security.sasl.scram import make_verifier
from linn.protocols.http.exposition import exposed
from linn.spark_plugin.service.pipeline import asked_for
from linn.spark_plugin.service.secret_options import is_secret, plain_secrets
from linn.testing.sim_env import SimEnv
from linn.testing.sim_platter import Folder
from linn.testing.sim_programs import SimProgram
from linn.wire import messages as m
from tests.spark.scripted_driver import _PYTHON as PYTHON
from tests.spark.scripted_driver import ScriptedDriver, java

VALUE = 'hunter2 "for" everybody'
HOW = 'write { file = "PATH" }, { env = "NAME" } or { credential = "NAME" }'


def _file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.touch(0o600)
    path.write_bytes(content)
    path.chmod(mode)
    return path


# --- reading ---


@pytest.mark.parametrize("content", [b"x y\n", b"x y\r\n", b"x y"])
def test_a_secret_is_the_text_of_its_file_without_the_end_of_the_line(tmp_path: Path, content: bytes) -> None:
    assert Secret(file=str(_file(tmp_path, content))).reveal(RealEnv()) == "x y"


def test_a_secret_of_several_lines_keeps_them(tmp_path: Path) -> None:
    assert Secret(file=str(_file(tmp_path, b"-----BEGIN\nx\n\n"))).reveal(RealEnv()) == "-----BEGIN\nx\n"


def test_a_secret_may_be_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINN_TEST_SECRET", VALUE)
    assert Secret(env="LINN_TEST_SECRET").reveal(RealEnv()) == VALUE
    monkeypatch.setenv("LINN_TEST_SECRET", "")
    with pytest.raises(SecretUnusable, match="the variable LINN_TEST_SECRET is not set, or is empty"):
        Secret(env="LINN_TEST_SECRET").reveal(RealEnv())


def test_a_credential_of_systemd_has_the_mode_of_its_access_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _file(tmp_path, VALUE.encode(), 0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert Secret(credential="secret").reveal(RealEnv()) == VALUE
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(SecretUnusable, match=r"systemd sets CREDENTIALS_DIRECTORY .* LoadCredential=secret:PATH"):
        Secret(credential="secret").reveal(RealEnv())


def _folder(folder: Path) -> Path:
    (folder / "secret").mkdir(0o700)
    return folder / "secret"


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "secret", 0o600)
    return folder / "secret"


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "secret", "No such file"),
    "a folder": (_folder, "not a file"),
    "a FIFO without a writer": (_fifo, "not a file"),
    "readable by the group": (lambda folder: _file(folder, b"x", 0o640), "others may use it (mode 0640); chmod 600"),
    "readable by all": (lambda folder: _file(folder, b"x", 0o604), "others may use it (mode 0604); chmod 600"),
    "writable by the group": (lambda folder: _file(folder, b"x", 0o620), "others may use it (mode 0620); chmod 600"),
    "empty": (lambda folder: _file(folder, b""), "is empty"),
    "a line feed": (lambda folder: _file(folder, b"\n"), "is empty"),
    "huge": (lambda folder: _file(folder, b"x" * (SECRET_BYTES_MAX + 1)), "has 65537 bytes, more than 65536"),
    "not UTF-8": (lambda folder: _file(folder, b"ab\xffcd"), "is not text in UTF-8"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_file_that_is_no_secret_is_refused_at_the_start_in_one_line(how: str, tmp_path: Path) -> None:
    make, text = BAD[how]
    path = make(tmp_path)
    toml = f'[users.ada]\nscram = {{ file = "{path}" }}\n[broker]\ndata_dir = "{tmp_path}/data"\n'

    async def main() -> None:
        config, plugins = configured(toml, head="")
        async with running_broker(config, RealEnv(), plugins):
            raise AssertionError("it starts")

    with pytest.raises(SecretUnusable) as refused:
        trio.run(main)
    assert refused.value.text.startswith("users.ada.scram: ")
    assert text in refused.value.text
    assert str(path) in refused.value.text
    assert "\n" not in refused.value.text
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("how", [how for how in BAD if how not in {"not UTF-8", "a line feed", "empty", "huge"}])
def test_the_key_of_a_certificate_is_refused_likewise(how: str, tmp_path: Path) -> None:
    make, text = BAD[how]
    path = make(tmp_path)
    certificate = tmp_path / "cert.pem"
    certificate.write_bytes(b"")
    with pytest.raises(TlsInvalid) as refused:
        read_files(RealEnv().disk, str(certificate), str(path), None)
    assert (refused.value.key, "\n" in refused.value.text) == ("key", False)
    assert text in refused.value.text


@pytest.mark.parametrize("how", [how for how in BAD if how not in {"huge"}])
def test_the_password_file_of_a_command_is_refused_likewise(how: str, tmp_path: Path) -> None:
    import typer

    with pytest.raises(typer.BadParameter):
        secret_in(str(BAD[how][0](tmp_path)), "LINN_PASSWORD_FILE")


# --- the file ---


def _problems(text: str) -> list[str]:
    source = TomlSource(text, "linn.toml")
    _, problems = check_config(source, PluginManager(PluginSettings(), installed()))
    return [problems.describe(problem) for problem in problems.in_order() if problem.severity == "error"]


SINK = '[topics.orders]\nkind = "stream"\n[topics.orders.spark_sink]\nformat = "jdbc"\n'
OF_SINK = "5: topics.orders.spark_sink.options"
CONNECTION = "[spark.connections.db]\n"
OF_CONNECTION = "1: spark.connections: "
PLAIN: list[tuple[str, str]] = [
    (CONNECTION + 'password = "VALUE"', "2: spark.connections.db.password: is a secret"),
    ('[spark.conf]\n"fs.s3a.secret.key" = "VALUE"', '2: spark.conf."fs.s3a.secret.key": is a secret'),
    (SINK + 'options = { url = "x", dbtable = "y", password = "VALUE" }', f"{OF_SINK}.password: is a secret"),
    (SINK + 'options = { url = "jdbc:x://u:VALUE@db/x", dbtable = "y" }', f"{OF_SINK}.url: has a password"),
    (SINK + 'options = { url = "x://db/x?user=u&password=VALUE", dbtable = "y" }', f"{OF_SINK}.url: has a password"),
    (SINK + 'options = { url = "x", dbtable = "y", password = "***" }', f"{OF_SINK}: password is ***, as exports show"),
    (CONNECTION + 'password = { fil = "VALUE" }', OF_CONNECTION),
    (CONNECTION + 'password = { file = "VALUE", env = "X" }', OF_CONNECTION),
    (CONNECTION + "password = {}", OF_CONNECTION),
    (CONNECTION + 'password = ["VALUE"]', OF_CONNECTION),
    (CONNECTION + 'password = { credential = "../VALUE" }', OF_CONNECTION),
]


@pytest.mark.parametrize(("text", "said"), PLAIN)
def test_a_secret_in_plain_text_is_an_error_that_says_how_and_not_what(text: str, said: str) -> None:
    errors = _problems(text.replace("VALUE", "hunter2"))
    assert [error.removeprefix("linn.toml:")[: len(said)] for error in errors] == [said]
    assert "hunter2" not in errors[0]
    assert "credential" in errors[0] or "{" not in said


@pytest.mark.parametrize("place", ['{ file = "/run/x" }', '{ env = "X" }', '{ credential = "x" }'])
def test_a_reference_is_no_error_and_its_place_is_known(place: str) -> None:
    text = f'[spark.connections.db]\nurl = "jdbc:postgresql://db/x"\npassword = {place}\n[users.ada]\nscram = {place}\n'
    text += SINK + f'options = {{ connection = "db", dbtable = "y", token = {place} }}\n'
    config, _ = configured(text)
    assert [dotted(where) for where, _ in config.secrets()] == [
        "users.ada.scram",
        "spark.connections.db.password",
        "topics.orders.spark_sink.options.token",
    ]


@pytest.mark.parametrize(
    ("names", "are"),
    [
        (
            "password Password db.password sslpassword keyPassword fs.s3a.secret.key spark.hadoop.fs.s3a.access.key",
            True,
        ),
        ("AWS_SECRET_ACCESS_KEY s3.session-token token credential fs.azure.account.key.shop sasl.jaas.config", True),
        ("url user dbtable key keys primary_key catalog.uri linn.credentials.file token-refresh-enabled", False),
        ("fs.s3a.aws.credentials.provider oauth2-token-uri aws_access_key_id sslkeyPasswordFile tokenUrl", False),
    ],
)
def test_names_tell_which_options_are_secrets(names: str, are: bool) -> None:
    assert {name: is_secret(name) for name in names.split()} == dict.fromkeys(names.split(), are)


def test_a_url_without_a_password_is_no_secret() -> None:
    urls = ["jdbc:postgresql://db.example:5432/shop", "s3a://bucket/x?versionId=2", "https://user@host/x", "a//b:c d@e"]
    assert list(plain_secrets({str(n): url for n, url in enumerate(urls)})) == []


class _Own(msgspec.Struct, frozen=True):
    key: Annotated[Secret | None, msgspec.Meta(description="A plugin's key.")] = None


def test_a_plugin_takes_secrets_by_the_type_of_its_setting() -> None:
    problems = Problems()
    found = decode_settings(_Own, {"key": {"env": "X"}}, ("own",), problems)
    assert found == _Own(Secret(env="X"))
    assert encode_settings(found) == {"key": MASK}
    assert list(secrets_in(found)) == [(("key",), Secret(env="X"))]
    for wrong in ("hunter2", 5, {"env": ""}, {"envy": "hunter2"}):
        assert decode_settings(_Own, {"key": wrong}, ("own",), problems) is None
    said = [problem.text for problem in problems.found]
    assert said[0] == f"is a secret, and stands here in plain text: {HOW}"
    assert "hunter2" not in str(said)


def test_a_reference_is_masked_wherever_it_is_printed() -> None:
    secret = Secret(file="/run/secrets/x")
    assert {f"{secret}", f"{secret!r}", f"{[secret]}"[1:-1], f"{_Own(secret)}"[9:-1]} == {MASK}
    table = {"options": {"password": {"file": "/run/x"}, "url": "x"}, "list": [{"env": "X"}], "file": "x", "env": {}}
    before = copy.deepcopy(table)
    assert masked(table) == {"options": {"password": MASK, "url": "x"}, "list": [MASK], "file": "x", "env": {}}
    assert table == before


# --- nothing shows a secret ---

FILE = """
[audit]
enabled = true
[topics.orders]
kind = "stream"
storage = "segmented-log"
spark_sink = { format = "jdbc", options = { connection = "db", dbtable = "x", password = { env = "DB_PASSWORD" } } }
[topics.jobs]
kind = "queue"
[spark]
live = true
paths = ["."]
conf = { "spark.hadoop.fs.s3a.secret.key" = { file = "/secrets/s3" } }
[spark.connections.db]
url = "jdbc:postgresql://db/x"
sslpassword = { credential = "ssl" }
[users.ada]
scram = { file = "/secrets/ada" }
roles = ["administrator"]
[users.anonymous]
roles = ["administrator"]
"""
SECRETS = [VALUE, "s3 is secret", "ssl is secret"]


def _machine(env: SimEnv, life: Any) -> ScriptedDriver:
    """A machine with secrets, and with drivers that print all that they are told."""
    driver = ScriptedDriver()
    driver.life = life
    env.programs.install("java", java)
    env.programs.install(PYTHON, driver.main)
    env.process.variables |= {"DB_PASSWORD": VALUE, "CREDENTIALS_DIRECTORY": "/run/credentials"}
    stored = {"/secrets/s3": SECRETS[1], "/run/credentials/ssl": SECRETS[2]}
    stored["/secrets/ada"] = make_verifier("ada's", b"s" * 16, 4096).text()
    for path, text in stored.items():
        env.disk.make_dir(str(Path(path).parent))
        file = env.disk.open(path, create=True)
        file.write([text.encode()])
        file.close()
    return driver


async def _indiscreet(program: SimProgram, spec: dict[str, Any]) -> int:
    """Print what it knows, as errors of databases do, and fail."""
    await program.print(f"could not connect with {json.dumps(spec)}")
    for value in SECRETS:
        await program.print(f"could not connect with {value}")
    await program.say({"event": "session", "spark": "4.3.0", "application": VALUE, "ui": None})
    await program.say({"event": "failed", "error": f"no suitable driver for {SECRETS}", "fatal": True})
    await program.say_line(VALUE)
    return 1


def _written(folder: Folder) -> Iterator[bytes]:
    for name, node in folder.entries.items():
        yield name.encode()
        if isinstance(node, Folder):
            yield from _written(node)
        else:
            yield bytes(node.data)


async def _told(client: RawClient, verb: str, **arguments: Any) -> Any:
    """The answer to a verb, with the tables of services that descriptions have beside their own keys."""
    return json.loads((await client.call(m.Administer(verb, json.dumps(arguments)))).result)


def _spark(action: str, **arguments: str) -> dict[str, Any]:
    return {"service": "spark", "action": action, "arguments": arguments}


async def _answers(broker: Broker, client: RawClient) -> dict[str, Any]:
    """All that the broker answers about its definitions and its state."""
    topics, exchanges = await _told(client, "topic.list"), await _told(client, "exchange.list")
    offset, trail = 0, []
    while more := await client.fetch("__audit", offset=offset, bytes_max=1 << 20):
        trail += more
        offset = len(trail)
    return {
        "topics": topics,
        "topic": await _told(client, "topic.show", name="orders"),
        "exchanges": exchanges,
        "export": toml_text(tables_of(exchanges, topics)),
        "services": await _told(client, "service.list"),
        "logs": await _told(client, "service.perform", **_spark("logs", pipeline="orders")),
        "users": await _told(client, "user.list"),
        "metrics": b"".join(piece for family in broker.metrics.collect() for piece in exposed(family)).decode(),
        "audit": trail,
    }


@simulated
async def test_nothing_that_a_broker_writes_or_answers_has_a_secret_in_it(
    env: SimEnv, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    driver = _machine(env, _indiscreet)
    async with broker_on(env, FILE) as broker:
        await trio.sleep(30)
        spec = driver.specs[0]
        assert spec["conf"]["spark.hadoop.fs.s3a.secret.key"] == SECRETS[1]
        options = spec["pipelines"][0]["options"]
        assert (options["password"], options["sslpassword"]) == (SECRETS[0], SECRETS[2])
        client = await connected(env)
        with pytest.raises(Refused):
            await _told(client, "topic.create", name="orders", settings={"kind": "queue"})
        await _told(client, "topic.alter", name="jobs", settings={"lease": "1m"})
        with pytest.raises(Refused):
            await _told(client, "service.perform", service="spark", action="files", arguments={"pipeline": "orders"})
        found = await _answers(broker, client)
        assert "no suitable driver for" in str(found["services"])
        assert f"could not connect with {MASK}" in str(found["logs"])
        assert f'"password" = "{MASK}"' in found["export"].replace("password =", '"password" =')
        print_report("linn.toml", broker.config, Problems(), as_json=True)
        print_report("linn.toml", broker.config, Problems(), as_json=False)
        pipelines = asked_for(broker.config.services["spark"], {}), repr(broker.config)
        data = b"\n".join(_written(env.disk.root.entries["data"]))  # type: ignore[arg-type]
        assert b"DB_PASSWORD" in data, "the metadata has the topic"
    everything = [json.dumps(found), caplog.text, repr(capsys.readouterr()), repr(pipelines), data.decode("latin-1")]
    assert driver.running is not None
    programs = driver.running.command, driver.running.environment
    for value in [*SECRETS, json.dumps(VALUE)[1:-1]]:
        assert [value in text for text in [*everything, repr(programs)]] == [False] * 6


@simulated
async def test_a_verifier_in_a_file_is_the_users(env: SimEnv) -> None:
    _machine(env, _indiscreet)
    async with broker_on(env, FILE) as broker:
        assert broker.logins.verifier("ada") is not None
        client = await connected(env)
        (ada,) = [user for user in await _told(client, "user.list") if user["user"] == "ada"]
        assert (ada["has_password"], ada["in_file"]) == (True, True)
        assert "SCRAM" not in str(ada)


@pytest.mark.parametrize("value", [{"env": "PATH"}, {"file": "/etc/passwd"}, {"credential": "x"}])
@simulated
async def test_a_request_can_make_the_broker_read_no_secret(env: SimEnv, value: dict[str, str]) -> None:
    driver = _machine(env, _indiscreet)
    async with broker_on(env, FILE):
        client = await connected(env)
        for options in (
            {"connection": "db", "dbtable": value},
            {"connection": "db", "dbtable": "x", "batchsize": value},
        ):
            settings = {"kind": "stream", "spark_sink": {"format": "jdbc", "options": options}}
            with pytest.raises(Refused, match="has a secret, which comes from the configuration file alone") as refused:
                await _told(client, "topic.create", name="mine", settings=settings)
            assert refused.value.failed.code == "config.not_live"
        for key in ("spark_sink.options.dbtable", "spark_sink"):
            table = value if key != "spark_sink" else {"path": "x", "options": {"a": value}}
            with pytest.raises(Refused):
                await _told(client, "topic.alter", name="orders", settings={key: table})
        await trio.sleep(10)
    assert [pipeline["name"] for spec in driver.specs for pipeline in spec["pipelines"]] == ["orders"]


@simulated
async def test_what_an_export_has_in_the_place_of_secrets_can_not_be_imported(env: SimEnv) -> None:
    _machine(env, _indiscreet)
    async with broker_on(env, FILE):
        client = await connected(env)
        there = tables_of(await _told(client, "exchange.list"), await _told(client, "topic.list"))
    text = toml_text(there)
    found = DefinitionFile(TomlSource(text, "export.toml"), there).problems
    line = text[: text.index("spark_sink")].count("\n") + 1
    assert [found.describe(problem) for problem in found.found] == [
        f"export.toml:{line}: topics.orders.spark_sink.options: password is {MASK}, as exports show a secret: {HOW}"
    ]
    other = DefinitionFile(TomlSource('[topics.more]\nkind = "stream"\n', "more.toml"), there).problems
    assert other.found == []
