"""A stranger who has only the documentation: the pages' own commands and programs, in order, in an empty folder.

A `console` block holds commands (`$ …`) and under each what its output contains. A `python` block that begins with
`# NAME.py` is a file. Nothing else of the page is used.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "first-five-minutes.md"
INSTALLS = ("python3 -m venv", ".venv/bin/pip install")
"""What a test's environment has done already."""
PAGES_PORT = "5466"
"""The default; the test takes a free one in its place, on the page and in what `linn init` writes."""


class Step(NamedTuple):
    """A file to write, or a command with what it must print."""

    file: str
    command: str
    text: str


def steps(page: Path) -> Iterator[Step]:
    """What the page tells its reader to do."""
    fence = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for kind, body in fence.findall(page.read_text(encoding="utf-8")):
        if kind == "python" and (named := re.match(r"# (\w+\.py)\n", body)):
            yield Step(named[1], "", body)
        elif kind == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield Step("", command, output)


class Reader:
    """Somebody in an empty folder. The broker that they start is ended by its process id."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = str(port)
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "120",
            "LINN_URL": f"linn://127.0.0.1:{port}",
        }
        self.broker: subprocess.Popen[str] | None = None

    def run(self, command: str) -> str:
        """The output of a command that succeeds."""
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def move(self, name: str) -> None:
        """Put this reader's port into a file."""
        path = self.folder / name
        path.write_text(path.read_text().replace(PAGES_PORT, self.port))

    def start(self, command: str) -> str:
        """Start what goes on running, and give what it says until it is ready."""
        self.broker = subprocess.Popen(
            command.split(),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.broker.stdout is not None
        said = ""
        while "ready" not in said:
            line = self.broker.stdout.readline()
            assert line, said
            said += line
        return said

    def leave(self) -> None:
        """Stop the broker in order."""
        if self.broker is not None:
            self.broker.send_signal(signal.SIGTERM)
            self.broker.communicate(timeout=30)
            assert self.broker.returncode == 0


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        reader = Reader(tmp_path, free.getsockname()[1])
    yield reader
    reader.leave()


def test_the_first_five_minutes_are_as_the_page_says(reader: Reader) -> None:
    done = 0
    for step in steps(PAGE):
        if step.file:
            (reader.folder / step.file).write_text(step.text)
            reader.move(step.file)
        elif not step.command.startswith(INSTALLS):
            run = reader.start if step.command.endswith("&") else reader.run
            said = run(step.command.removesuffix("&"))
            if step.command.startswith("linn init"):
                reader.move("linn.toml")
            for line in step.text.replace(PAGES_PORT, reader.port).splitlines():
                assert line.strip() in said, f"$ {step.command}\n{said}"
            done += 1
    assert done >= 12, "the page has lost its commands"
