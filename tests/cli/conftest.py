"""A broker in a process, and the command line in others."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from linn.cli.app import app
from linn.cli.render.console import console
from linn.testing.process import BrokerProcess

Linn = Callable[..., "subprocess.CompletedProcess[str]"]
COMMAND_TIMEOUT_S = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="module")
def linn(broker: BrokerProcess) -> Linn:
    """A function that runs a command against the broker, in a process of its own."""
    return lambda *arguments, **more: run_linn(*arguments, url=broker.url, **more)


@pytest.fixture(autouse=True)
def nobodys_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the width that shells and test runners set for their terminal; these commands write into pipes."""
    monkeypatch.delenv("COLUMNS", raising=False)


def run_linn(
    *arguments: str, url: str = "linn://127.0.0.1:1", stdin: str = "", cwd: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "linn", *arguments],
        input=stdin,
        env=os.environ | {"LINN_URL": url},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )


@pytest.fixture
def quick(broker: BrokerProcess) -> Linn:
    """`within`, against the broker: for all but a few commands of each file, which are run as the shell does it."""
    return lambda *arguments: run_within(*arguments, url=broker.url)


@pytest.fixture
def within() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """A function that runs a command in this process, which is quicker, and can't give it stdin."""
    return run_within


def run_within(*arguments: str, url: str = "linn://127.0.0.1:1") -> "subprocess.CompletedProcess[str]":
    console.cache_clear()  # It has the stdout of the command before.
    done = CliRunner().invoke(app, list(arguments), env={"LINN_URL": url})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    console.cache_clear()
    return subprocess.CompletedProcess(list(arguments), done.exit_code, done.stdout, done.stderr)


def the_line(text: str) -> str:
    """The output of a failed command, which must be one line and no traceback."""
    (line,) = text.splitlines()
    assert line.startswith("linn: ")
    return line


@pytest.fixture
def run() -> Linn:
    """A function that runs a command without a broker."""
    return run_linn


@pytest.fixture
def line_of() -> Callable[[str], str]:
    return the_line
