"""Long work shows how far it is on a terminal, and says nothing of it anywhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from linn.testing.process import BrokerProcess

PUBLISH = [sys.executable, "-m", "linn", "publish", "waiting", "x", "--count", "60", "--rate", "100/s"]


def create(url: str) -> None:
    command = [sys.executable, "-m", "linn", "topics", "create", "waiting", "--url", url]
    subprocess.run(command, check=True, capture_output=True, timeout=300)


def all_of(terminal: int) -> str:
    """The output up to the point where the other side has closed its end."""
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # The end, on Linux.
            part = b""
        if not part:
            return shown.decode()
        shown += part


def test_a_terminal_sees_how_far_publishing_is_and_a_pipe_does_not(broker: BrokerProcess) -> None:
    create(broker.url)
    terminal, its_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color"}
    with subprocess.Popen(
        [*PUBLISH, "--url", broker.url], stderr=its_end, stdout=subprocess.PIPE, env=environment
    ) as one:
        os.close(its_end)
        shown = all_of(terminal)
        assert one.stdout is not None
        said = one.stdout.read()
        assert one.wait(30) == 0
    os.close(terminal)
    assert "publishing to waiting" in shown
    assert "/60" in shown
    assert b"published 60 messages" in said
    piped = subprocess.run([*PUBLISH, "--url", broker.url], capture_output=True, timeout=300)
    assert (piped.returncode, piped.stderr) == (0, b"")
