"""Clients of all languages against several brokers: tests that are made for one, run with `--brokers`.

They are those in which it matters which broker a connection meets. `--brokers` runs all others too, by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIMIT_S = 800.0
PYTHON = ("client/test_consumer.py", "client/test_group_members.py", "client/test_shared_consumers.py")
EVERY_LANGUAGE = "clients/test_client_conformance.py"


def passed_against(brokers: str, *files: str, only: str = "") -> int:
    """Run tests against a cluster; returns how many have passed. The others were skipped."""
    command = [sys.executable, "-m", "pytest", "--brokers", brokers, "-k", only, "--tb", "short"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *[str(TESTS / name) for name in files]],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    print(done.stdout.splitlines()[-1])
    found = re.search(r"(\d+) passed", done.stdout)
    return int(found[1]) if found is not None else 0


needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: apt install etcd-server")


@needs_etcd
def test_three_brokers_are_one_to_clients_of_other_languages() -> None:
    if passed_against("three", EVERY_LANGUAGE, only="cpp or typescript") == 0:
        pytest.skip("neither client can be built here")


@needs_etcd
def test_three_brokers_are_one_to_consumers() -> None:
    assert passed_against("three", *PYTHON) >= 60


def test_two_workers_are_one_to_clients() -> None:
    assert passed_against("workers", EVERY_LANGUAGE, only="python") >= 40


def test_two_workers_are_one_to_clients_of_other_languages() -> None:
    if passed_against("workers", EVERY_LANGUAGE, only="(cpp or typescript) and not own_tests") == 0:
        pytest.skip("neither client can be built here")
