"""Addresses that other machines reach: with TLS, or with the word that says that there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from linn.core.config.config import check_config, plugin_settings
from linn.core.config.toml_source import TomlSource
from linn.core.env.address import is_beyond_loopback
from linn.core.plugins.manager import PluginManager, installed

TABLE = '[tls.edge]\ncertificate = "c"\nkey = "k"\n'


def problems(text: str) -> list[str]:
    source = TomlSource(text, "linn.toml")
    _, found = check_config(source, PluginManager(plugin_settings(source), installed()))
    return [f"{problem.severity} {problem.key}: {problem.text}" for problem in found.in_order()]


@pytest.mark.parametrize("address", ["0.0.0.0:5466", "[::]:5466", "10.0.0.1:5466", "broker.example.com:5466"])
@pytest.mark.parametrize("protocol", ["capnp", "metrics"])
def test_one_without_tls_is_an_error_unless_it_says_so(address: str, protocol: str) -> None:
    listener = f'[listeners.n]\nprotocol = "{protocol}"\naddress = "{address}"\nlogin = "none"\n'
    (error,) = problems(listener)
    assert error.startswith(f"error listeners.n.address: other machines reach {address}, and the listener has no TLS")
    assert "plaintext = true" in error
    assert problems(listener + "plaintext = true\n") == []
    assert problems(listener + 'tls = "edge"\n' + TABLE) == []


@pytest.mark.parametrize("address", ["0.0.0.0:5466", "[::]:5466", "10.0.0.1:5466", "broker.example.com:5466"])
def test_one_without_a_login_is_an_error_unless_it_says_so(address: str) -> None:
    listener = f'[listeners.n]\naddress = "{address}"\nplaintext = true\n'
    (error,) = problems(listener)
    assert error.startswith(f"error listeners.n.address: other machines reach {address}, and the listener does not say")
    assert problems(listener + 'login = "none"\n') == []
    assert problems(listener + 'login = "required"\n') == []


PLUGIN = """
import msgspec
from linn.api import ProtocolKind, hookimpl

class Settings(msgspec.Struct, frozen=True):
    pass

@hookimpl
def linn_register_protocol():
    return ProtocolKind("silent", Settings, lambda settings: None)
"""


def test_a_protocol_without_logins_can_not_require_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "silent_protocol.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    listener = '[plugins]\nload = ["silent_protocol"]\n[listeners.n]\nprotocol = "silent"\n'
    (error,) = problems(listener + 'login = "required"\n')
    assert error == 'error listeners.n.login: the protocol "silent" has no logins'


@pytest.mark.parametrize("scram", ["opensesame", "SCRAM-SHA-256$1:c2FsdA==$eA==:eA=="])
def test_a_password_in_the_file_is_refused_without_being_shown(scram: str) -> None:
    (error,) = problems(f'[users.ann]\nscram = "{scram}"\n')
    assert error.startswith("error users.ann.scram: a password is stored as SCRAM-SHA-256")
    assert scram not in error


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "localhost:1", "unix:linn.sock"])
def test_loopback_needs_neither(address: str) -> None:
    assert not is_beyond_loopback(address)
    assert problems(f'[listeners.n]\naddress = "{address}"\n') == []


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (
            'address = "127.0.0.1:1"\nplaintext = true',
            "warning listeners.n.plaintext: has no effect: only this machine",
        ),
        (
            'address = "0.0.0.0:1"\ntls = "edge"\nplaintext = true\nlogin = "none"',
            "warning listeners.n.plaintext: has no effect: the",
        ),
        ('address = "unix:s"\ntls = "edge"', "error listeners.n.tls: a Unix socket needs no TLS"),
        ('tls = "egde"', 'error listeners.n.tls: there is no TLS table "egde"; did you mean "edge"?'),
    ],
)
def test_settings_of_a_listener_that_do_not_fit(listener: str, said: str) -> None:
    (found,) = problems(f"[listeners.n]\n{listener}\n{TABLE}")
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('certificate = "c"', 'error tls.edge: the key "key" is missing'),
        ('certificate = "c"\nkey = "k"\nversions = "1.1"', "error tls.edge.versions: must be one of"),
        ('certificate = "c"\nkey = "k"\nclient_certificate = "required"', "error tls.edge: client_certificate = "),
        ('certificate = "c"\nkey = "k"\nhandshake_timeout = "0s"', "error tls.edge.handshake_timeout: "),
        ('certificat = "c"\nkey = "k"', 'error tls.edge: the key "certificate" is missing'),
    ],
)
def test_a_tls_table_that_is_wrong(table: str, said: str) -> None:
    assert any(problem.startswith(said) for problem in problems(f"[tls.edge]\n{table}\n"))
