"""The place and the login of a broker in options of Spark: options name files, and none holds a secret."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

import linn
from linn.core.errors.tree import AddressInvalid
from linn.spark_plugin.errors import SparkOptionInvalid
from linn.spark_plugin.place import BrokerPlace, broker_place, read_login
from linn.spark_plugin.sink.write_options import checked_write
from linn.spark_plugin.source.options import checked_options

BROKER = {"linn.bootstrap.servers": "linns://broker.example:5467"}
FILES = {
    "linn.credentials.file": "/etc/job/linn.toml",
    "linn.tls.ca": "/etc/job/ca.pem",
    "linn.tls.certificate": "/etc/job/job.pem",
    "linn.tls.key": "/etc/job/job-key.pem",
}


def written(path: Path, text: str, mode: int = 0o600) -> str:
    path.touch(0o600)
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_source_and_sink_have_the_same_options_of_login_and_tls() -> None:
    place = BrokerPlace("linns://broker.example:5467", *FILES.values())
    given = {name.upper(): value for name, value in (BROKER | FILES).items()}
    assert checked_options(given | {"subscribe": "flights"}).broker == place
    assert checked_write(given | {"topic": "flights"}, {"value": "binary"}, is_stream=True).broker == place
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize(
    "name",
    ["linn.password", "password", "linn.user", "user", "linn.token", "linn.sasl.jaas.config", "clientSecret"],
)
def test_an_option_that_would_show_a_secret_is_refused_without_repeating_it(name: str) -> None:
    for check in (
        lambda options: checked_options(options | {"subscribe": "flights"}),
        lambda options: checked_write(options | {"topic": "flights"}, {"value": "binary"}, is_stream=False),
    ):
        with pytest.raises(SparkOptionInvalid, match=r"plans and event logs\. Write the login into a file") as refused:
            check(BROKER | {name: "opensesame"})
        assert "opensesame" not in str(refused.value)


def test_an_address_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(AddressInvalid) as refused:
        broker_place({"linn.bootstrap.servers": "linns://ann:opensesame@broker.example"})
    assert "opensesame" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"linn.bootstrap.servers": "broker:5466", "linn.tls.ca": "ca.pem"},
            "linn.tls.ca is for a connection with TLS",
        ),
        (BROKER | {"linn.tls.key": "key.pem"}, "linn.tls.key needs linn.tls.certificate"),
        ({}, "linn.bootstrap.servers is missing"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: Mapping[str, str], text: str) -> None:
    with pytest.raises(SparkOptionInvalid, match=text):
        broker_place(options)


# --- files of credentials ---------------------------------------------------------------------------------------------


def test_a_file_has_a_user_and_a_password_or_a_token(tmp_path: Path) -> None:
    login = read_login(written(tmp_path / "a", '# of the nightly job\nuser = "ann"\npassword = "opensesame"\n'))
    assert isinstance(login, linn.Password)
    assert (login.user, login._secret) == ("ann", "opensesame")
    assert isinstance(read_login(written(tmp_path / "b", 'token = "e30.e30.x"')), linn.Token)


def test_a_renewed_token_is_found_at_the_next_connection(tmp_path: Path) -> None:
    path = written(tmp_path / "token", 'token = "first"')
    login = read_login(path)
    assert isinstance(login, linn.Token)
    assert callable(login._token)
    assert login._token() == "first"
    written(tmp_path / "token", 'token = "second"')
    assert login._token() == "second"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "opensesame",
        'user = "opensesame"',
        'password = "opensesame"',
        'user = ""\npassword = "opensesame"',
        'user = "ann"\npassword = ""',
        'token = ""',
        'user = "ann"\npassword = "opensesame"\ntoken = "opensesame"',
        'password = "opensesame"\ntoken = "opensesame"',
        'user = "ann"\npasword = "opensesame"',
        'user = "ann"\npassword = 7',
        '"opensesame',
        "\ufeffopensesame",
    ],
)
def test_another_file_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(SparkOptionInvalid, match=r"^linn\.credentials\.file: .*/file does not have user = ") as refused:
        read_login(written(tmp_path / "file", text))
    assert "opensesame" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "file", 'user = "ann"\npassword = "opensesame"', mode)
    with pytest.raises(SparkOptionInvalid, match=rf"others may use it \(mode {mode:04o}\); chmod 600 "):
        read_login(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkOptionInvalid, match=r"^linn\.credentials\.file: .*no-file"):
        BrokerPlace("linn://127.0.0.1:1", f"{tmp_path}/no-file").connect("test")
