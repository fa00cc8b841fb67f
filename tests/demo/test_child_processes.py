"""The processes that the demo leaves to others: which they are, and that nothing else is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from linn.cli.demo.child_processes import descendants, kill

PARENT = """
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE):
    print("ready", flush=True)
    input()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process that has a child."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_descendants_are_listed_with_their_parents_first_and_killed(parent: subprocess.Popen[str]) -> None:
    found = [each for each in descendants(os.getpid()) if each.pid == parent.pid]
    below = descendants(parent.pid)
    assert [each.parent for each in found + below] == [os.getpid(), parent.pid]
    assert "input()" in below[0].command
    kill(found + below)
    assert not any(each.lives for each in found + below)
    assert parent.wait() == -9


def test_a_later_process_with_the_same_id_is_left_alone(parent: subprocess.Popen[str]) -> None:
    (child,) = descendants(parent.pid)
    kill([child._replace(started=child.started - 1)])
    assert child.lives


def test_a_process_that_is_gone_is_none(parent: subprocess.Popen[str]) -> None:
    (child,) = descendants(parent.pid)
    kill([child])
    kill([child])
    assert child.command == ""
