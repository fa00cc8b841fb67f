"""`linn init --secure`: from nothing to a broker with TLS, logins and its first administrator."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from linn.cli.new_certificate import new_certificate

LINN = [sys.executable, "-m", "linn"]
TIMEOUT_S = 120


def _linn(folder: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [*LINN, *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def _serving(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*LINN, "serve", "linn.toml"], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server
        finally:
            server.terminate()
            server.wait(TIMEOUT_S)


def test_the_first_administrator_is_made_and_logs_in_over_tls(tmp_path: Path) -> None:
    said = _linn(tmp_path, "init", "--secure", "--host", "broker.example")
    assert "linn users create NAME --role administrator" in said
    assert (tmp_path / "linn-key.pem").stat().st_mode & 0o777 == 0o600
    file = tmp_path / "linn.toml"
    file.write_text(file.read_text().replace("0.0.0.0:5466", "127.0.0.1:0"))
    _linn(tmp_path, "check", "--strict", "linn.toml")
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("correct horse battery staple\n")
    with _serving(tmp_path) as server:
        assert server.stdout is not None
        url, local = [re.sub(r"^ready ", "", server.stdout.readline().strip()) for _ in range(2)]
        assert url.startswith("linns://127.0.0.1:")
        own = ["--url", local]
        _linn(tmp_path, "users", "create", "ada", "--role", "administrator", "--password-file", "password", *own)
        remote = ["--url", url, "--ca", "linn-ca.pem", "--user", "ada"]
        shown = json.loads(_linn(tmp_path, "whoami", "--json", *remote, LINN_PASSWORD_FILE="password"))
        assert (shown["user"], shown["login"], shown["roles"]) == ("ada", "SCRAM-SHA-256-PLUS", ["administrator"])
        password.write_text("wrong\n")
        assert "the login failed" in _linn(tmp_path, "whoami", *remote, code=1, LINN_PASSWORD_FILE="password")
        assert "requires a login" in _linn(tmp_path, "topics", "list", "--url", url, "--ca", "linn-ca.pem", code=1)
        trail = _linn(tmp_path, "audit", "tail", *own)
        assert "administrator at unix:linn.sock: user.create ada administrator (scram): asked" in trail
        assert "ada at 127.0.0.1: login SCRAM-SHA-256: auth.failed" in trail.replace("-PLUS", "")
        assert "none was changed or removed" in _linn(tmp_path, "audit", "verify", *own)


@pytest.mark.parametrize("there", ["linn.toml", "linn-ca.pem", "linn-cert.pem", "linn-key.pem"])
def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    assert f"{there} exists already" in _linn(tmp_path, "init", "--secure", code=3)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(there, "mine")]


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    assert "--secure" in _linn(tmp_path, "init", "--host", "a", code=2)
    assert "--secure" in _linn(tmp_path, "init", "-", "--secure", code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_is_for_its_hosts_and_comes_from_its_authority(tmp_path: Path) -> None:
    made = new_certificate(["broker.example", "192.0.2.7", "2001:db8::1"])
    for name, text in made._asdict().items():
        (tmp_path / name).write_text(text)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    client.load_verify_locations(tmp_path / "authority")
    for host, fits in [("broker.example", True), ("192.0.2.7", True), ("2001:db8::1", True), ("other.example", False)]:
        assert _shakes_hands(server, client, host) == fits


def _shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> bool:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True
