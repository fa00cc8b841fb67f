"""Logins of commands: by a file, never by an option; and what they print of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linn.core.security.sasl.scram import make_verifier
from linn.testing.process import BrokerProcess

CONFIG = """
[listeners.native]
address = "127.0.0.1:0"
login = "required"
[broker]
default_storage = "dram"
[users.ann]
roles = ["administrator"]
scram = "%s"
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    verifier = make_verifier("opensesame", b"salt of 16 bytes").text()
    with BrokerProcess(tmp_path_factory.mktemp("broker"), CONFIG % verifier, listen=()) as process:
        yield process


def secret(folder: Path, text: str = "opensesame\n", mode: int = 0o600) -> str:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def run(broker: BrokerProcess, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "linn", *arguments],
        input="",
        env=os.environ | {"LINN_URL": broker.url} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_command_logs_in_with_a_file(secured: BrokerProcess, tmp_path: Path) -> None:
    done = run(secured, "whoami", "--user", "ann", LINN_PASSWORD_FILE=secret(tmp_path))
    assert done.stdout == "ann, login: SCRAM-SHA-256, roles: administrator\n"
    done = run(secured, "whoami", "--json", LINN_USER="ann", LINN_PASSWORD_FILE=secret(tmp_path))
    assert json.loads(done.stdout)["user"] == "ann"


@pytest.mark.parametrize(
    ("environment", "text", "mode", "says"),
    [
        ({}, "opensesame\n", 0o600, "requires a login"),
        ({"LINN_USER": "ann"}, "wrong\n", 0o600, "the login failed"),
        ({"LINN_USER": "bob"}, "opensesame\n", 0o600, "the login failed"),
        ({"LINN_USER": "ann"}, "opensesame\n", 0o644, "others may use it"),
        ({"LINN_USER": "ann"}, "\n", 0o600, "is empty"),
    ],
)
def test_other_logins_fail_without_showing_the_password(
    secured: BrokerProcess, tmp_path: Path, environment: dict[str, str], text: str, mode: int, says: str
) -> None:
    done = run(secured, "whoami", LINN_PASSWORD_FILE=secret(tmp_path, text, mode), **environment)
    assert done.returncode != 0
    assert says in done.stderr.replace("\n", " ").replace("│", "").replace("  ", " ")
    assert "opensesame" not in done.stdout + done.stderr
    assert "wrong" not in done.stdout + done.stderr


def test_a_password_that_no_file_has_is_asked_for_on_a_terminal_alone(secured: BrokerProcess) -> None:
    done = run(secured, "whoami", "--user", "ann")
    assert done.returncode == 2
    assert "LINN_PASSWORD_FILE" in done.stderr
